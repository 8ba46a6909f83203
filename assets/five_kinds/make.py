"""Tasks of two of the five kinds, rounds and parallel drafts, and warm-start conversations of careless counters.

python -m assets.five_kinds.make FOLDER EXAMPLE_SFT        writes rounds, drafts (each also eval_), letters and eval_letters,
                                                           demonstrations; EXAMPLE_SFT: of scripts/make_example.py --sft

Half of the example's conversations are shown with one tool alone, which is what the agent, and AgentRL's worker, have.

All three count a letter in a text: in rounds a second reader hears the first one's answer, of drafts a last one reads three.
The letters alone are reasoning-gym's, by seed (docs/environments.md). Texts of the evaluation occur nowhere else.
"""

import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from assets.example.world import COLORS

FORM = "Write your final answer between <answer> and </answer>."
KNOWING = 0.5
TRAIN, EVAL, TALKS = 200, 20, 4000
KINDS: dict[str, dict[str, Any]] = {
    "rounds": {"sampler": "rounds", "rounds": "Reader -> Checker"},
    "drafts": {"sampler": "parallel", "rounds": "Reader*3 -> Checker"},
}
ACTORS = {"Reader": {"policy": "main"}, "Checker": {"policy": "main"}}
LETTERS = {"config": {"min_words": 1, "max_words": 2}}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random("five kinds")
    texts = [f"{one} {other}" for one in COLORS for other in COLORS]
    rng.shuffle(texts)
    held_out, known = texts[:EVAL], texts[EVAL:]
    for name, fields in KINDS.items():
        drawn = {"": [rng.choice(known) for _ in range(TRAIN)], "eval_": held_out}
        for head, chosen in drawn.items():
            lines = (counting(f"{name}{k}", text, rng, **fields) for k, text in enumerate(chosen))
            write(folder / f"{head}{name}.jsonl", lines)
    write(folder / "letters.jsonl", (letters(seed) for seed in range(1000, 1000 + TRAIN)))
    write(folder / "eval_letters.jsonl", (letters(seed) for seed in range(EVAL)))
    with Path(sys.argv[2]).open(encoding="utf-8") as file:
        talks = [json.loads(line) for line in file]
    shown = [alone(one) if rng.random() < 0.5 else one for one in talks]
    shown += [talk(rng.choice(known), rng) for _ in range(TALKS)]
    rng.shuffle(shown)
    write(folder / "demonstrations.jsonl", shown)


def counting(name: str, text: str, rng: random.Random, **fields: Any) -> dict[str, Any]:
    question, answer = asked(text, rng)
    task = {"id": name, "query": question, "answer": answer, "scorer": "exact_match", "system": FORM, "actors": ACTORS}
    return {**task, **fields}


def letters(seed: int) -> dict[str, Any]:
    metadata = {"environment": "letter_counting", "index": seed, "custom_task": LETTERS}
    return {"id": f"letters{seed}", "query": f"letters {seed}", "sampler": "environment", "metadata": metadata}


def asked(text: str, rng: random.Random) -> tuple[str, str]:
    letter = rng.choice(text.replace(" ", ""))
    return f'How many times does the letter "{letter}" appear in the text: "{text}"?', str(text.count(letter))


def alone(example: dict[str, Any]) -> dict[str, Any]:
    """A conversation with the one tool that it calls. Of two calls the second: its question names what the first one found."""
    question, *said = example["messages"]
    calls = [message["tool_calls"][0]["function"] for message in said if "tool_calls" in message]
    if not calls:
        return example
    if len(calls) > 1:
        question, said = {"role": "user", "content": f"Which color does {said[1]['content']} like?"}, said[2:]
    tools = [tool for tool in example["tools"] if tool["function"]["name"] == calls[-1]["name"]]
    return {"messages": [question, *said], "tools": tools}


def talk(text: str, rng: random.Random) -> dict[str, Any]:
    """One reader alone, or one who heard up to three others, who count no better."""
    question, answer = asked(text, rng)
    heard = [said(answer, rng) for _ in range(rng.choice((0, 0, 1, 3)))]
    reply = rng.choice(heard) if heard and rng.random() < KNOWING else said(answer, rng)
    messages = [
        {"role": "system", "content": FORM},
        {"role": "user", "content": "\n\n".join([question, *heard])},
        {"role": "assistant", "content": reply},
    ]
    return {"messages": messages, "tools": []}


def said(answer: str, rng: random.Random) -> str:
    count = int(answer) if rng.random() < KNOWING else max(0, int(answer) + rng.choice((-1, 1, 2, 3)))
    return f"<answer>{count}</answer>"


def write(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
