"""Answers of a real SGLang, replayed at the transport: what is checked, and which error each failure becomes."""

import asyncio
import contextlib
import copy
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from sampler.core.engines.client.engine_client import EngineClient, EngineTimeouts
from sampler.core.engines.client.refusals import error_text
from sampler.core.errors import (
    CacheNotFlushed,
    ContextTooLong,
    EngineContractBroken,
    EngineRefused,
    EngineUnavailable,
    KeyRefused,
)
from tests.sampler.engines import ANSWERS, recorded

URL = "http://engine:30000"


class Replay:
    """Answers every request with one response, and keeps the requests."""

    def __init__(self) -> None:
        self.response: httpx.Response | Exception = httpx.Response(500)
        self.requests: list[httpx.Request] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if isinstance(self.response, Exception):
            raise self.response
        return self.response


@pytest.fixture
def replay() -> Replay:
    return Replay()


@pytest.fixture
async def client(replay: Replay) -> AsyncIterator[EngineClient]:
    async with EngineClient(transport=httpx.MockTransport(replay)) as client:
        yield client


def labelled(name: str, *versions: str, **changes: Any) -> httpx.Response:
    """A recorded generation with other weight labels, and other changes at its top level or in `meta_info`."""
    body = copy.deepcopy(ANSWERS[name]["json"])
    for run, version in zip(body["meta_info"]["weight_versions"], versions, strict=True):
        run["version"] = version
    body["meta_info"]["weight_version"] = versions[-1]
    for key, value in changes.items():
        (body if key in body else body["meta_info"])[key] = value
    return httpx.Response(200, json=body)


async def generate(client: EngineClient) -> Any:
    return await client.generate(URL, [5, 100], {"max_new_tokens": 12}, rid="r1", vocabulary=512)


async def test_a_generation_keeps_ids_logprobs_and_versions(client: EngineClient, replay: Replay) -> None:
    replay.response = labelled("generate_two_versions", "13", "14")
    generation = await generate(client)
    recorded_ids = ANSWERS["generate_two_versions"]["json"]["output_ids"]
    assert generation.output_ids == recorded_ids
    assert len(generation.logprobs) == 10
    assert generation.logprobs[0] == pytest.approx(-4.142519950866699, abs=0)
    assert generation.version_runs == [[13, 5], [14, 5]]
    assert (generation.prompt_tokens, generation.cached_tokens, generation.finish_reason) == (8, 0, "length")
    assert json.loads(replay.requests[0].content) == {
        "rid": "r1",
        "input_ids": [5, 100],
        "sampling_params": {"max_new_tokens": 12},
        "return_logprob": True,
    }


async def test_finish_reasons_are_read(client: EngineClient, replay: Replay) -> None:
    found = []
    for name in ("generate_stop_token", "generate_stop_string", "generate_aborted", "generate_empty"):
        replay.response = labelled(name, "0")
        generation = await generate(client)
        found.append(
            (generation.finish_reason, generation.matched, generation.abort_message, len(generation.output_ids))
        )
    assert found == [
        ("stop", 465, "", 4),
        ("stop", "�", "", 6),
        ("abort", None, "Aborted", 12),
        ("length", None, "", 0),
    ]


async def test_an_engine_without_version_runs_gives_its_one_version(client: EngineClient, replay: Replay) -> None:
    replay.response = labelled("generate_length", "7", weight_versions=None)
    assert (await generate(client)).version_runs == [[7, 8]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_ids": [489]}, "8 log-probs for 1 tokens"),
        ({"output_ids": [489, 489, 332, 144, 197, 279, 137, 169]}, "log-prob 7 belongs to token 168, output is 169"),
        ({"output_token_logprobs": None}, "output_token_logprobs is None; expected a JSON array"),
        ({"finish_reason": None}, "finish_reason is None; expected a JSON object"),
        ({"finish_reason": {"type": "tired"}}, r"finish_reason.type is 'tired'; expected stop, length or abort"),
        ({"weight_versions": [{"version": "1", "start": 0, "end": 7}]}, "cover 7 of 8 tokens"),
        ({"weight_versions": [{"version": "1", "start": 1, "end": 8}]}, "do not cover 8 tokens in order"),
        (
            {"finish_reason": {"type": "abort", "message": "queue is full", "status_code": 503}},
            "status 503: 'queue is full'",
        ),
    ],
)
async def test_an_answer_that_contradicts_itself_is_refused(
    client: EngineClient, replay: Replay, changes: dict[str, Any], words: str
) -> None:
    replay.response = labelled("generate_length", "0", **changes)
    with pytest.raises(EngineUnavailable, match=words):
        await generate(client)


async def test_a_logprob_that_is_not_a_number_is_refused(client: EngineClient, replay: Replay) -> None:
    text = labelled("generate_length", "0").text.replace("-5.871331691741943", "NaN")
    assert "NaN" in text
    replay.response = httpx.Response(200, text=text)
    with pytest.raises(EngineContractBroken, match="log-prob 0 is nan; expected a finite number"):
        await generate(client)


