"""Agents send images in four dialects: each is stored once, and the engine reads what is stored."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from sampler.core.episode.episode import play
from sampler.core.rendering.template import ChatTemplate
from sampler.gateway.agent_sampler import AgentSampler, AgentTask
from sampler.gateway.anthropic_request import read_messages
from sampler.gateway.chat_request import read_chat
from sampler.gateway.exchange import ChatRequest, GatewayError
from sampler.gateway.google_request import read_google
from sampler.gateway.image_parts import SentImage
from sampler.gateway.responses_request import read_responses
from shared.store import Store
from tests.sampler.episodes import TEMPLATE, ended, resources
from tests.sampler.gateway import agents
from tests.sampler.gateway.agents import ADD, Ended, call
from tests.sampler.seeing_engine import SeeingEngine, reply_ids, with_template
from tests.sampler.vision_chats import vision_template
from tests.shared.builders import claim, make_task
from tests.shared.image_files import image_file, painted, saved, valid

DATA = base64.b64encode(valid("PNG")).decode()
URL = f"data:image/png;base64,{DATA}"
OTHER = base64.b64encode(saved(painted("RGB", 50, 40), "JPEG")).decode()


def chat_of(*parts: Any) -> ChatRequest:
    return read_chat({"model": "main", "messages": [{"role": "user", "content": list(parts)}]})


def responses_of(*parts: Any) -> ChatRequest:
    return read_responses({"model": "main", "input": [{"role": "user", "content": list(parts)}]})


def messages_of(*parts: Any) -> ChatRequest:
    return read_messages({"model": "main", "max_tokens": 9, "messages": [{"role": "user", "content": list(parts)}]})


def google_of(*parts: Any) -> ChatRequest:
    return read_google({"contents": [{"role": "user", "parts": list(parts)}]}, "main", stream=False)


SOURCE = {"type": "base64", "media_type": "image/png", "data": DATA}
FORMS: list[tuple[Callable[..., ChatRequest], Any, Any, str]] = [
    (
        chat_of,
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": URL, "detail": "auto"}},
        "messages[0].content[1]",
    ),
    (chat_of, {"type": "text", "text": "a"}, {"type": "image_url", "image_url": URL}, "messages[0].content[1]"),
    (
        responses_of,
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": URL},
        "input[0].content[1]",
    ),
    (messages_of, {"type": "text", "text": "a"}, {"type": "image", "source": SOURCE}, "messages[0].content[1]"),
    (google_of, {"text": "a"}, {"inlineData": {"mimeType": "image/png", "data": DATA}}, "contents[0].parts[1]"),
    (google_of, {"text": "a"}, {"inline_data": {"mime_type": "image/png", "data": DATA}}, "contents[0].parts[1]"),
]


@pytest.mark.parametrize(("request_of", "text", "image", "path"), FORMS)
def test_parts_stand_in_order_and_texts_that_follow_each_other_are_one(
    request_of: Callable[..., ChatRequest], text: Any, image: Any, path: str
) -> None:
    read = request_of(text, image, text, text)
    sent = SentImage(path, DATA)
    assert read.messages == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, sent, {"type": "text", "text": "a\na"}]}
    ]
    assert read.unused == {}
    assert request_of(text, text).messages == [{"role": "user", "content": "a\na"}], "texts alone are a text"


@pytest.mark.parametrize(
    ("request_of", "image", "message"),
    [
        (
            chat_of,
            {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}},
            r"content\[0\].image_url.url is .*data: URL",
        ),
        (
            chat_of,
            {"type": "image_url", "image_url": {"url": "data:image/png,abc"}},
            "expected a data: URL with base64",
        ),
        (chat_of, {"type": "image_url", "image_url": {}}, "image_url.url is missing"),
        (chat_of, {"type": "input_audio", "input_audio": {}}, "only text and images are supported"),
        (responses_of, {"type": "input_image", "file_id": "f"}, "file_id names a file"),
        (
            messages_of,
            {"type": "image", "source": {"type": "url", "url": "http://a"}},
            "source.type is 'url'; expected base64",
        ),
        (messages_of, {"type": "image", "source": {"type": "file", "file_id": "f"}}, "source.type is 'file'"),
        (messages_of, {"type": "document", "source": SOURCE}, "only text and images are supported"),
        (google_of, {"fileData": {"fileUri": "gs://a"}}, "'fileData'; only text, images"),
        (google_of, {"inlineData": {"mimeType": "audio/wav", "data": "x"}}, "mimeType is 'audio/wav'"),
    ],
)
def test_what_is_not_in_the_request_is_refused(
    request_of: Callable[..., ChatRequest], image: Any, message: str
) -> None:
    with pytest.raises(GatewayError, match=message):
        request_of(image)


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_images_of_instructions_and_replies_are_refused(role: str) -> None:
    with pytest.raises(GatewayError, match="only text and images are supported"):
        read_chat(
            {
                "model": "main",
                "messages": [
                    {"role": role, "content": [{"type": "image_url", "image_url": {"url": URL}}]},
                    {"role": "user", "content": "x"},
                ],
            }
        )


# ---------------------------------------------------------------------- whole conversations


async def by_openai(task: AgentTask) -> None:
    """The usual loop: the whole history each time, a tool's result with an image."""
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
        shown = {"type": "image_url", "image_url": {"url": URL}}
        messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "look"}, shown]}]
        first = await client.chat.completions.create(model=task.model, messages=messages, tools=[ADD])
        [asked] = first.choices[0].message.tool_calls or []
        result = [
            {"type": "text", "text": "3"},
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{OTHER}"}},
        ]
        messages += [
            first.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": asked.id, "content": result},
        ]
        last = await client.chat.completions.create(model=task.model, messages=messages, tools=[ADD])
        assert last.choices[0].message.content == "<answer>4</answer>"


