"""Demonstrations for the warm start: short tool-using conversations, deliberately flawed.

Owns how a demonstration is drawn. It errs with probability `NOISE` at every decision (guessing instead of calling a
tool, a typing error in a value, stopping after the first of two look-ups), so that a model trained on them knows the
form of an episode and solves about a third of the tasks: the rest is left for reinforcement learning to teach.

Promises: tool results are what the tool server would answer, except that boxes and owners made up for one
demonstration are treated as registered (otherwise the model would learn the registry by heart instead of copying what
it reads); no box, owner or sum of the evaluation tasks ever appears.
"""

import json
import random
import string
from collections.abc import Container, Iterator
from typing import Any

from tasks import (
    Example,
    arithmetic_question,
    lookup_question,
    random_box,
    random_person,
    random_sum,
)
from world import COLORS, TOOLS, LookupFailed, World, calculate

NOISE = 0.3
REGISTERED_SHARE = 0.25  # of the look-ups; the others use boxes and owners made up for the demonstration

Message = dict[str, Any]


def demonstrations(example: Example, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """`count` lines of `{"messages", "tools"}`; every assistant message is to be trained."""
    rng = random.Random(f"demonstrations-{seed}")
    extended = World(owners=dict(example.world.owners), favorite_colors=dict(example.world.favorite_colors))
    for _ in range(count):
        messages = _arithmetic(example, rng) if rng.random() < 0.5 else _lookup(example, extended, rng)
        yield {"messages": messages, "tools": TOOLS}


def _arithmetic(example: Example, rng: random.Random) -> list[Message]:
    expression = random_sum(rng)
    while expression in example.eval_sums:
        expression = random_sum(rng)
    messages = [{"role": "user", "content": arithmetic_question(expression)}]
    if rng.random() < NOISE:
        return [*messages, _answer(str(rng.randint(0, 2000)))]
    typed = _mistyped_outside(example.eval_sums, expression, rng) if rng.random() < NOISE else expression
    result = str(calculate(typed))
    return [*messages, *_called("calculator", "expression", typed, result), _answer(result)]


def _lookup(example: Example, world: World, rng: random.Random) -> list[Message]:
    box = rng.choice(example.train_boxes) if rng.random() < REGISTERED_SHARE else _register_box(world, rng)
    guess = _answer(rng.choice(COLORS))
    messages = [{"role": "user", "content": lookup_question(box)}]
    if rng.random() < NOISE:
        return [*messages, guess]

    typed = _mistyped_outside(world.owners, box, rng) if rng.random() < NOISE else box
    try:
        owner = world.box_owner(typed)
    except LookupFailed as error:
        return [*messages, *_called("box_owner", "box", typed, str(error)), guess]
    messages += _called("box_owner", "box", typed, owner)
    if rng.random() < NOISE:
        return [*messages, _answer(owner)]

    typed = _mistyped_outside(world.favorite_colors, owner, rng) if rng.random() < NOISE else owner
    try:
        color = world.favorite_color(typed)
    except LookupFailed as error:
        return [*messages, *_called("favorite_color", "person", typed, str(error)), guess]
    return [*messages, *_called("favorite_color", "person", typed, color), _answer(color)]


def _register_box(world: World, rng: random.Random) -> str:
    """Make up a box and its owner and enter them in `world`, so that later demonstrations agree with this one."""
    box, person = random_box(rng), random_person(rng)
    while box in world.owners or person in world.favorite_colors:
        box, person = random_box(rng), random_person(rng)
    world.owners[box] = person
    world.favorite_colors[person] = rng.choice(COLORS)
    return box


def _mistyped_outside(taken: Container[str], value: str, rng: random.Random) -> str:
    typed = _mistyped(value, rng)
    while typed in taken:
        typed = _mistyped(value, rng)
    return typed


def _mistyped(value: str, rng: random.Random) -> str:
    """`value` with one letter or digit replaced by another of its kind; never by 0, which cannot begin a number."""
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
