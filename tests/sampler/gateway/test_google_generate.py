"""Google's dialect, with the requests that `google-genai` 3.4.0 sends; the SDK itself is in `clients_table`."""

import json
from typing import Any

import httpx
import pytest

from sampler.gateway.agent_sampler import AgentTask
from shared.documents.states import RecordStatus
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine, call, played, trained_ids

THOUGHTFUL = f"<think>\nI add.\n</think>\n\nLet me see.\n{call('add', a=1, b=2)}\n{call('add', b=4, a=3)}"
NUMBER = {"type": "INTEGER"}
TOOLS = [
    {
        "functionDeclarations": [
            {
                "name": "add",
                "description": "Add.",
                "parameters": {"type": "OBJECT", "properties": {"a": NUMBER, "b": NUMBER}},
            }
        ]
    }
]


async def asked(client: httpx.AsyncClient, model: str, body: dict[str, Any], *, stream: bool) -> list[dict[str, Any]]:
    verb, version = ("streamGenerateContent?alt=sse", "v1") if stream else ("generateContent", "v1beta")
    answer = await client.post(f"/{version}/models/{model}:{verb}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    if not stream:
        return [answer.json()]
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]


def client_of(task: AgentTask, key: str | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=task.url, headers={"x-goog-api-key": key or task.api_key})


def parts_of(replies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for reply in replies for part in reply["candidates"][0]["content"]["parts"]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("with_ids", [False, True])
async def test_a_loop_is_one_conversation_of_sampled_ids(store: Store, stream: bool, with_ids: bool) -> None:
    """Many agents build a functionResponse from a name alone."""
    engine = ScriptedEngine([THOUGHTFUL, call("add", a=3, b=7), "<answer>10</answer>"])
    shown: list[list[str]] = []

    async def agent(task: AgentTask) -> str:
        system, question = (message["content"] for message in task.messages)
        contents: list[Any] = [{"role": "user", "parts": [{"text": question}]}]
        async with client_of(task) as client:
            while True:
                body = {"contents": contents, "systemInstruction": {"parts": [{"text": system}]}, "tools": TOOLS,
                        "generationConfig": {"thinkingConfig": {"includeThoughts": True}, "maxOutputTokens": 500}}  # fmt: skip
                replies = await asked(client, task.model, body, stream=stream)
                last = replies[-1]
                usage = last["usageMetadata"]
                assert usage["totalTokenCount"] == usage["promptTokenCount"] + usage["candidatesTokenCount"] > 0
                assert [reply["candidates"][0].get("finishReason") for reply in replies][-1] == "STOP"
                parts = parts_of(replies)
                shown.append(["thought" if p.get("thought") else next(iter(p)) for p in parts if p.get("text") != ""])
                contents.append({"role": "model", "parts": parts})
                calls = [part["functionCall"] for part in parts if "functionCall" in part]
                if not calls:
                    return "".join(part.get("text", "") for part in parts)
                answers = [{"result": "3"}, {"error": "no"}][: len(calls)]
                contents.append({"role": "user", "parts": [
                    {"functionResponse": {"name": one["name"], "response": told} | ({"id": one["id"]} if with_ids else {})}
                    for one, told in zip(calls, answers, strict=True)
                ]})  # fmt: skip

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert (record.status, record.answer) == (RecordStatus.SCORED, "10")
    assert shown == [["thought", "text", "functionCall", "functionCall"], ["functionCall"], ["text"]]
    assert trained_ids(dispatches) == engine.exchanges
    assert record.metrics == {"agent_first": 1, "agent_continued": 2}
    assert [(c.arguments, c.result, c.is_error) for c in dispatches[0].tool_calls] == [
        ({"a": 1, "b": 2}, "3", False), ({"b": 4, "a": 3}, '{"error": "no"}', True)
    ]  # fmt: skip


async def test_errors_and_counts_have_the_dialects_form(store: Store) -> None:
    engine = ScriptedEngine(["<answer>1</answer>"])
    seen: list[tuple[int, str]] = []
    hi = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client, client_of(task, "other") as stranger:
            image = {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": ""}}]}]}
            computer = hi | {"tools": [{"computerUse": {"environment": "ENVIRONMENT_BROWSER"}}]}
            search = hi | {"tools": [{"googleSearch": {"timeRangeFilter": {}}}]}
            for who, model, body in (
                (stranger, task.model, hi),
                (client, "gemini-9", hi),
                (client, task.model, {}),
                (client, task.model, image),
                (client, task.model, computer),
                (client, task.model, hi | {"generationConfig": {"candidateCount": 2}}),
            ):
                answer = await who.post(f"/v1beta/models/{model}:generateContent", json=body)
                error = answer.json()["error"]
                assert (error["code"], bool(error["message"])) == (answer.status_code, True)
                seen.append((error["code"], error["status"]))
            counted = await client.post(f"/v1beta/models/{task.model}:countTokens", json=hi)
            found = await asked(client, task.model, search, stream=False)
            assert counted.json()["totalTokens"] == found[0]["usageMetadata"]["promptTokenCount"]

    record, _, dispatches = await played(store, engine, agent)
    assert record.status is RecordStatus.SCORED
    assert len(dispatches) == 1
    assert record.metrics == {"agent_first": 1, "agent_overridden_tool_google_search": 1}
    invalid = (400, "INVALID_ARGUMENT")
    assert seen == [(401, "UNAUTHENTICATED"), (404, "NOT_FOUND"), invalid, invalid, invalid, invalid]