async def by_responses(task: AgentTask) -> None:
    tool = {"type": "function", **ADD["function"]}
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
        shown = {"type": "input_image", "image_url": URL}
        items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "look"}, shown]}]
        first = await client.responses.create(model=task.model, input=items, tools=[tool])
        items += [item.model_dump(exclude_none=True) for item in first.output]
        output = [
            {"type": "input_text", "text": "3"},
            {"type": "input_image", "image_url": f"data:image/jpeg;base64,{OTHER}"},
        ]
        items.append({"type": "function_call_output", "call_id": items[-1]["call_id"], "output": output})
        last = await client.responses.create(model=task.model, input=items, tools=[tool])
        assert last.output_text == "<answer>4</answer>"


async def by_anthropic(task: AgentTask) -> None:
    tool = {"name": "add", "input_schema": ADD["function"]["parameters"], "description": "Add two numbers."}
    async with anthropic.AsyncAnthropic(base_url=task.url, api_key=task.api_key, max_retries=0) as client:
        messages: list[Any] = [
            {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image", "source": SOURCE}]}
        ]
        counted = await client.messages.count_tokens(model=task.model, messages=messages, tools=[tool])
        first = await client.messages.create(model=task.model, messages=messages, tools=[tool], max_tokens=99)
        assert first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0) == counted.input_tokens
        source = {"type": "base64", "media_type": "image/jpeg", "data": OTHER}
        result = [{"type": "text", "text": "3"}, {"type": "image", "source": source}]
        messages += [
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": first.content[-1].id, "content": result}],
            },
        ]
        last = await client.messages.create(model=task.model, messages=messages, tools=[tool], max_tokens=99)
        assert last.content[-1].text == "<answer>4</answer>"


async def by_google(task: AgentTask) -> None:
    """As the requests of google-genai are."""
    path = f"{task.url}/v1beta/models/{task.model}:generateContent"
    declared = {"name": "add", "parametersJsonSchema": ADD["function"]["parameters"]}
    shown = {"inlineData": {"mimeType": "image/png", "data": DATA}}
    contents: list[Any] = [{"role": "user", "parts": [{"text": "look"}, shown]}]
    async with httpx.AsyncClient(headers={"x-goog-api-key": task.api_key}, timeout=60) as client:

        async def content() -> dict[str, Any]:
            body = {"contents": contents, "tools": [{"functionDeclarations": [declared]}]}
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()["candidates"][0]["content"]
            return found

        first = await content()
        asked = next(part["functionCall"] for part in first["parts"] if "functionCall" in part)
        part = {"inlineData": {"mimeType": "image/jpeg", "data": OTHER}}
        response = {"name": "add", "id": asked.get("id"), "response": {"result": "3"}, "parts": [part]}
        contents += [first, {"role": "user", "parts": [{"functionResponse": response}]}]
        last = await content()
        assert last["parts"][-1]["text"] == "<answer>4</answer>"


