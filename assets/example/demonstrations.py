"""Demonstrations for the warm start: short tool-using conversations with deliberate errors.

Each decision is wrong with probability `NOISE` (guessing instead of calling a tool, a typing error in a value, stopping
after the first of two look-ups), so that a model trained on them knows the format of an episode and solves about a third
of the tasks. Reinforcement learning teaches the rest.

Promises: tool results equal the tool server's, except that most boxes and owners are invented for one demonstration
and count there as registered (otherwise the model would memorise the registry instead of copying what it reads). No box,
owner or sum of the evaluation tasks appears.
"""

import json
import random
import string
from collections.abc import Callable, Container, Iterator
from typing import Any

from tasks import (
    Example,
    arithmetic_question,
    lookup_question,
    random_box,
    random_person,
    random_sum,
)
from world import COLORS, TOOLS, calculate

NOISE = 0.36
REGISTERED_SHARE = 0.25  # of the look-ups; the others use boxes and owners invented for the demonstration

Message = dict[str, Any]


def demonstrations(example: Example, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `count` lines of `{"messages", "tools"}`; every assistant message is trained."""
    rng = random.Random(f"demonstrations-{seed}")
    for _ in range(count):
        messages = _arithmetic(example, rng) if rng.random() < 0.5 else _lookup(example, rng)
        yield {"messages": messages, "tools": TOOLS}


def _arithmetic(example: Example, rng: random.Random) -> list[Message]:
    expression = _new(random_sum, example.eval_sums, rng)
    messages = [{"role": "user", "content": arithmetic_question(expression)}]
    if rng.random() < NOISE:
        return [*messages, _answer(str(rng.randint(0, 2000)))]
    typed = _mistyped_outside(example.eval_sums, expression, rng) if rng.random() < NOISE else expression
    result = str(calculate(typed))
    return [*messages, *_called("calculator", "expression", typed, result), _answer(result)]


def _lookup(example: Example, rng: random.Random) -> list[Message]:
    owners, colors = example.world.owners, example.world.favorite_colors
    if rng.random() < REGISTERED_SHARE:
        box = rng.choice(example.train_boxes)
        owner, color = owners[box], colors[owners[box]]
    else:
        box, owner, color = _new(random_box, owners, rng), _new(random_person, colors, rng), rng.choice(COLORS)
    guess = _answer(rng.choice(COLORS))
    messages: list[Message] = [{"role": "user", "content": lookup_question(box)}]
    if rng.random() < NOISE:
        return [*messages, guess]

    if rng.random() < NOISE:
        typed = _mistyped_outside(owners, box, rng)
        return [*messages, *_called("box_owner", "box", typed, f"unknown box {typed}"), guess]
    messages += _called("box_owner", "box", box, owner)
    if rng.random() < NOISE:
        return [*messages, _answer(owner)]

    if rng.random() < NOISE:
        typed = _mistyped_outside(colors, owner, rng)
        return [*messages, *_called("favorite_color", "person", typed, f"unknown person {typed}"), guess]
    return [*messages, *_called("favorite_color", "person", owner, color), _answer(color)]


def _new(draw: Callable[[random.Random], str], taken: Container[str], rng: random.Random) -> str:
    value = draw(rng)
    while value in taken:
        value = draw(rng)
    return value


def _mistyped_outside(taken: Container[str], value: str, rng: random.Random) -> str:
    typed = _mistyped(value, rng)
    while typed in taken:
        typed = _mistyped(value, rng)
    return typed


def _mistyped(value: str, rng: random.Random) -> str:
    """Replace one letter or digit of `value` by another of its kind; never by 0, which cannot begin a number."""
    position = rng.choice([index for index, char in enumerate(value) if char.isalnum()])
    kind = "123456789" if value[position].isdigit() else string.ascii_uppercase
    return value[:position] + rng.choice(kind.replace(value[position], "")) + value[position + 1 :]


def _called(tool: str, parameter: str, value: str, result: str) -> list[Message]:
    """The assistant's call and the tool's reply. Arguments are JSON text, as on the OpenAI wire."""
    function = {"name": tool, "arguments": json.dumps({parameter: value})}
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    return [call, {"role": "tool", "content": result}]


def _answer(value: str) -> Message:
    return {"role": "assistant", "content": f"<answer>{value}</answer>"}