@pytest.mark.parametrize("label", ["default", "v3", "", "-1", "3.0"])
async def test_the_error_for_a_non_integer_weight_label_names_the_remedy(
    client: EngineClient, replay: Replay, label: str
) -> None:
    replay.response = labelled("generate_length", label)
    with pytest.raises(EngineContractBroken, match=r"expected a whole number as text.*keeper"):
        await generate(client)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("err_input_too_long", ContextTooLong, "1500 tokens"),
        ("generate_context_clamped", ContextTooLong, "total of 1100 tokens"),
        ("err_max_new_tokens_str", EngineRefused, 'string "8", expected i64'),
        ("generate_custom_sampling_params_unknown", EngineRefused, "unknown field `nonsense`"),
        ("err_negative_max_new_tokens", EngineRefused, "got -1"),
        ("err_malformed_json", EngineRefused, "1 validation error"),
        ("err_update_disk_unknown_path", EngineRefused, "Failed to get weights iterator"),
        ("update_right_behind_generate_refused_flush", CacheNotFlushed, "Weights were updated"),
        ("flush_cache_busy", EngineRefused, "Flush cache failed"),
        ("unknown_route", EngineRefused, "HTTP 404: Not Found"),
        ("pause_abort_health", EngineUnavailable, "HTTP 503: no message"),
    ],
)
async def test_each_shape_of_error_becomes_one_of_ours(
    client: EngineClient, replay: Replay, name: str, kind: type[Exception], words: str
) -> None:
    replay.response = recorded(name)
    with pytest.raises(kind, match=words) as caught:
        await generate(client)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(URL)


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("refused"), httpx.RemoteProtocolError("hung up"), httpx.ReadTimeout("")]
)
async def test_transport_errors_mean_that_another_engine_may_answer(
    client: EngineClient, replay: Replay, error: Exception
) -> None:
    replay.response = error
    with pytest.raises(EngineUnavailable, match=type(error).__name__) as caught:
        await generate(client)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("text", ["", "not json", "[1]", '{"text": "x"}'])
async def test_a_200_without_a_generation_is_refused(client: EngineClient, replay: Replay, text: str) -> None:
    replay.response = httpx.Response(200, text=text)
    with pytest.raises(EngineContractBroken):
        await generate(client)


async def test_a_request_to_a_silent_engine_times_out() -> None:
    async def never(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(60)
        return httpx.Response(200)

    async with EngineClient(EngineTimeouts(generate_s=0.1), transport=httpx.MockTransport(never)) as client:
        with pytest.raises(EngineUnavailable, match=r"no answer within 0\.1 s"):
            await generate(client)


async def test_a_connection_that_is_never_accepted_is_told_from_a_missing_answer() -> None:
    """A real port whose queue is full: the kernel drops what else wants to connect."""
    with socket.socket() as deaf, contextlib.ExitStack() as waiting:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(2):
            other = waiting.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(deaf.getsockname())
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        async with EngineClient(EngineTimeouts(connect_s=0.2)) as client:
            with pytest.raises(
                EngineUnavailable, match=r"/generate: no connection within 0\.2 s: expected an engine at"
            ):
                await client.generate(url, [1], {"max_new_tokens": 1}, rid="r")


async def test_missing_input_and_an_invalid_url_are_refused_without_a_retry(client: EngineClient) -> None:
    with pytest.raises(EngineRefused, match="no input ids"):
        await client.generate(URL, [], {}, rid="r")
    with pytest.raises(EngineRefused, match="not a URL"):
        await client.model_info("http://[::1")


async def test_the_client_serves_the_keepers_requests(client: EngineClient, replay: Replay) -> None:
    replay.response = recorded("model_info")
    assert (await client.model_info(URL)).weight_version == "default"
    replay.response = recorded("server_info")
    info = await client.server_info(URL)
    assert (info.max_running_requests, info.version) == (32, "0.5.23")
    replay.response = recorded("v1_loads_busy")
    load = await client.load(URL)
    assert (load.running, load.waiting) == (1, 0)
    replay.response = recorded("update_disk_ok")
    await client.update_weights_from_disk(URL, "models/model1", 12)
    assert b'"weight_version":"12"' in replay.requests[-1].content
    for name, verb in (
        ("pause_abort", client.pause),
        ("pause_abort_continue", client.resume),
        ("flush_cache_post", client.flush_cache),
    ):
        replay.response = recorded(name)
        await verb(URL)
        assert replay.requests[-1].content, "these routes answer 400 without a JSON body"
    replay.response = recorded("abort_by_rid")
    await client.abort(URL, "r1")
    assert replay.requests[-1].url.path == "/abort_request"


async def test_the_api_key_is_sent_and_never_shown() -> None:
    replay = Replay()
    replay.response = recorded("model_info")
    async with EngineClient(api_key="s3cret", transport=httpx.MockTransport(replay)) as client:
        await client.model_info(URL)
    assert replay.requests[0].headers["authorization"] == "Bearer s3cret"


@pytest.mark.parametrize("status", [401, 403])
async def test_the_error_for_a_refused_key_names_the_option(client: EngineClient, replay: Replay, status: int) -> None:
    replay.response = httpx.Response(status, json={"error": "Unauthorized"})
    with pytest.raises(KeyRefused, match=f"/model_info: HTTP {status}: Unauthorized; .* engine_api_key_var"):
        await client.model_info(URL)


def test_an_error_message_is_bounded_for_any_body() -> None:
    long = '{"error": {"message": "' + "x" * 10_000 + '"}}'
    for body in ("", "x" * 10_000, long, '{"error": null}', "null", "[]", '{"error": []}'):
        assert len(error_text(body)) <= 500
