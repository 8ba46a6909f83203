"""Tasks of the recipe: two numbers in a picture, and a calculator.

python -m assets.recipes.pictures.make FOLDER     writes train.jsonl, eval.jsonl, their pictures and warmup.jsonl

No pair of numbers of the evaluation occurs in training or in the warm-up. In the warm-up's demonstrations a digit is read wrongly
in a third of the cases.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from assets.jsonl import write
from assets.recipes.pictures.server import calculated
from assets.vision.conversations import called, described_tool, image, shown
from assets.vision.drawing import CELL, EDGE, png

EVAL, TRAIN = 128, 640
READINGS, CONVERSATIONS = 12_000, 8_000
WRONG = 0.33
QUESTION = "What is the sum of picture A?"
READ = "Read it."
SIZE = 26  # of the letters, in pixels
Pair = tuple[int, int]


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    rng = random.Random(5)
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    rng.shuffle(pairs)
    splits = {"eval": pairs[:EVAL], "train": pairs[EVAL : EVAL + TRAIN]}
    for name, of_split in splits.items():
        write(folder / f"{name}.jsonl", [task(folder, f"{name}-{a}-{b}", (a, b)) for a, b in of_split])
    write(folder / "warmup.jsonl", warmup(pairs[EVAL + TRAIN :], rng))


def task(folder: Path, name: str, pair: Pair) -> dict[str, Any]:
    path = f"pictures/{name}.png"
    (folder / path).write_bytes(picture(pair))
    query = [{"type": "image", "path": path}, {"type": "text", "text": QUESTION}]
    return {"id": name, "query": query, "answer": str(sum(pair)), "scorer": "last_number"}


def picture(pair: Pair) -> bytes:
    """One number above the other, each digit in a cell."""
    canvas = Image.new("RGB", (EDGE, EDGE), "white")
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(SIZE)
    for row, number in enumerate(pair, start=1):
        for column, digit in enumerate(str(number), start=1):
            middle = ((column + 0.5) * CELL, (row + 0.5) * CELL)
            draw.text(middle, digit, fill="black", font=font, anchor="mm")
    return png(canvas)


def warmup(pairs: Sequence[Pair], rng: random.Random) -> Iterator[dict[str, Any]]:
    kinds = [reading] * READINGS + [conversation] * CONVERSATIONS
    rng.shuffle(kinds)
    for kind in kinds:
        yield kind(rng.choice(pairs), rng)


def reading(pair: Pair, rng: random.Random) -> dict[str, Any]:
    asked = {"role": "user", "content": [image(picture(pair)), {"type": "text", "text": READ}]}
    return {"messages": [asked, {"role": "assistant", "content": "{} and {}".format(*pair)}]}


def conversation(pair: Pair, rng: random.Random) -> dict[str, Any]:
    """Of one who often reads a digit wrongly."""
    asked = {"role": "user", "content": [image(picture(pair)), {"type": "text", "text": QUESTION}]}
    digits = [*map(str, pair)]
    if rng.random() < WRONG:
        at = rng.randrange(2)
        digits[at] = digits[at][0] + str(rng.randrange(10))
    expression = "+".join(digits)
    result = calculated(expression)
    answer = {"role": "assistant", "content": result}
    return {"messages": [asked, called("calculate", expression=expression), shown(result), answer], "tools": TOOLS}


TOOLS = [described_tool("calculate", expression="string")]

if __name__ == "__main__":
    main()