@pytest.fixture
def template(tmp_path: Path) -> ChatTemplate:
    return vision_template(tmp_path / "model", "qwen2_5_vl", published=False)


@pytest.mark.parametrize("agent", [by_openai, by_responses, by_anthropic, by_google])
async def test_a_conversation_with_images_is_one_thread_of_stored_references(
    store: Store, template: ChatTemplate, agent: Any
) -> None:
    replies = [reply_ids(template, text) for text in (call("add", a=1, b=2), "<answer>4</answer>")]
    record, slot, dispatches = await episode(store, agent, template, *replies)
    assert record.error is None
    assert slot.score == 1.0
    first, second = dispatches
    assert second.parent == first.id
    assert [len(one.images) for one in dispatches] == [1, 1]
    assert [message["role"] for message in second.messages] == ["tool"]
    assert [block["type"] for block in second.messages[0]["content"]] == ["text", "image"]
    [result] = first.tool_calls
    assert (result.result, result.blocks) == ("3", second.messages[0]["content"])
    assert DATA not in str([one.model_dump() for one in dispatches])
    assert await store.database["images"].count_documents({}) == 2


SVG = "data:image/svg+xml;base64," + base64.b64encode(b"<svg onload='x'/>").decode()


@pytest.mark.parametrize(
    ("sees", "url", "why"),
    [
        (True, "data:image/png;base64,%%%", r"messages\[0\].content\[0\]: no base64"),
        (True, SVG, r"messages\[0\].content\[0\]: .*expected"),
        (True, "data:image/png;base64,", r"messages\[0\].content\[0\]"),
        (False, URL, r"messages\[0\].content\[0\]: an image, and the model reads texts alone"),
    ],
)
async def test_an_image_that_cannot_be_read_is_a_400_and_the_episode_goes_on(
    store: Store, template: ChatTemplate, sees: bool, url: str, why: str
) -> None:
    chosen = template if sees else TEMPLATE

    async def agent(task: AgentTask) -> None:
        async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
            shown: Any = [{"type": "image_url", "image_url": {"url": url}}]
            with pytest.raises(openai.BadRequestError, match=why):
                await client.chat.completions.create(model=task.model, messages=[{"role": "user", "content": shown}])
            last = await client.chat.completions.create(
                model=task.model, messages=[{"role": "user", "content": "now?"}]
            )
            assert last.choices[0].message.content == "<answer>4</answer>"

    record, slot, dispatches = await episode(store, agent, chosen, reply_ids(chosen, "<answer>4</answer>"))
    assert record.error is None
    assert slot.score == 1.0
    assert len(dispatches) == 1


async def test_an_agent_is_given_the_querys_image_in_a_form_that_it_can_send(
    store: Store, template: ChatTemplate
) -> None:
    data = valid("PNG")
    await store.images.keep([image_file(data)])
    block = await store.images.described(image_file(data).sha256)
    blocks = [{"type": "text", "text": "look"}, block]

    async def agent(task: AgentTask) -> None:
        assert task.messages[-1]["content"][1] == {"type": "image_url", "image_url": {"url": URL}}
        async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
            await client.chat.completions.create(model=task.model, messages=task.messages)

    _, slot, [dispatch] = await episode(
        store, agent, template, reply_ids(template, "<answer>4</answer>"), query_blocks=blocks
    )
    assert slot.score == 1.0
    assert dispatch.messages[-1]["content"][1]["sha256"] == dispatch.images[0].sha256 == block["sha256"]


async def episode(store: Store, agent: Any, template: ChatTemplate, *replies: list[int], **payload: Any) -> Ended:
    """Raises what the agent asserts."""
    failed: list[AssertionError] = []
    agents.agent_function = agents._watched(agent, failed)
    task = make_task(0, num_generations=1)
    await store.tasks.insert_new([task.model_copy(update={"payload": task.payload.model_copy(update=payload)})])
    options = {"sampler": "sampler.gateway.agent_sampler:AgentSampler", "agent": f"{agents.__name__}:the_agent"}
    async with resources(store, SeeingEngine(template, *replies), max_turns=9, **options) as shared:
        sampler = AgentSampler(with_template(shared, template), await claim(store))
        await play(sampler)
        if failed:
            raise failed[0]
        return await ended(store, sampler)
