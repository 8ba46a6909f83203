"""One request to an endpoint: transient and permanent errors, their blame and quotation, and valid replies."""

import json
from typing import Any

import pytest

from sampler.core.api_models.config import ModelConfig
from sampler.core.api_models.endpoint import AgentReply, Endpoint, RequestFailed
from sampler.core.errors import AgentFailed
from shared.http.retry_after import retry_after_s
from tests.sampler.agents.agents import judge
from tests.sampler.agents.endpoints import endpoint

ASKED = [{"role": "user", "content": "2+2?"}]


async def asked(*behaviors: str, **fields: Any) -> AgentReply:
    async with endpoint(*behaviors) as service:
        one = Endpoint(ModelConfig.model_validate({"model": "m", "base_url": service.url} | fields), 20.0)
        try:
            return await one.ask(ASKED)
        finally:
            await one.close()


def body(message: object, usage: object = None, **choice: Any) -> str:
    return "raw " + json.dumps({"choices": [{"message": message, **choice}], "usage": usage})


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
async def test_a_transient_error_is_not_blamed_on_the_request(status: int) -> None:
    with pytest.raises(RequestFailed, match=f"status {status}: ") as caught:
        await asked(f"status {status} retry-after 7")
    assert (caught.value.may_pass, caught.value.is_own, caught.value.retry_after_s) == (True, False, 7.0)


@pytest.mark.parametrize(
    ("status", "is_own"), [(400, True), (413, True), (422, True), (401, False), (403, False), (404, False)]
)
async def test_a_permanent_error_is_blamed_on_the_request_or_the_model(status: int, is_own: bool) -> None:
    with pytest.raises(RequestFailed) as caught:
        await asked(f"status {status}")
    assert (caught.value.may_pass, caught.value.is_own, caught.value.retry_after_s) == (False, is_own, None)


@pytest.mark.parametrize(("path", "advised"), [("", True), ("/openai", True), ("/v1", False), ("/api/v3", False)])
async def test_a_404_for_a_base_url_without_a_version_advises_v1(path: str, advised: bool) -> None:
    async with endpoint("status 404") as service:
        base_url = service.url.removesuffix("/v1") + path
        one = Endpoint(ModelConfig.model_validate({"model": "m", "base_url": base_url}), 20.0)
        with pytest.raises(RequestFailed, match="status 404") as caught:
            await one.ask(ASKED)
        await one.close()
    advice = f"; base_url {base_url} has no /v1: try {base_url}/v1"
    assert str(caught.value).endswith(advice) is advised


def test_retry_after_is_read_as_seconds_or_a_date_and_otherwise_ignored() -> None:
    assert retry_after_s({"retry-after": "2.5"}) == 2.5
    assert retry_after_s({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert [retry_after_s({"retry-after": odd}) for odd in ("soon", "inf", "nan", "")] == [None] * 4
    assert retry_after_s({"retry-after": "-3"}) == 0.0


async def test_settings_of_a_model_are_sent_and_an_unset_one_is_not() -> None:
    async with endpoint("judges") as service:
        fields = {"model": "m", "base_url": service.url}
        extra = {"chat_template_kwargs": {"enable_thinking": False}}
        sets = [{"temperature": 0.3, "max_tokens": 9, "extra_body": extra}, {"temperature": None}, {}]
        for settings in sets:
            agent = judge(models=[fields | settings])
            await agent.verdict("2+2?", "4", "4")
            await agent.close()
    bodies = [{k: v for k, v in body.items() if k not in ("messages", "model")} for _, body in service.requests]
    assert bodies == [{"temperature": 0.3, "max_tokens": 9, **extra}, {}, {"temperature": 0.0}]
    assert service.requests[0][0]["authorization"] == "Bearer none"


async def test_a_model_that_refuses_the_key_is_paused_like_a_failing_one() -> None:
    async with endpoint("status 401") as service:
        agent = judge(service, breaker_failures=1, breaker_pause_s=100)
        for said in ("status 401", "paused for"):
            with pytest.raises(AgentFailed, match=said):
                await agent.verdict("2+2?", "4", "4")
        await agent.close()
    assert len(service.requests) == 1


async def test_a_quotation_is_short_on_one_line_and_contains_no_part_of_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    for text in ('{"said":\n"' + "sk-very-secret" * 100 + '"}', "sk-very-secret" * 100):
        with pytest.raises(RequestFailed) as caught:
            await asked(f"raw {text}", api_key="${JUDGE_KEY}")
        told = str(caught.value)
        assert len(told) == 300
        assert told.endswith("*…")
        assert "\n" not in told
        assert "sk-" not in told


@pytest.mark.parametrize("finish", ["stop", "length", "eos", None])
async def test_a_reply_may_end_by_stop_or_length(finish: str | None) -> None:
    found = await asked(body({"content": "<think>5?</think>\n 4 "}, {"prompt_tokens": 3}, finish_reason=finish))
    assert found == AgentReply("4", 3, None)


@pytest.mark.parametrize(
    "usage", [None, [], "many", {"prompt_tokens": "3", "completion_tokens": 1.5}, {"prompt_tokens": 10**30}]
)
async def test_an_unreadable_usage_becomes_none(usage: object) -> None:
    assert await asked(body({"content": "4"}, usage)) == AgentReply("4", None, None)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (body({"content": [{"type": "text", "text": "4"}]}), "has no text"),
        (body({"content": 4}), "has no text"),
        (body({"content": "4"}, finish_reason="content_filter"), "ended by 'content_filter'"),
        (body("4"), "no choices"),
        (body(None), "no choices"),
        ("raw {}", "no choices"),
        ("raw 4", "no choices"),
        ("raw " + "[" * 100_000, "is not JSON"),
    ],
)
async def test_a_response_of_another_shape_is_a_transient_failure(answer: str, told: str) -> None:
    with pytest.raises(RequestFailed, match=told) as caught:
        await asked(answer)
    assert caught.value.may_pass
