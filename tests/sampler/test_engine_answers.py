"""Answers of a real SGLang with something wrong in them: each is refused by an error that names the field, or harmless."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import bson
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.client.generation import Generation
from sampler.core.engines.pool.engine_pool import EnginePool, PoolLimits
from sampler.core.engines.pool.engines import vocabulary_of
from sampler.core.errors import EngineContractBroken, EngineError
from shared.documents.packed import pack_floats, pack_ints
from tests.sampler.engines import ANSWERS, STOP, Behavior, Engines, Up, answer
from tests.system.processes import ROOT

URL = "http://engine:30000"
VOCABULARY = 512
ASKED = 12
GENERATIONS = [name for name, found in ANSWERS.items() if name.startswith("generate_") and found["status"] == 200]
OTHERS: dict[str, Callable[[EngineClient], Any]] = {
    "model_info": lambda client: client.model_info(URL),
    "server_info": lambda client: client.server_info(URL),
    "v1_loads_busy": lambda client: client.load(URL),
    "update_disk_ok": lambda client: client.update_weights_from_disk(URL, "models/model1", 1),
}
Path = tuple[str | int, ...]
HOSTILE = [
    *(None, True, False, -1, 0, 1, 512, 2**31, 2**63, 10**30, -(10**30), 0.0, 0.5, 1.0, -0.5, 1e308, float("nan")),
    *(float("inf"), -float("inf"), "", "1", "0" * 5000, "9" * 30, "x" * 100_000, "\ud83d", "$5", [], [1], [[]], {}),
    *({"a": 1}, [None] * 20, [0] * 500, [[-0.1, 1, None]] * 20, {"type": "stop"}, [{"version": "1"}], [[[[]]]]),
]


async def ask(body: str, question: Callable[[EngineClient], Any], status: int = 200) -> Any:
    raw = body.encode(errors="surrogatepass")

    async def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=raw)

    async with EngineClient(transport=httpx.MockTransport(answer)) as client:
        return await question(client)


async def generate(client: EngineClient) -> Generation:
    return await client.generate(URL, [5, 100], {"max_new_tokens": ASKED}, rid="r1", vocabulary=VOCABULARY)


def real(name: str) -> Any:
    """A recorded answer, with labels as a keeper sets them."""
    return json.loads(json.dumps(ANSWERS[name]["json"]).replace('"default"', '"3"'))


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*at, key)
            yield from paths(value[key], (*at, key))


def changed(value: Any, path: Path, to: Any) -> Any:
    found = value = copy.deepcopy(value)
    for key in path[:-1]:
        found = found[key]
    if to is ...:
        del found[path[-1]]
    else:
        found[path[-1]] = to
    return value


def assert_trainable(found: Generation) -> None:
    """All that the trainer, and MongoDB, rely on."""
    assert len(found.output_ids) == len(found.logprobs) == sum(n for _, n in found.version_runs) <= ASKED
    assert all(type(token) is int and 0 <= token < VOCABULARY for token in found.output_ids)
    assert all(type(logprob) is float and -1e16 < logprob < 0.001 for logprob in found.logprobs)
    assert all(type(version) is int and 0 <= version < 2**31 and n > 0 for version, n in found.version_runs)
    assert found.finish_reason in ("stop", "length", "abort")
    pack_ints(found.output_ids)
    pack_floats(found.logprobs)
    bson.encode({"runs": found.version_runs, "usage": [found.prompt_tokens, found.cached_tokens]})


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("output_ids", 2), 512, r"output_ids\[2\] is 512; expected a token of the vocabulary, 0 to 511"),
        (("output_ids", 2), -1, r"output_ids\[2\] is -1"),
        (("output_ids", 2), 332.0, r"output_ids\[2\] is 332.0"),
        (("output_ids", 2), "332", r"output_ids\[2\] is '332'"),
        (("output_ids", 2), True, r"output_ids\[2\] is True"),
        (("meta_info", "output_token_logprobs", 3, 0), 0.25, "log-prob 3 is 0.25; expected at most 0"),
        (("meta_info", "output_token_logprobs", 3, 0), None, "log-prob 3 is None; expected a finite number"),
        (("meta_info", "output_token_logprobs", 3, 0), "-1.5", "log-prob 3 is '-1.5'"),
        (("meta_info", "output_token_logprobs", 3, 0), -(10**400), "log-prob 3 is -1000"),
        (("meta_info", "output_token_logprobs", 3), [-0.5], r"output_token_logprobs\[3\] is \[-0.5\]"),
        (("meta_info", "output_token_logprobs", 3, 1), 144.0, "log-prob 3 belongs to token 144.0, output is 144"),
        (("meta_info", "weight_versions", 0, "version"), "9" * 30, "weight version is '9999.*expected a whole number"),
        (("meta_info", "weight_versions", 0, "version"), 3, "weight version is 3; expected a whole number as text"),
        (("meta_info", "weight_versions", 0, "end"), 8.0, r"weight_versions\[0\].end is 8.0"),
        (("meta_info", "weight_versions", 0, "start"), False, r"weight_versions\[0\].start is False"),
        (("meta_info", "weight_versions", 0), "3", r"weight_versions\[0\] is '3'; expected a JSON object"),
        (("meta_info", "cached_tokens"), 10**30, "cached_tokens is 1000"),
        (("meta_info", "prompt_tokens"), -4, "prompt_tokens is -4"),
        (("meta_info", "finish_reason", "matched"), {"a": 1}, "finish_reason.matched is {'a': 1}"),
        (("meta_info", "finish_reason"), {"type": "abort", "status_code": "so-so"}, "status_code is 'so-so'"),
        (("meta_info", "finish_reason"), {"type": ["stop"]}, r"finish_reason.type is \['stop'\]"),
        (("meta_info",), [], r"meta_info is \[\]; expected a JSON object"),
    ],
)
async def test_each_wrong_field_of_a_generation_is_named(path: Path, value: Any, words: str) -> None:
    body = json.dumps(changed(real("generate_length"), path, value))
    with pytest.raises(EngineContractBroken, match=words):
        await ask(body, generate)


async def test_more_tokens_than_requested_are_refused() -> None:
    async def ask_for_four(client: EngineClient) -> Generation:
        return await client.generate(URL, [5, 100], {"max_new_tokens": 4}, rid="r1")

    with pytest.raises(EngineContractBroken, match="8 output_ids; expected at most 4 as asked"):
        await ask(json.dumps(real("generate_length")), ask_for_four)


async def test_an_engine_of_another_vocabulary_is_a_failing_engine_to_the_pool() -> None:
    rows = vocabulary_of(ROOT / "assets" / "example" / "model")
    assert rows == json.loads((ROOT / "assets" / "example" / "model" / "config.json").read_text())["vocab_size"]
    engines = Engines({"good": reply([3, rows - 1]), "other": reply([3, rows])})
    up = [Up("http://other:1"), Up("http://good:1", running=9)]

    async def services() -> list[Up]:
        return up

    async with EngineClient(transport=httpx.MockTransport(engines)) as client:
        pool = EnginePool(client, services, PoolLimits(backoff_s=0.001), vocabulary=rows)
        answered = await pool.generate([1, 2], {"max_new_tokens": ASKED}, rid="r")
        await pool.close()
    assert (answered.generation.output_ids, answered.failures) == ([3, rows - 1], 1)
    assert engines.hosts() == ["other", "good"]


def reply(ids: list[int]) -> Behavior:
    async def behave(_: httpx.Request) -> httpx.Response:
        return answer(ids, STOP)

    return behave


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("body", ["[" * 100_000, '{"meta_info":' * 50_000, "1" * 5000, "\x00", ""])
@pytest.mark.parametrize("question", [generate, *OTHERS.values()])
async def test_a_response_that_is_not_a_json_object_is_an_engine_error(
    status: int, body: str, question: Callable[[EngineClient], Any]
) -> None:
    with pytest.raises(EngineError) as caught:
        await ask(body, question, status)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", GENERATIONS)
async def test_one_hostile_value_anywhere_in_a_generation_is_refused_or_harmless(name: str) -> None:
    """Every field of every answer, with every hostile value and without the field."""
    body = real(name)
    for path in {tuple(0 if isinstance(k, int) else k for k in path): path for path in paths(body)}.values():
        for value in (..., *HOSTILE):
            await assert_refused_or_harmless(json.dumps(changed(body, path, value)), generate)


@given(st.data())
async def test_several_hostile_values_in_any_answer_are_refused_or_harmless(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*GENERATIONS, *OTHERS]))
    body = real(name)
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(list(paths(body)) or [("a",)]))
        value = data.draw(st.sampled_from([..., *HOSTILE]) | st.floats() | st.integers() | st.text(max_size=8))
        body = changed(body, path, value)
    await assert_refused_or_harmless(json.dumps(body), OTHERS.get(name, generate))


async def assert_refused_or_harmless(body: str, question: Callable[[EngineClient], Any]) -> None:
    try:
        found = await ask(body, question)
    except EngineError as exc:
        found = str(exc)
    if isinstance(found, Generation):
        assert_trainable(found)
    assert not isinstance(found, str) or len(found) < 1000, "a message is stored"
