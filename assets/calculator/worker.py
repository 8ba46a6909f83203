"""AgentRL's calculator example: sums with a tool, as a task of AgentRL's worker, behind its controller protocol.

PYTHONPATH=. /venvs/agentrl/bin/python -m assets.calculator.worker 5030        in a Python that has agentrl-worker
python -m assets.calculator.worker --tasks FOLDER                              in any Python: train.jsonl and eval.jsonl

Index k is a sum drawn by k. Indices from 0 are for training, those from `FIRST_EVAL` for evaluation; no sum of theirs is a
training one. The world computes, scores, and counts the calls: Tandem knows nothing of it but the protocol.
"""

import json
import random
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

NAME = "calculator"
TRAIN, EVAL, FIRST_EVAL = 600, 60, 100_000
TURNS = 4
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOL = {"type": "function", "function": {"name": NAME, "description": "", "parameters": PARAMETERS}}
_EXPRESSION = re.compile(r"\s*(\d{1,6})\s*([-+*])\s*(\d{1,6})\s*")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def sum_of(index: int) -> str:
    return _drawn(index, 0) if index >= FIRST_EVAL else next(s for s in _draws(index) if s not in _held_out())


def _draws(index: int) -> Any:
    return (_drawn(index, again) for again in range(1000))


@cache
def _held_out() -> frozenset[str]:
    return frozenset(_drawn(FIRST_EVAL + k, 0) for k in range(EVAL))


def _drawn(index: int, again: int) -> str:
    rng = random.Random(f"{index} {again}")
    return f"{rng.randint(2, 99)}{rng.choice('+-*')}{rng.randint(2, 99)}"


def computed(expression: str) -> str:
    found = _EXPRESSION.fullmatch(expression)
    if found is None:
        return f"malformed expression {expression[:40]}, use numbers with + - *"
    one, operator, other = int(found[1]), found[2], int(found[3])
    return str({"+": one + other, "-": one - other, "*": one * other}[operator])


def write_tasks(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, first, count in (("train", 0, TRAIN), ("eval", FIRST_EVAL, EVAL)):
        lines = (
            {
                "id": f"{NAME}-{index}",
                "query": f"What is {sum_of(index)}?",
                "source": NAME,
                "sampler": "environment",
                "metadata": {"environment": NAME, "index": index},
            }
            for index in range(first, first + count)
        )
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def main() -> None:
    if sys.argv[1] == "--tasks":
        return write_tasks(Path(sys.argv[2]))
    from agentrl.worker.task import Session, Task
    from agentrl.worker.typings import RewardHistoryItem, SampleStatus, TaskSampleExecutionResult

    from assets.calculator.controller import serve

    class Calculator(Task):
        def __init__(self) -> None:
            super().__init__(name=NAME, concurrency=64, tools=[TOOL], full_async=True)

        def get_indices(self) -> list[int]:
            return list(range(TRAIN))

        async def start_sample(self, index: int, session: Session) -> TaskSampleExecutionResult:
            calls = 0
            expression = sum_of(index)
            session.inject({"role": "user", "content": f"What is {expression}?"})
            for _ in range(TURNS):
                said = (await session.action()).messages[-1]
                if not said.get("tool_calls"):
                    answers = _ANSWER.findall(str(said.get("content")))
                    right = bool(answers) and answers[-1].strip() == computed(expression)
                    session.inject(RewardHistoryItem(reward=float(right), score=float(right), metrics={"calls": calls}))
                    return TaskSampleExecutionResult(status=SampleStatus.COMPLETED)
                for call in said["tool_calls"]:
                    calls += 1
                    arguments = json.loads(call["function"]["arguments"])
                    result = computed(str(arguments.get("expression", "")))
                    session.inject({"role": "tool", "tool_call_id": call["id"], "content": result})
            return TaskSampleExecutionResult(status=SampleStatus.TASK_LIMIT_REACHED)

    return serve(Calculator(), int(sys.argv[1]))


if __name__ == "__main__":
    main()
