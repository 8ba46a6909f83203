"""Agents of tasks with images, attempts with images at several gateways, and bodies with many screenshots."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from sampler.core.episode import images
from sampler.core.rendering.template import ChatTemplate
from sampler.gateway import app
from sampler.gateway.agent_sampler import AgentTask
from sampler.gateway.bodies import LEAST_BODY_BYTES, MAX_BODY_BYTES, most_body_bytes
from shared.documents.content import image_block
from shared.documents.images import ImageFile
from shared.documents.states import RecordStatus, Termination
from shared.store import Store
from tests.sampler.episodes import TEMPLATE
from tests.sampler.gateway.agents import ScriptedEngine, trained_ids
from tests.sampler.gateway.gateways import documents, gateway, tasks
from tests.sampler.gateway.test_image_requests import digest, in_chat
from tests.sampler.gateway.vision_agents import RecordingEngine, data_url, picture, seeing_template, seen_by
from tests.shared.builders import make_task

CHART = picture(7)


@pytest.fixture
def template(tmp_path: Path) -> ChatTemplate:
    return seeing_template(tmp_path / "model")


async def task_with_an_image(store: Store) -> None:
    file = ImageFile(digest(CHART), CHART, "PNG", 50, 40)
    await store.images.keep([file])
    blocks = [{"type": "text", "text": "What is it?"}, image_block(file)]
    task = make_task(0)
    payload = task.payload.model_copy(update={"query_blocks": blocks, "query": "What is it?", "answer": "4"})
    await store.tasks.insert_new([task.model_copy(update={"payload": payload})])


async def test_an_agent_reads_the_images_of_its_task_as_data_urls_and_sends_them_as_they_are(
    store: Store, template: ChatTemplate
) -> None:
    await task_with_an_image(store)
    engine = RecordingEngine(template, "<answer>4</answer>")
    read: list[Any] = []

    async def agent(task: AgentTask) -> None:
        read.append(task.messages[-1]["content"])
        async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
            await client.chat.completions.create(model=task.model, messages=task.messages)  # type: ignore[arg-type]  # dicts, of which the SDK has a type for each role

    record, slot, dispatches = await seen_by(store, engine, template, agent, new_tasks=False)
    assert record.error is None
    assert slot.score == 1.0
    shown = {"type": "image_url", "image_url": {"url": data_url(CHART)}}
    assert read == [[{"type": "text", "text": "What is it?"}, shown]]
    assert engine.files == [[CHART]]
    assert trained_ids(dispatches) == engine.exchanges


async def test_a_command_reads_the_images_in_its_task_file_and_a_line_in_its_prompt(
    store: Store, template: ChatTemplate, tmp_path: Path
) -> None:
    await task_with_an_image(store)
    script = tmp_path / "agent.py"
    script.write_text(
        "import json, os, sys, urllib.request\n"
        "prompt, task = sys.stdin.read(), json.load(open(os.environ['TANDEM_TASK_FILE']))\n"
        "assert prompt == task['prompt'], prompt\n"
        "assert prompt.endswith('What is it?\\n[image: in the task file]'), prompt\n"
        "body = json.dumps({'model': task['model'], 'messages': task['messages']}).encode()\n"
        "headers = {'Authorization': 'Bearer ' + os.environ['OPENAI_API_KEY'], 'Content-Type': 'application/json'}\n"
        "url = os.environ['OPENAI_BASE_URL'] + '/chat/completions'\n"
        "urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()\n"
    )
    engine = RecordingEngine(template, "<answer>4</answer>")
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}"

    record, slot, _ = await seen_by(store, engine, template, None, new_tasks=False, agent_command=command)
    assert record.error is None
    assert slot.score == 1.0
    assert engine.files == [[CHART]]


async def test_a_task_with_images_for_a_model_of_text_is_misconfigured(store: Store) -> None:
    await task_with_an_image(store)

    async def agent(task: AgentTask) -> None:
        raise AssertionError("it is not started")

    record, _, _ = await seen_by(store, ScriptedEngine([]), TEMPLATE, agent, new_tasks=False)
    assert record.termination == Termination.MISCONFIGURED
    assert "the model reads texts alone, and the task has images" in (record.error or "")


async def test_an_attempt_with_images_goes_on_at_another_gateway_with_the_same_ids(
    store: Store, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tasks(store)
    engine = RecordingEngine(template, "one", "two", "<answer>4</answer>")
    vision = {"model_name_or_path": template.folder}
    async with gateway(store, engine, **vision) as one, gateway(store, engine, **vision) as two:
        offer = await one.claim()
        history: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "look"}, in_chat(picture(1))]}]
        for at, process in enumerate((one, two, one)):
            reply = await process.sdk(offer["api_key"]).chat.completions.create(model="main", messages=history)
            history.append({"role": "assistant", "content": reply.choices[0].message.content})
            history.append({"role": "user", "content": [in_chat(picture(2 + at))]})
        done = (await two.finish(offer["api_key"])).json()
    assert (done["status"], done["score"]) == (RecordStatus.SCORED, 1.0)
    record, dispatches = await documents(store, offer["record"])
    assert trained_ids(dispatches) == engine.exchanges
    assert record.metrics == {"agent_first": 1, "agent_continued": 2}
    assert engine.files == [[picture(1)], [picture(1), picture(2)], [picture(1), picture(2), picture(3)]]
    assert await store.database["images"].count_documents({}) == 3


async def test_the_claim_of_a_task_with_images_has_them(store: Store, template: ChatTemplate) -> None:
    await task_with_an_image(store)
    engine = RecordingEngine(template, "<answer>4</answer>")
    async with gateway(store, engine, model_name_or_path=template.folder) as one:
        offer = await one.claim()
        sdk = one.sdk(offer["api_key"])
        await sdk.chat.completions.create(model=offer["model"], messages=offer["messages"])
        assert (await one.finish(offer["api_key"])).json()["score"] == 1.0
    assert engine.files == [[CHART]]


async def test_a_key_whose_attempt_has_ended_stores_no_images(store: Store, template: ChatTemplate) -> None:
    await tasks(store)
    vision = {"model_name_or_path": template.folder}
    engine = RecordingEngine(template, "<answer>4</answer>")
    async with gateway(store, engine, **vision) as one, gateway(store, engine, **vision) as two:
        offer = await one.claim()
        await one.finish(offer["api_key"], score=0.5)
        headers = {"x-api-key": offer["api_key"]}
        for process in (one, two):
            body = {"model": "main", "messages": [{"role": "user", "content": [in_chat(picture(1))]}]}
            assert (await process.http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 401
    assert await store.database["images"].count_documents({}) == 0


def test_a_body_of_a_model_that_sees_has_room_for_screenshots() -> None:
    assert most_body_bytes(32_768, sees=True) == MAX_BODY_BYTES > 50 * 100_000 * 4 / 3
    assert most_body_bytes(10) == LEAST_BODY_BYTES


async def test_fifty_screenshots_in_each_request_pass_and_their_body_is_freed_during_sampling(
    store: Store, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    shots = [picture(n, 180, 190) for n in range(50)]
    assert min(map(len, shots)) > 100_000
    engine = RecordingEngine(template, "one", "<answer>4</answer>")
    asked: list[str] = []

    async def agent(task: AgentTask) -> None:
        async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
            history: list[Any] = [{"role": "user", "content": list(map(in_chat, shots))}]
            for _ in range(2):
                reply = await client.chat.completions.create(model=task.model, messages=history)
                history.append({"role": "assistant", "content": reply.choices[0].message.content})
                history.append({"role": "user", "content": "go on"})

    request_of = app._request_of

    async def watched(*args: Any) -> Any:
        sent, request = await request_of(*args)
        asked.append(json.dumps([dict(one) for one in request.messages]))
        return sent, request

    monkeypatch.setattr(app, "_request_of", watched)
    record, _, dispatches = await seen_by(store, engine, template, agent, max_tokens=8000, max_prompt_tokens=8000)
    assert record.error is None
    assert trained_ids(dispatches) == engine.exchanges
    assert [len(files) for files in engine.files] == [50, 50]
    assert max(map(len, asked)) < 10_000


async def test_a_decoder_that_the_machine_stalls_is_no_fault_of_the_request(
    store: Store, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RecordingEngine(template, "<answer>4</answer>")
    times: list[int] = []

    async def agent(task: AgentTask) -> None:
        async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=2) as client:
            with monkeypatch.context() as patched:
                patched.setattr(images, "_decoded", _stalled(times))
                history: list[Any] = [{"role": "user", "content": [in_chat(picture(1))]}]
                await client.chat.completions.create(model=task.model, messages=history)

    record, _, _ = await seen_by(store, engine, template, agent)
    assert record.error is None
    assert record.termination == Termination.ANSWERED
    assert len(times) == 2


def _stalled(times: list[int]) -> Any:
    """The first decoding does not end; the client, which is told that it may ask again, does so."""
    decode = images._decoded

    def decoded(*args: Any) -> Any:
        times.append(1)
        if len(times) == 1:
            raise TimeoutError("image: not decoded within 300 s: the machine stalls")
        return decode(*args)

    return decoded
