"""Tasks of the recipe: three clicks in a browser, and the code that the last page has in its title.

python -m assets.recipes.web.make FOLDER     writes train.jsonl, eval.jsonl, looks.jsonl and warmup.jsonl

The pages of the evaluation, of training and of the warm-up are different ones. In the warm-up's demonstrations each click is a
wrong one in a third of the cases, which leads to a page with a wrong code.
"""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from assets.jsonl import write
from assets.recipes.web.site import CLICKS, LOST, RIGHT, ROUTE, Site
from assets.vision.conversations import called, described_tool, image, shown

EVAL, TRAIN, WARMUP = range(100, 228), range(300, 940), range(1_000, 1_000_000)
FIRST_LOOKS, LOOKS, CONVERSATIONS = 6_400, 1_600, 4_800
WRONG = 0.33  # of the clicks
Demonstration = Callable[[Site, random.Random], dict[str, Any]]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, pages in (("train", TRAIN), ("eval", EVAL)):
        write(folder / f"{name}.jsonl", [task(f"{name}-{page}", Site(page)) for page in pages])
    rng = random.Random(8)
    write(folder / "looks.jsonl", demonstrations([location_example] * FIRST_LOOKS, rng))
    write(folder / "warmup.jsonl", demonstrations([location_example] * LOOKS + [conversation] * CONVERSATIONS, rng))


def task(name: str, site: Site) -> dict[str, Any]:
    return {"id": name, "query": question(site.page), "answer": str(site.code), "scorer": "last_number"}


def question(page: int) -> str:
    return f"Open page {page}. Click {' then '.join(ROUTE)}. "


def demonstrations(kinds: list[Demonstration], rng: random.Random) -> Iterator[dict[str, Any]]:
    for kind in kinds:
        yield kind(Site(rng.choice(WARMUP)), rng)


def location_example(site: Site, rng: random.Random) -> dict[str, Any]:
    """A question for the place of a page's right link, and its answer."""
    path = ROUTE[: rng.randrange(CLICKS)]
    x, y = site.links(path)[0].middle
    question_blocks = [image(site.picture(path)), {"type": "text", "text": f"Where is {RIGHT}"}]
    return {"messages": [{"role": "user", "content": question_blocks}, {"role": "assistant", "content": f"{x}, {y}"}]}


def conversation(site: Site, rng: random.Random) -> dict[str, Any]:
    """Of a clicker who is often wrong."""
    name = rng.randint(100, 999)
    messages = [{"role": "user", "content": question(name)}, called("open", page=name)]
    path: list[str] = []
    messages.append(shown(seen(site, path)))
    while links := site.links(path):
        right, *others = links
        link = rng.choice(others) if rng.random() < WRONG else right
        path.append(RIGHT if link is right else LOST)
        x, y = link.middle
        messages += [called("click", x=x, y=y), shown(seen(site, path))]
    messages.append({"role": "assistant", "content": site.title(path)})
    return {"messages": messages, "tools": TOOLS}


def seen(site: Site, path: list[str]) -> list[dict[str, Any]]:
    return [image(site.picture(path)), {"type": "text", "text": site.title(path)}]


TOOLS = [described_tool("open", page="integer"), described_tool("click", x="integer", y="integer")]

if __name__ == "__main__":
    main()
