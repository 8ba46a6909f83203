"""Episodes in worlds that show images: real services, a real store, and an engine that expands images as engines do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson
import numpy as np
import psutil
import pytest

from sampler.core.rendering.template import ChatTemplate
from sampler.core.settlement.groups import observation
from shared.documents.content import references_in, text_of
from shared.documents.states import SlotStatus
from shared.images.decode import decode
from shared.store import Store
from tests.sampler.environments.package_services import adapters
from tests.sampler.environments.pictures import SIDE, shade
from tests.sampler.environments.playing import one_episode, registered, task_of, worlds
from tests.sampler.environments.services import Service, service
from tests.sampler.environments.test_sampler import in_turn
from tests.sampler.episodes import ended
from tests.sampler.seeing import seeing_template, seen_worlds
from tests.shared.vision_models import VISION_FAMILIES

PICTURES = Path(__file__).parent / "pictures.py"


@pytest.fixture(scope="module")
def shared() -> Iterator[Service]:
    kinds = f"looking={PICTURES}:Looking,table={PICTURES}:Table"
    with service("--workers", "1", "--environments", kinds) as found:
        yield found


@pytest.fixture(scope="module", params=VISION_FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    return seeing_template(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    return seeing_template(tmp_path_factory.mktemp("model"))


async def begun(store: Store, shared: Service, index: int = 1, **custom: Any) -> None:
    await registered(store, shared.url, "looking", "table")
    await store.tasks.insert_new([task_of(store, 0, "looking", index, custom_task=custom)])


def require_shades(files: list[bytes], *numbers: int) -> None:
    expected = [np.repeat(np.array(shade(number), np.uint8)[..., None], 3, -1) for number in numbers]
    assert len(files) == len(expected)
    for file, rgb in zip(files, expected, strict=True):
        assert np.array_equal(decode(file, "image").rgb_HW3, rgb)


async def test_the_engine_reads_the_worlds_images_and_the_documents_name_them(
    store: Store, shared: Service, family: ChatTemplate
) -> None:
    await begun(store, shared)
    async with seen_worlds(store, family, in_turn("more", "more", "end")) as (resources, engine):
        sampler, score = await one_episode(store, resources)
        record, _, dispatches = await ended(store, sampler)
    assert (score, record.termination) == (1.0, "answered")
    require_shades(engine.files(0), 1)
    require_shades(engine.files(2), 1, 2, 3)
    assert [len(one.images) for one in dispatches] == [1, 1, 1], "each request has the images that are new"
    assert [text_of(one.messages[-1]["content"]) for one in dispatches] == ["Look:", "turn 1", "turn 2"]
    assert "base64" not in str([one.messages for one in dispatches])
    digests = [block["sha256"] for one in dispatches for block in references_in(one.messages)]
    assert [one.images[0].sha256 for one in dispatches] == digests
    require_shades([await store.images.read(digest) for digest in digests], 1, 2, 3)
    assert references_in(dispatches[0].messages)[0]["width"] == SIDE


async def test_a_group_in_one_world_stores_its_image_once(
    store: Store, shared: Service, template: ChatTemplate
) -> None:
    await registered(store, shared.url, "looking")
    await store.tasks.insert_new([task_of(store, 0, "looking", 1, num_generations=3)])
    async with seen_worlds(store, template, in_turn("end")) as (resources, _):
        for _ in range(3):
            await one_episode(store, resources)
    assert await store.database["images"].count_documents({}) == 1


async def test_turns_are_of_one_state_where_their_images_are_equal(
    store: Store, shared: Service, template: ChatTemplate
) -> None:
    """As GiGPO compares them: the text is the same in all of them."""
    await registered(store, shared.url, "looking")
    await store.tasks.insert_new([task_of(store, seq, "looking", index) for seq, index in enumerate((1, 2, 1))])
    states = {}
    async with seen_worlds(store, template, in_turn("end")) as (resources, _):
        for _ in range(3):
            sampler, _ = await one_episode(store, resources)
            (dispatch,) = (await ended(store, sampler))[2]
            states[sampler.task.id] = observation(dispatch)
    first, second, third = (states[f"main:train:0:t{seq}"] for seq in range(3))
    assert first == third != second


async def test_fifty_frames_cost_the_service_no_memory_and_the_documents_a_reference_each(
    store: Store, template: ChatTemplate
) -> None:
    world = "Frames=tests.sampler.environments.registered:Frames-v0"
    with adapters("gymnasium", world) as service:
        await registered(store, service.url, "Frames")
        await store.tasks.insert_new([task_of(store, 0, "Frames", max_turns=60)])
        processes = [psutil.Process(service.process.pid), *psutil.Process(service.process.pid).children(recursive=True)]
        warm, _ = service.start("Frames")
        service.say(warm, "1")
        before = sum(process.memory_info().rss for process in processes)
        async with seen_worlds(store, template, in_turn("1"), max_tokens=1 << 16) as (resources, engine):
            sampler, score = await one_episode(store, resources)
            _, _, dispatches = await ended(store, sampler)
        more = sum(process.memory_info().rss for process in processes) - before
    assert score == 50.0
    assert len(engine.files(49)) == 50
    assert more < 20 << 20, "all frames have 5 MB, and 13 MB as a request has them"
    images = [image async for image in store.database["images"].find({}, {"num_bytes": 1})]
    assert len(images) == 50, "the end has no message for the model"
    assert 4_500_000 < sum(image["num_bytes"] for image in images) < 5_500_000
    assert max(len(bson.encode({"messages": one.messages})) for one in dispatches) < 1_000


async def test_a_tools_answer_has_images_in_the_conversation_and_in_the_record(
    store: Store, shared: Service, template: ChatTemplate
) -> None:
    await begun(store, shared, tools=True)
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    async with seen_worlds(store, template, in_turn(call, "end")) as (resources, engine):
        sampler, score = await one_episode(store, resources)
        _, _, dispatches = await ended(store, sampler)
    assert score == 1.0
    require_shades(engine.files(1), 1, 2)
    (called,) = dispatches[0].tool_calls
    assert called.result == "The page:\n3 links"
    assert [block["type"] for block in called.blocks] == ["text", "image", "text"]
    assert called.blocks[1] == references_in(dispatches[1].messages)[0]


async def test_a_whole_history_with_images_keeps_the_sampled_tokens(
    store: Store, shared: Service, template: ChatTemplate
) -> None:
    await begun(store, shared, restarts=True)
    async with seen_worlds(store, template, in_turn("more", "restart", "end")) as (resources, engine):
        sampler, score = await one_episode(store, resources)
        _, _, dispatches = await ended(store, sampler)
    assert score == 1.0
    require_shades(engine.files(2), 1, 2, 3)
    assert dispatches[2].shared_length > dispatches[1].images[0].first, "what is equal is shared, images too"
    assert await store.database["images"].count_documents({}) == 3


async def test_an_image_that_cannot_be_decoded_fails_the_episode_once(
    store: Store, shared: Service, template: ChatTemplate
) -> None:
    await begun(store, shared)
    async with seen_worlds(store, template, in_turn("broken"), max_failures=8) as (resources, _):
        sampler, score = await one_episode(store, resources)
        record, slot, _ = await ended(store, sampler)
    assert (score, record.termination) == (None, "environment_failure")
    assert (slot.status, slot.failures) == (SlotStatus.FAILED, 1), "seven more tries could not help"
    assert record.error is not None
    assert (
        "environment looking shows an image that cannot be read: message 1, block 1: PNG that cannot be decoded"
        in record.error
    )


@pytest.mark.parametrize("silent", [False, True])
async def test_a_model_of_text_is_refused_with_a_sentence_and_stores_nothing(
    store: Store, shared: Service, silent: bool
) -> None:
    await begun(store, shared, silent=silent)
    async with worlds(store, in_turn("end"), max_failures=8) as (resources, engine):
        sampler, score = await one_episode(store, resources)
        record, slot, _ = await ended(store, sampler)
    assert (score, slot.failures, engine.prompts) == (None, 1, {})
    assert record.error is not None
    assert (
        "environment looking shows images, and the model reads texts alone; expected a model that reads" in record.error
    )
    assert await store.database["images"].count_documents({}) == 0
