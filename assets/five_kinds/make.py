"""Tasks of three of the five kinds, rounds, parallel drafts and puzzles, and warm-start conversations of careless readers.

python -m assets.five_kinds.make FOLDER EXAMPLE_SFT CALCULATOR PUZZLES
    writes rounds, drafts and puzzles (each also eval_), sums and calculator without held-out questions, and demonstrations
    EXAMPLE_SFT: of scripts/make_example.py --sft
    CALCULATOR, PUZZLES: the folders of assets.calculator.worker --tasks and of assets.reasoning_gym.make

Half of the example's conversations are shown with one tool alone, which is what the agent, and AgentRL's worker, have.

Rounds and drafts ask for the first or the last word of a text, so that no answer is right more often than the others. In rounds
a second reader hears the first one's answer, of drafts a last one reads three. Texts of the evaluation occur nowhere else. The
puzzles are reasoning-gym's, small matrices to rotate.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from assets.example.world import COLORS
from assets.jsonl import write

FORM = "Write your final answer between <answer> and </answer>."
KNOWING = 0.5
MIX = Path(__file__).parents[1] / "example" / "mix"
TRAIN, EVAL, TALKS = 200, 20, 4000
KINDS: dict[str, dict[str, Any]] = {
    "rounds": {"sampler": "rounds", "rounds": "Reader -> Checker"},
    "drafts": {"sampler": "parallel", "rounds": "Reader*3 -> Checker"},
}
ACTORS = {"Reader": {"policy": "main"}, "Checker": {"policy": "main"}}
PUZZLE, PUZZLE_BEGINS, PUZZLE_TALKS = "rotate_matrix", "Given a square matrix", 2000


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random("five kinds")
    texts = [f"{one} {other}" for one in COLORS for other in COLORS if one != other]
    rng.shuffle(texts)
    held_out, known = texts[:EVAL], texts[EVAL:]
    for name, fields in KINDS.items():
        drawn = {"": [rng.choice(known) for _ in range(TRAIN)], "eval_": held_out}
        for head, chosen in drawn.items():
            lines = (reading(f"{name}{k}", text, rng, **fields) for k, text in enumerate(chosen))
            write(folder / f"{head}{name}.jsonl", lines)
    talks, (calculator, puzzles) = read(Path(sys.argv[2])), map(Path, sys.argv[3:])
    asked_later = {task["query"] for task in [*read(MIX / "eval_sums.jsonl"), *read(calculator / "eval.jsonl")]}
    for name, path in (("sums", MIX / "sums.jsonl"), ("calculator", calculator / "train.jsonl")):
        write(folder / f"{name}.jsonl", (task for task in read(path) if task["query"] not in asked_later))
    talks = [one for one in talks if one["messages"][0]["content"] not in asked_later]
    for split, head in (("train", ""), ("eval", "eval_")):
        chosen = [task for task in read(puzzles / f"{split}.jsonl") if task["source"] == PUZZLE]
        write(folder / f"{head}puzzles.jsonl", chosen)
    shown = [alone(one) if rng.random() < 0.5 else one for one in talks]
    shown += [talk(rng.choice(known), rng) for _ in range(TALKS)]
    answered = read(puzzles / "demonstrations.jsonl")
    shown += [one for one in answered if one["messages"][1]["content"].startswith(PUZZLE_BEGINS)][:PUZZLE_TALKS]
    rng.shuffle(shown)
    write(folder / "demonstrations.jsonl", shown)


def reading(name: str, text: str, rng: random.Random, **fields: Any) -> dict[str, Any]:
    question, answer = asked(text, rng)
    task = {"id": name, "query": question, "answer": answer, "scorer": "exact_match", "system": FORM, "actors": ACTORS}
    return {**task, **fields}


def asked(text: str, rng: random.Random) -> tuple[str, str]:
    which = rng.choice(("first", "last"))
    return f'Which word comes {which} in the text: "{text}"?', text.split()[0 if which == "first" else 1]


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
    """One reader alone, or one who heard up to three others, who read no better."""
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
    return f"<answer>{answer if rng.random() < KNOWING else rng.choice(COLORS)}</answer>"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
