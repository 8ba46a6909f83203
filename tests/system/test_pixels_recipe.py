"""The recipe `pixels`: its rooms are those of the real world and held out, and who ignores the pictures seldom arrives."""

import base64
import itertools
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from assets.recipes.pixels import make
from assets.recipes.pixels.rooms import AHEAD, MOVES, RIGHT, Room
from assets.vision.untrained import write_untrained
from sampler.core.rendering.context import Context
from sampler.core.rendering.template import ChatTemplate
from shared.images.decode import decode
from tests.conftest import ROOT
from tests.sampler.environments.package_services import python_with
from trainer.sft.conversations import read_conversations, rendered

WALKS = 40
# In the Python of the worlds: writes the tasks, their rooms, and what the real world answers to the shortest ways.
PLAYED = f"""
import json, sys
from assets.recipes.pixels import make
make.NUM_WALKS = {WALKS}
make.main()
rooms = make.Rooms()
for split in ("train", "eval"):
    for line in open(f"{{sys.argv[1]}}/{{split}}.jsonl").read().splitlines():
        seed, ends = json.loads(line)["metadata"]["index"], []
        first = room = rooms.of(seed)
        if split == "eval":
            world = make.GymnasiumEnvironment(make.WORLD)
            world.start(seed, make.TASK)
            while not room.arrived:
                move = room.moves_nearer()[0]
                step, room = world.interact([{{"role": "assistant", "content": make.NAMES_OF_MOVES[move]}}]), room.moved(move)
                ends.append([step.status, step.reward])
            world.close()
        print(json.dumps([split, first.player, first.direction, first.target, first.kind, ends]))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tasks, and of what was played: `played.jsonl`."""
    folder = tmp_path_factory.mktemp("pixels")
    program = [python_with("minigrid"), "-c", PLAYED, str(folder)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "played.jsonl").write_text(done.stdout, encoding="utf-8")
    return folder


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rooms(written: Path, of_split: str) -> list[Room]:
    played = [line for line in lines(written / "played.jsonl") if line[0] == of_split]
    return [Room(tuple(player), direction, tuple(target), kind) for _, player, direction, target, kind, _ in played]  # type: ignore[arg-type]  # fields are pairs


def test_no_room_of_the_evaluation_is_trained_or_passed_in_the_warm_up(written: Path) -> None:
    held_out = {room.view() for room in rooms(written, "eval")}
    assert len(held_out) == len(lines(written / "eval.jsonl"))
    assert not held_out & {room.view() for room in rooms(written, "train")}
    seeds = {task["metadata"]["index"] for split in ("train", "eval") for task in lines(written / f"{split}.jsonl")}
    assert len(seeds) == len(lines(written / "played.jsonl"))


def test_a_walk_through_a_room_of_the_evaluation_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "RANDOM", 0.0)
    room, rng = Room((1, 1), 0, (4, 1)), random.Random(0)
    assert make.drawn_moves(room, set(), rng) == [AHEAD, AHEAD]
    assert make.drawn_moves(room, {room.moved(AHEAD).view()}, rng) == []
    assert make.drawn_moves(room, {room.moved(RIGHT).view()}, rng) == [AHEAD, AHEAD]


def test_a_share_of_the_warm_ups_moves_is_drawn_at_random() -> None:
    room, rng = Room((1, 1), 0, (4, 1)), random.Random(0)
    first = [make.drawn_moves(room, set(), rng)[0] == AHEAD for _ in range(2_000)]
    assert abs(sum(first) / len(first) - (1 - make.RANDOM * 2 / 3)) < 0.04


def test_the_shortest_ways_arrive_in_the_real_world(written: Path) -> None:
    played = [ends for split, *_, ends in lines(written / "played.jsonl") if split == "eval"]
    for room, ends in zip(rooms(written, "eval"), played, strict=True):
        statuses = [status for status, _ in ends]
        assert statuses == ["running"] * (room.distance() - 1) + ["completed"]
        assert [reward > 0 for _, reward in ends] == [False] * (room.distance() - 1) + [True]


def test_no_moves_that_ignore_the_pictures_arrive_in_a_third_of_the_rooms(written: Path) -> None:
    """All sequences of six moves: a player who sees nothing new draws one of them."""
    held_out = rooms(written, "eval")
    arrivals = {
        moves: sum(
            any(room.arrived for room in itertools.accumulate(moves, Room.moved, initial=room)) for room in held_out
        )
        for moves in itertools.product(MOVES, repeat=6)
    }
    assert len(arrivals) == 3**6
    assert max(arrivals.values()) < len(held_out) / 3
    assert all(room.distance() <= 5 for room in held_out), "who sees arrives"


def test_the_object_and_the_walls_stop_a_step_ahead() -> None:
    at_the_object, at_the_wall = Room((1, 1), 0, (2, 1)), Room((4, 1), 0, (2, 2))
    assert at_the_object.arrived
    assert not at_the_wall.arrived
    assert at_the_object.moved(AHEAD) == at_the_object
    assert at_the_wall.moved(AHEAD) == at_the_wall


@pytest.mark.parametrize(
    ("player", "direction", "view"),
    [
        ((1, 4), 3, ((3, 3), (2, 1), "red box")),
        ((1, 1), 0, ((3, 3), (2, 1), "red box")),
        ((1, 1), 1, ((3, 0), (2, -1), "red box")),
    ],
)
def test_a_view_is_the_same_whatever_the_direction(player: tuple[int, int], direction: int, view: Any) -> None:
    place = {3: (2, 2), 0: (3, 2), 1: (2, 3)}[direction]
    assert Room(player, direction, place, "red box").view() == view


def test_sampler_and_warm_up_write_the_same_prompt_of_16_tokens_a_picture(written: Path, tmp_path: Path) -> None:
    write_untrained(tmp_path, 0.3)
    processor = json.loads((tmp_path / "preprocessor_config.json").read_text(encoding="utf-8"))
    assert processor["image_mean"] == [0.3, 0.3, 0.3]
    walks = lines(written / "warmup.jsonl")
    assert len(walks) == WALKS
    walk = next(line["messages"] for line in walks if len(line["messages"]) >= 6)
    number = walks.index({"messages": walk})
    (text, image), *later = [message["content"] for message in walk if message["role"] == "user"]
    for block in (image, *itertools.chain(*later)):
        data = base64.b64decode(block["image_url"]["url"].partition(",")[2])
        assert decode(data, "picture").rgb_HW3.shape == (112, 112, 3)
    template = ChatTemplate.from_dir(tmp_path)
    assert template.images is not None
    context = Context(template)
    reference = {"type": "image", "sha256": "0" * 64, "height": 112, "width": 112}
    context.start([{"role": "user", "content": [text, reference]}])
    assert context.images[0].count == 16
    family = template.images.family
    demonstration = read_conversations(written / "warmup.jsonl")[number]
    prompt, reply = next(rendered(demonstration, AutoTokenizer.from_pretrained(tmp_path)))
    assert reply.removesuffix("<|im_end|>") == walk[1]["content"]
    assert list(context.ids) == template.encode(prompt.replace(family.image_token, family.tokens(112, 112)))
    assert len(template.encode(reply)) == 2, "a move and the end"
