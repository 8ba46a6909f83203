"""The bundled example's tasks: sums for the calculator, and two-hop look-ups in a registry of boxes and owners.

Samples the registry, the training tasks and the evaluation tasks.
Promise: the same seed gives the same world and the same tasks; no evaluation box, owner or sum occurs in training.
"""

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

from world import COLORS, World, calculate

NUM_TRAIN_PER_FAMILY = 1_200
NUM_EVAL_PER_FAMILY = 100
NUM_MIX_TRAIN, NUM_MIX_EVAL = 200, 40  # of each source of the mixture


@dataclass(frozen=True)
class Example:
    """The world with its tasks; `eval_boxes`, `eval_owners` and `eval_sums` must not occur in training texts."""

    world: World
    train: list[dict[str, str]]
    eval: list[dict[str, str]]
    train_boxes: list[str]
    eval_boxes: frozenset[str]
    eval_owners: frozenset[str]
    eval_sums: frozenset[str]


def build_example(seed: int) -> Example:
    rng = random.Random(seed)
    boxes = _distinct(NUM_TRAIN_PER_FAMILY + NUM_EVAL_PER_FAMILY, random_box, rng)
    people = _distinct(len(boxes), random_person, rng)
    sums = _distinct(NUM_TRAIN_PER_FAMILY + NUM_EVAL_PER_FAMILY, random_sum, rng)
    world = World(
        owners=dict(zip(boxes, people, strict=True)),
        favorite_colors={person: rng.choice(COLORS) for person in people},
    )
    eval_boxes, train_boxes = boxes[:NUM_EVAL_PER_FAMILY], boxes[NUM_EVAL_PER_FAMILY:]
    eval_sums, train_sums = sums[:NUM_EVAL_PER_FAMILY], sums[NUM_EVAL_PER_FAMILY:]
    return Example(
        world=world,
        train=_shuffled_tasks(world, train_sums, train_boxes, "", rng),
        eval=_shuffled_tasks(world, eval_sums, eval_boxes, "eval-", rng),
        train_boxes=train_boxes,
        eval_boxes=frozenset(eval_boxes),
        eval_owners=frozenset(world.owners[box] for box in eval_boxes),
        eval_sums=frozenset(eval_sums),
    )


def _shuffled_tasks(
    world: World, sums: list[str], boxes: list[str], id_part: str, rng: random.Random
) -> list[dict[str, str]]:
    tasks = [
        {
            "id": f"arith-{id_part}{number:05d}",
            "query": arithmetic_question(expression),
            "answer": str(calculate(expression)),
            "scorer": "math",
            "answer_schema": "answer",
            "source": "arithmetic",
        }
        for number, expression in enumerate(sums)
    ]
    tasks += [
        {
            "id": f"lookup-{id_part}{number:05d}",
            "query": lookup_question(box),
            "answer": world.favorite_color(world.box_owner(box)),
            "scorer": "exact_match",
            "answer_schema": "answer",
            "source": "lookup",
        }
        for number, box in enumerate(boxes)
    ]
    rng.shuffle(tasks)
    return tasks


def mixture(example: Example) -> dict[str, list[dict[str, str]]]:
    """{file name: tasks}: the two families separately, and a third with one look-up. The mixture sets scorer and tools."""
    files: dict[str, list[dict[str, str]]] = {}
    for prefix, tasks, count in (("", example.train, NUM_MIX_TRAIN), ("eval_", example.eval, NUM_MIX_EVAL)):
        for name, source in (("sums", "arithmetic"), ("boxes", "lookup")):
            family = [task for task in tasks if task["source"] == source][:count]
            files[f"{prefix}{name}"] = [{key: task[key] for key in ("id", "query", "answer")} for task in family]
        boxes = [task["query"].removesuffix(" like?")[-4:] for task in files[f"{prefix}boxes"]]
        files[f"{prefix}colors"] = [
            {
                "id": f"color-{prefix.replace('_', '-')}{number:05d}",
                "query": color_question(example.world.box_owner(box)),
                "answer": example.world.favorite_color(example.world.box_owner(box)),
            }
            for number, box in enumerate(boxes)
        ]
    return files


def arithmetic_question(expression: str) -> str:
    return f"What is {expression}?"


def lookup_question(box: str) -> str:
    return f"Which color does the owner of box {box} like?"


def color_question(person: str) -> str:
    return f"Which color does {person} like?"


def random_sum(rng: random.Random) -> str:
    """Two operands from 2 to 99, nine in ten of them with two digits."""
    return f"{rng.randint(2, 99)}{rng.choice('+-*')}{rng.randint(2, 99)}"


def random_box(rng: random.Random) -> str:
    """Two capitals and two digits: 67,600 names."""
    return "".join(rng.choices(string.ascii_uppercase, k=2)) + f"{rng.randrange(100):02d}"


def random_person(rng: random.Random) -> str:
    """Four capitals: 456,976 codes."""
    return "".join(rng.choices(string.ascii_uppercase, k=4))


def _distinct(count: int, draw: Callable[[random.Random], str], rng: random.Random) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found.setdefault(draw(rng))
    return list(found)
