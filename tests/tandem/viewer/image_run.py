"""A group of two episodes with images, written by the store's verbs: a question, a tool and observations.

turn 0   1 2 [9 9 60 9 9] 3 | 4 5        the question's PNG: four placeholders, with a mark between them
turn 1   6 [8 8 8] 7 | 4 5               the tool's JPEG; in the second episode a WebP of as many tokens
turn 2   6 [8 8] [8 8] [9 9] 7 | 4 5     observations: GIF, WebP, BMP
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pymongo
import pytest

from shared.documents import Claim, DispatchedSamplingTask, SampledResponse, TaskPayload, ToolCallResult
from shared.documents.content import Block, image_block
from shared.documents.images import ImageFile, PlacedImage
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.states import DispatchStatus, RecordStatus, Termination
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.sampler.settlement_cases import make_config
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, make_task
from tests.shared.episodes import announce, train
from tests.shared.image_files import image_file, valid

GROUP = "main:train:0:t0"
FIRST, SECOND = f"{GROUP}:0:1", f"{GROUP}:1:1"
QUESTION = "What is on the page?"
RUN = "pictures"


def file_of(kind: str, data: bytes | None = None, width: int = 37, height: int = 23) -> ImageFile:
    return image_file(valid(kind) if data is None else data)._replace(format=kind, width=width, height=height)


FILES = {kind: file_of(kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP")}


@dataclass(frozen=True)
class ImageTurn:
    """A turn: its messages, its own prompt, and the images in it by their first token and their count."""

    messages: list[dict[str, Any]]
    prompt: list[int]
    images: Sequence[tuple[ImageFile, int, int]]
    calls: Sequence[ToolCallResult] = ()


def blocks(*parts: str | ImageFile) -> list[Block]:
    return [{"type": "text", "text": one} if isinstance(one, str) else image_block(one) for one in parts]


async def insert_image_run(store: Store, *, screenshots: Sequence[ImageFile] = ()) -> None:
    """`screenshots`: that the first episode sees in further turns, one in each."""
    await store.images.keep([*FILES.values(), *screenshots])
    payload = TaskPayload(query=QUESTION, query_blocks=blocks(QUESTION, FILES["PNG"]), answer="4", scorer="math")
    await store.tasks.insert_new([make_task(0).model_copy(update={"payload": payload})])
    await announce(store, 0)
    for slot in (0, 1):
        held = await claim(store)
        await _play(store, held, _turns(FILES["WEBP" if slot else "JPEG"], () if slot else screenshots), float(slot))
    config = make_config({})
    while await settle_next(store, "w", config) is not None:
        continue
    await train(store, 1, 1)
    await announce(store, 1)


def _turns(shown: ImageFile, screenshots: Sequence[ImageFile]) -> list[ImageTurn]:
    answer = blocks("The page:", shown, "3 links")
    call = ToolCallResult(
        id="c0", name="browse", arguments={"url": "a"}, result="The page:\n3 links", is_error=False, duration_s=0.25
    ).model_copy(update={"blocks": answer})
    gif, webp, bmp = FILES["GIF"], FILES["WEBP"], FILES["BMP"]
    first = ImageTurn(
        [{"role": "user", "content": blocks(QUESTION, FILES["PNG"])}],
        [1, 2, 9, 9, 60, 9, 9, 3],
        [(FILES["PNG"], 2, 4)],
        [call],
    )
    second = ImageTurn([{"role": "tool", "tool_call_id": "c0", "content": answer}], [6, 8, 8, 8, 7], [(shown, 1, 3)])
    third = ImageTurn(
        [{"role": "user", "content": blocks("seen", gif, webp, bmp)}],
        [6, 8, 8, 8, 8, 9, 9, 7],
        [(gif, 1, 2), (webp, 3, 2), (bmp, 5, 2)],
    )
    later = [
        ImageTurn([{"role": "user", "content": blocks(f"page {at}", file)}], [6, *[9] * 100, 7], [(file, 1, 100)])
        for at, file in enumerate(screenshots)
    ]
    return [first, second, third, *later]


async def _play(store: Store, held: Claim, turns: Sequence[ImageTurn], score: float) -> None:
    record = await store.records.start(held, "w")
    dispatches: list[DispatchedSamplingTask] = []
    shared = 0
    for number, turn in enumerate(turns):
        dispatches.append(_dispatch(record.id, number, shared, turn))
        shared += len(turn.prompt) + 2
        await store.records.open_dispatch(dispatches[-1])
        await store.records.close_dispatches([dispatches[-1]])
    values: dict[str, Any] = {
        "traj": [one.id for one in dispatches],
        "num_turns": len(dispatches),
        "num_tokens": 2 * len(dispatches),
        "termination": Termination.ANSWERED.value,
        "policy_versions": [0],
        "score": score,
    }
    await store.records.move(record.id, RecordStatus.SCORED, values)
    await store.tasks.finish_slot(held, score)


def _dispatch(record: str, number: int, shared: int, turn: ImageTurn) -> DispatchedSamplingTask:
    return DispatchedSamplingTask(
        id=f"{record}:{number}",
        record=record,
        turn=number,
        parent=f"{record}:{number - 1}" if number else None,
        shared_length=shared,
        prompt_ids=pack_ints(turn.prompt),
        images=[PlacedImage(sha256=file.sha256, first=first, count=count) for file, first, count in turn.images],
        messages=turn.messages,
        tools_hash="",
        sampling_params={"temperature": 1.0},
        response=SampledResponse(
            text=f"reply {number}",
            message={"role": "assistant"},
            output_ids=pack_ints([4, 5]),
            output_logprobs=pack_floats([-0.5, -0.25]),
            finish_reason="stop",
        ),
        weight_versions=[(0, 2)],
        tool_calls=list(turn.calls),
        status=DispatchStatus.COMPLETED,
    )


@pytest.fixture(scope="module")
def run(mongod: Mongod) -> Iterator[str]:
    async def play() -> None:
        async with Store.open(mongod.connection_string, RUN) as store:
            await insert_image_run(store)

    asyncio.run(play())
    yield RUN
    with pymongo.MongoClient(mongod.connection_string) as client:
        client.drop_database(RUN)


def address(sha256: str, run: str = RUN) -> str:
    return f"/runs/{run}/images/{sha256}"
