"""Tasks of the recipe: arithmetic in words, for which the model has a calculator.

python -m assets.recipes.calculator.make FOLDER     writes train.jsonl, eval.jsonl and warmup.jsonl

The warm-up shows the form of a call, with sums asked in one way. The tasks ask for four operations in many ways, so that what a
question's words mean as an expression is left to be learned. No question of the evaluation occurs in training.
"""

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assets.jsonl import write

TRAIN, EVAL, WARMUP = 640, 64, 64
CALCULATE = {  # as mcp-server-calculator describes its tool
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Calculates/evaluates the given expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"title": "Expression", "type": "string"}},
            "required": ["expression"],
            "title": "calculateArguments",
        },
    },
}


@dataclass(frozen=True)
class Operation:
    sign: str
    result: Callable[[int, int], int]
    questions: tuple[str, ...]


OPERATIONS = (
    Operation("+", lambda a, b: a + b, ("What is {a} + {b}?", "Add {a} and {b}.", "What is the sum of {a} and {b}?")),
    Operation("-", lambda a, b: a - b, ("What is {a} minus {b}?", "Subtract {b} from {a}.", "Take {b} away from {a}.")),
    Operation(
        "*",
        lambda a, b: a * b,
        ("What is {a} times {b}?", "Multiply {a} by {b}.", "What is the product of {a} and {b}?"),
    ),
    Operation(
        "/",
        lambda a, b: a // b,
        ("What is {a} divided by {b}?", "Divide {a} by {b}.", "How often does {b} go into {a}?"),
    ),
)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    drawn = questions(random.Random(7))
    tasks = [next(drawn) for _ in range(TRAIN + EVAL)]
    write(folder / "train.jsonl", [task(f"train-{number}", *each) for number, each in enumerate(tasks[:TRAIN])])
    write(folder / "eval.jsonl", [task(f"eval-{number}", *each) for number, each in enumerate(tasks[TRAIN:])])
    rng = random.Random(8)
    sums = [(rng.randint(100, 9999), rng.randint(11, 99)) for _ in range(WARMUP)]
    write(folder / "warmup.jsonl", [conversation(a, b) for a, b in sums])


def questions(rng: random.Random) -> Iterator[tuple[str, int]]:
    """Distinct questions and their answers; operations and wordings by turns."""
    asked: set[str] = set()
    while True:
        operation = OPERATIONS[len(asked) % len(OPERATIONS)]
        wording = operation.questions[len(asked) // len(OPERATIONS) % len(operation.questions)]
        a, b = rng.randint(100, 9999), rng.randint(11, 99)
        if operation.sign == "/":
            a = a // b * b
        question = wording.format(a=a, b=b)
        if question not in asked:
            asked.add(question)
            yield question, operation.result(a, b)


def task(name: str, question: str, answer: int) -> dict[str, Any]:
    return {"id": name, "query": question, "answer": str(answer), "scorer": "last_number"}


def conversation(a: int, b: int) -> dict[str, Any]:
    call = {"name": "calculate", "arguments": {"expression": f"{a} + {b}"}}
    return {
        "messages": [
            {"role": "user", "content": f"What is {a} + {b}?"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "0", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": "0", "content": str(a + b)},
            {"role": "assistant", "content": str(a + b)},
        ],
        "tools": [CALCULATE],
    }


if __name__ == "__main__":
    main()
