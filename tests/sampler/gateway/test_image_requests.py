"""Agents send images, in every dialect: each becomes a reference, and what is trained is what the engine read."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from sampler.core.rendering.template import ChatTemplate
from sampler.gateway.agent_sampler import AgentTask
from shared.documents.states import RecordStatus, Termination
from shared.store import Store
from tests.sampler.episodes import TEMPLATE
from tests.sampler.gateway.agents import ADD, ScriptedEngine, call, played, trained_ids
from tests.sampler.gateway.vision_agents import SeeingEngine, data_url, picture, seeing_template, seen_by, text64

QUESTION, SHOWN, LAST = picture(1), picture(2), picture(3)
PATIENCE_S = 120.0
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
GOOGLE = "/v1beta/models/main:generateContent"
PATHS = (CHAT, RESPONSES, MESSAGES, GOOGLE)
Body = dict[str, Any]


@pytest.fixture
def template(tmp_path: Path) -> ChatTemplate:
    return seeing_template(tmp_path / "model")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def in_chat(data: bytes) -> Body:
    return {"type": "image_url", "image_url": {"url": data_url(data), "detail": "auto"}}


def in_items(data: bytes) -> Body:
    return {"type": "input_image", "image_url": data_url(data), "detail": "auto"}


def in_messages(data: bytes) -> Body:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": text64(data)}}


def in_google(data: bytes) -> Body:
    return {
        "inlineData": {"mimeType": "image/png", "data": text64(data).replace("+", "-").replace("/", "_").rstrip("=")}
    }


def asking(path: str, *parts: Any) -> Body:
    """A request with one message of these parts: texts and images."""
    if path == CHAT:
        content = [{"type": "text", "text": one} if isinstance(one, str) else one for one in parts]
        return {"model": "main", "messages": [{"role": "user", "content": content}]}
    if path == RESPONSES:
        content = [{"type": "input_text", "text": one} if isinstance(one, str) else one for one in parts]
        return {"model": "main", "input": [{"role": "user", "content": content}]}
    if path == MESSAGES:
        content = [{"type": "text", "text": one} if isinstance(one, str) else one for one in parts]
        return {"model": "main", "max_tokens": 50, "messages": [{"role": "user", "content": content}]}
    return {"contents": [{"role": "user", "parts": [{"text": one} if isinstance(one, str) else one for one in parts]}]}


IN: dict[str, Callable[[bytes], Body]] = dict(zip(PATHS, (in_chat, in_items, in_messages, in_google), strict=True))


# ---------------------------------------------------------------------- one loop in each dialect: image, tool's image, image


async def by_chat(task: AgentTask) -> None:
    text = {"type": "text", "text": "look"}
    history: list[Any] = [{"role": "user", "content": [text, in_chat(QUESTION), {"type": "text", "text": "and add"}]}]
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
        for shown in (
            [{"role": "tool", "tool_call_id": "", "content": [{"type": "text", "text": "3"}, in_chat(SHOWN)]}],
            [{"role": "user", "content": [in_chat(LAST)]}],
            [],
        ):
            body: Body = {"model": task.model, "messages": history, "tools": [ADD]}
            async with client.chat.completions.stream(**body) as stream:
                reply = (await stream.get_final_completion()).choices[0].message
            history.append(reply.model_dump(exclude_none=True, exclude={"parsed"}))
            for call_ in reply.tool_calls or ():
                shown[0]["tool_call_id"] = call_.id
            history += shown


async def by_responses(task: AgentTask) -> None:
    text = {"type": "input_text", "text": "look"}
    items: list[Any] = [
        {"role": "user", "content": [text, in_items(QUESTION), {"type": "input_text", "text": "and add"}]}
    ]
    tool: Any = {"type": "function", **ADD["function"]}  # type: ignore[dict-item]  # a dict of our own
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
        for shown in (
            [
                {
                    "type": "function_call_output",
                    "call_id": "",
                    "output": [{"type": "input_text", "text": "3"}, in_items(SHOWN)],
                }
            ],
            [{"role": "user", "content": [in_items(LAST)]}],
            [],
        ):
            body: Body = {"model": task.model, "input": items, "tools": [tool]}
            async with client.responses.stream(**body) as stream:
                reply = await stream.get_final_response()
            items += [item.model_dump(exclude_none=True) for item in reply.output]
            for item in reply.output:
                if item.type == "function_call":
                    shown[0]["call_id"] = item.call_id
            items += shown


async def by_messages(task: AgentTask) -> None:
    text = {"type": "text", "text": "look"}
    history: list[Any] = [
        {"role": "user", "content": [text, in_messages(QUESTION), {"type": "text", "text": "and add"}]}
    ]
    tool: Any = {"name": "add", "input_schema": {"type": "object"}}
    async with anthropic.AsyncAnthropic(base_url=task.url, api_key=task.api_key, max_retries=0) as client:
        for shown in (
            {"type": "tool_result", "tool_use_id": "", "content": [{"type": "text", "text": "3"}, in_messages(SHOWN)]},
            in_messages(LAST),
            None,
        ):
            counted = await client.messages.count_tokens(model=task.model, messages=history, tools=[tool])
            body: Body = {"model": task.model, "messages": history, "tools": [tool], "max_tokens": 200}
            async with client.messages.stream(**body) as stream:
                reply = await stream.get_final_message()
            if len(history) == 1:  # a sampled reply has ids that no tokenizer gives
                assert counted.input_tokens == reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0)
            history.append(
                {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]}
            )
            for block in reply.content:
                if block.type == "tool_use" and shown is not None:
                    shown["tool_use_id"] = block.id
            if shown is not None:
                history.append({"role": "user", "content": [shown]})


async def by_google(task: AgentTask) -> None:
    contents: list[Any] = [{"role": "user", "parts": [{"text": "look"}, in_google(QUESTION), {"text": "and add"}]}]
    tools = [{"functionDeclarations": [{"name": "add", "parameters": {"type": "OBJECT", "properties": {}}}]}]
    result = {"name": "add", "response": {"result": "3"}, "parts": [in_google(SHOWN)]}
    async with httpx.AsyncClient(
        base_url=task.url, headers={"x-goog-api-key": task.api_key}, timeout=PATIENCE_S
    ) as client:
        for shown in ([{"functionResponse": result}], [in_google(LAST)], []):
            counted = await client.post(
                GOOGLE.replace("generateContent", "countTokens"), json={"contents": contents, "tools": tools}
            )
            answer = await client.post(GOOGLE, json={"contents": contents, "tools": tools})
            assert answer.status_code == 200, answer.text
            reply = answer.json()
            assert len(contents) > 1 or counted.json()["totalTokens"] == reply["usageMetadata"]["promptTokenCount"]
            contents += [reply["candidates"][0]["content"], {"role": "user", "parts": shown}]


@pytest.mark.parametrize("agent", [by_chat, by_responses, by_messages, by_google])
async def test_a_loop_with_images_is_one_conversation_of_what_the_engine_read(
    store: Store, template: ChatTemplate, agent: Callable[[AgentTask], Any]
) -> None:
    engine = SeeingEngine(template, call("add", a=1, b=2), "I see.", "<answer>4</answer>")
    record, slot, dispatches = await seen_by(store, engine, template, agent)
    assert record.error is None
    assert slot.score == 1.0
    used = {name: count for name, count in record.metrics.items() if not name.startswith("agent_overridden")}
    assert used == {"agent_first": 1, "agent_continued": 2}
    assert trained_ids(dispatches) == engine.exchanges
    assert engine.files == [[QUESTION], [QUESTION, SHOWN], [QUESTION, SHOWN, LAST]]
    sha256 = [digest(data) for data in (QUESTION, SHOWN, LAST)]
    assert [[one.sha256 for one in dispatch.images] for dispatch in dispatches] == [[one] for one in sha256]
    first, second, third = (dispatch.messages[-1]["content"] for dispatch in dispatches)
    assert [block.get("text") or block["sha256"] for block in first] == ["look", sha256[0], "and add"]
    assert [block.get("text") or block["sha256"] for block in second] == ["3", sha256[1]]
    assert [block.get("text") or block["sha256"] for block in third] == [sha256[2]]
    [result] = dispatches[0].tool_calls
    assert (result.result, result.blocks) == ("3", second)
    assert await store.database["images"].count_documents({}) == 3
    stored = str([dispatch.model_dump() for dispatch in dispatches]) + str(record.model_dump())
    assert text64(QUESTION)[:40] not in stored


# ---------------------------------------------------------------------- what cannot be shown


def http_of(task: AgentTask) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=task.url, headers={"x-api-key": task.api_key}, timeout=PATIENCE_S)


BROKEN = picture(4)[:200]
WRONG: list[tuple[str, Any, str]] = [
    (CHAT, in_chat(b"%PDF-1.7"), "messages[0].content[1].image_url.url: PDF; expected PNG, JPEG"),
    (CHAT, in_chat(BROKEN), "messages[0].content[1].image_url.url: PNG that"),
    (CHAT, in_chat(b""), "messages[0].content[1].image_url.url: "),
    (CHAT, {"type": "image_url", "image_url": "data:image/png;base64,%%"}, "content[1].image_url: no base64 that can be decoded"),
    (CHAT, {"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, 'expected "data:image/...;base64,..."'),
    (CHAT, {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
     "'https://example.org/a.png', and nothing is fetched"),
    (CHAT, {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "; send the image itself"),
    (CHAT, {"type": "image_url", "image_url": {"url": "/etc/passwd"}}, "nothing is fetched"),
    (CHAT, {"type": "image_url", "image_url": {}}, "messages[0].content[1].image_url.url is missing"),
    (CHAT, {"type": "image_url"}, "messages[0].content[1].image_url is missing"),
    (CHAT, {"type": "image_url", "image_url": 7}, "messages[0].content[1].image_url is 7; expected an object"),
    (CHAT, {"type": "input_audio", "input_audio": {}}, "is 'input_audio'; only text and images are supported"),
    (CHAT, {"type": "image", "sha256": "0" * 64}, "messages[0].content[1].source is missing"),
    (CHAT, {"type": "image", "path": "/etc/passwd"}, "messages[0].content[1].source is missing"),
    (RESPONSES, {"type": "input_image", "file_id": "file-1"}, "input[0].content[1].file_id is set, and no files are stored here"),
    (RESPONSES, {"type": "input_image", "image_url": "http://127.0.0.1/a.png"}, "nothing is fetched"),
    (RESPONSES, in_items(BROKEN), "input[0].content[1].image_url: PNG that"),
    (MESSAGES, {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}},
     "source.type is 'url'; expected base64: nothing is fetched"),
    (MESSAGES, {"type": "image", "source": {"type": "file", "file_id": "f"}}, "no files are stored here"),
    (MESSAGES, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
     "messages[0].content[1].source.data is missing"),
    (MESSAGES, in_messages(BROKEN), "messages[0].content[1].source.data: PNG that"),
    (MESSAGES, {"type": "document", "source": {"type": "text", "data": "x"}}, "only text and images are supported"),
    (GOOGLE, {"fileData": {"fileUri": "gs://a/b"}}, "contents[0].parts[1].fileData is set, and no files are stored here"),
    (GOOGLE, {"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}}, "inlineData.mimeType is 'audio/wav'; only images"),
    (GOOGLE, in_google(BROKEN), "contents[0].parts[1].inlineData.data: PNG that"),
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_no_image_is_a_400_that_names_its_place_and_the_agent_goes_on(
    store: Store, template: ChatTemplate, path: str
) -> None:
    engine = SeeingEngine(template, "<answer>4</answer>")
    rows = [(part, why) for where, part, why in WRONG if where == path]

    async def agent(task: AgentTask) -> None:
        async with http_of(task) as http:
            for part, why in rows:
                answer = await http.post(path, json=asking(path, "look", part))
                assert (answer.status_code, why in answer.json()["error"]["message"]) == (400, True), answer.text
            answer = await http.post(path, json=asking(path, "look", IN[path](QUESTION)))
            assert answer.status_code == 200, answer.text

    record, slot, dispatches = await seen_by(store, engine, template, agent)
    assert (record.termination, slot.score, len(dispatches)) == (Termination.ANSWERED, 1.0, 1)
    assert await store.database["images"].count_documents({}) == 1


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        (CHAT, {"messages": [{"role": "system", "content": [in_chat(QUESTION)]}, {"role": "user", "content": "a"}]},
         "messages[0].content[0] is 'image_url'; only text is supported here"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [in_chat(QUESTION)]}]},
         "messages[1].content[0] is 'image_url'; only text is supported here"),
        (RESPONSES, {"input": [{"role": "developer", "content": [in_items(QUESTION)]}]}, "only text is supported here"),
        (MESSAGES, {"max_tokens": 9, "system": [in_messages(QUESTION)], "messages": [{"role": "user", "content": "a"}]},
         "system[0] is 'image'; only text is supported here"),
        (GOOGLE, {"systemInstruction": {"parts": [in_google(QUESTION)]}, "contents": [{"parts": [{"text": "a"}]}]},
         "systemInstruction.parts[0] is 'inlineData'"),
        (GOOGLE, {"contents": [{"role": "model", "parts": [in_google(QUESTION)]}]}, "contents[0].parts[0] is 'inlineData'"),
    ],
)  # fmt: skip
async def test_instructions_and_replies_have_no_images(
    store: Store, template: ChatTemplate, path: str, body: Body, why: str
) -> None:
    async def agent(task: AgentTask) -> None:
        async with http_of(task) as http:
            answer = await http.post(path, json={"model": "main"} | body)
            assert (answer.status_code, why in answer.text) == (400, True), answer.text
            assert (await http.post(path, json=asking(path, "look"))).status_code == 200

    await seen_by(store, SeeingEngine(template, "<answer>4</answer>"), template, agent)


@pytest.mark.parametrize("path", PATHS)
async def test_a_model_of_text_refuses_an_image_before_it_is_decoded(store: Store, path: str) -> None:
    async def agent(task: AgentTask) -> None:
        async with http_of(task) as http:
            answer = await http.post(path, json=asking(path, "look", IN[path](b"no image at all")))
            assert answer.status_code == 400
            assert "an image, and model 'main' reads texts alone; leave it out" in answer.text
            assert (await http.post(path, json=asking(path, "look"))).status_code == 200

    record, _, _ = await played(store, ScriptedEngine(["<answer>4</answer>"]), agent)
    assert TEMPLATE.images is None
    assert record.status is RecordStatus.SCORED
    assert await store.database["images"].count_documents({}) == 0


async def test_more_images_than_a_prompt_may_have_are_a_limit_of_the_episode(
    store: Store, template: ChatTemplate
) -> None:
    part = in_chat(picture(1, 8, 8))

    async def agent(task: AgentTask) -> None:
        async with http_of(task) as http:
            assert (await http.post(CHAT, json=asking(CHAT, "look"))).status_code == 200
            answer = await http.post(CHAT, json=asking(CHAT, *[part] * 257))
            assert answer.status_code == 400
            assert (
                "257 images; expected 256 at most, and messages[0].content[256].image_url.url is one more"
                in answer.text
            )
            assert answer.json()["error"]["code"] == "context_length_exceeded"

    record, _, _ = await seen_by(store, SeeingEngine(template, "<answer>4</answer>"), template, agent)
    assert record.termination == Termination.LENGTH_LIMIT
    assert await store.database["images"].count_documents({}) == 0


async def test_another_picture_in_the_history_is_another_conversation_and_the_same_one_is_not(
    store: Store, template: ChatTemplate
) -> None:
    engine = SeeingEngine(template, "one", "two", "<answer>4</answer>", "three")

    async def agent(task: AgentTask) -> None:
        async with http_of(task) as http:
            for first, more in ((QUESTION, []), (QUESTION, ["a"]), (SHOWN, ["a"]), (QUESTION, ["b"])):
                body = asking(CHAT, "look", in_chat(first))
                body["messages"] += (
                    [{"role": "assistant", "content": "one"}, *({"role": "user", "content": text} for text in more)]
                    if more
                    else []
                )
                assert (await http.post(CHAT, json=body)).status_code == 200

    _, _, dispatches = await seen_by(store, engine, template, agent)
    assert trained_ids(dispatches) == engine.exchanges
    causes = [dispatch.client.cause for dispatch in dispatches if dispatch.client is not None]
    assert causes == ["first", "continued", "shortened", "shortened"]
    assert engine.files == [[QUESTION], [QUESTION], [SHOWN], [QUESTION]]
    shared = [dispatch.shared_length for dispatch in dispatches]
    assert 0 < shared[2] < shared[3], "nothing behind another picture is shared"
