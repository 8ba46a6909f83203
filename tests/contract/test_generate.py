"""Fields of a generation: log-probs, finish reason, cached tokens, versions; alone and among concurrent requests."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.client.generation import Generation
from sampler.core.engines.pool.engine_pool import EnginePool
from sampler.core.errors import ContextTooLong, EngineRefused
from shared.truncation import ENGINES, Truncation
from tandem.what_if.forward_scores import settled_logprobs
from tandem.what_if.row_inputs import RowInputs
from tests.contract.engines import CONTEXT, EXACT, MODEL, Engine
from tests.trainer.builders import RecordBuilder
from trainer.modeling.forward import TreeLM, forward_row
from trainer.modeling.forward_ways import OWN
from trainer.modeling.model import load_model

PROMPT = list(range(20, 60))
TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
CHAT = TOKENIZER.encode(
    "<|im_start|>user\nWhat is 4+3?<|im_end|>\n<|im_start|>assistant\n"
).ids  # 12 tokens do not answer it
Until = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]


async def ask(engine: Engine, client: EngineClient, prompt: list[int], count: int = 32, **params: Any) -> Generation:
    sampling = {"max_new_tokens": count, "ignore_eos": True, **params}
    return await client.generate(engine.url, prompt, sampling, rid="contract")


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0.7}, {"temperature": 1.3, "top_p": 0.8, "top_k": 20}, {"min_p": 0.02}],
    ids=["plain", "cooler", "top-p and top-k", "min-p"],
)
async def test_logprobs_are_those_of_the_distribution_that_was_sampled(
    engine: Engine, client: EngineClient, params: dict[str, float]
) -> None:
    """SGLang reports those before the filters: the reason why training samples without any there."""
    found = await ask(engine, client, PROMPT, **params)
    assert (found.finish_reason, len(found.output_ids)) == ("length", 32)
    assert found.version_runs == [[engine.label, 32]]
    temperature = params.get("temperature", 1.0)
    is_cut = bool(params.keys() - {"temperature"})
    assert found.truncated_logprobs == (is_cut and engine.kind in ENGINES)
    if not found.truncated_logprobs:
        engine.reference.assert_truthful(PROMPT, found, temperature)
        return
    expected = engine.reference.filtered(engine.label, PROMPT, found.output_ids, params)
    assert found.logprobs == pytest.approx(expected, abs=EXACT)
    before = engine.reference.logprobs(engine.label, PROMPT, found.output_ids, temperature)
    assert max(after - free for after, free in zip(found.logprobs, before, strict=True)) > EXACT, "they differ"


@pytest.mark.parametrize(
    "params", [{"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.02, "top_k": 50, "top_p": 0.95}], ids=str
)
async def test_the_trainer_computes_the_log_probs_of_a_truncated_distribution_again(
    engine: Engine, client: EngineClient, params: dict[str, float]
) -> None:
    """To float error, but for ties at the boundary: `settled_logprobs`."""
    if engine.kind not in ENGINES:
        pytest.skip(f"{engine.kind} reports log-probs before truncation")
    sampled = {"temperature": 1.3, **params}
    record = RecordBuilder("r")
    start = record.context(PROMPT)
    for _ in range(4):
        found = await ask(engine, client, PROMPT, 48, **sampled)
        record.reply(
            found.output_ids, start, logprobs=found.logprobs, temperature=1.3, truncation=Truncation.of(sampled)
        )
    lm = TreeLM(load_model(engine.weights(engine.label), attn_implementation=OWN.attention)).requires_grad_(False)
    (row,) = RowInputs().rows(lm, [record.build()])
    mask = lm.mask("cpu")
    assert (settled_logprobs(lm, row, mask) - row.old_logprob_E).abs().max() <= EXACT
    forwarded = forward_row(lm, row, attn=mask)
    assert forwarded.outside_E is not None
    apart = (forwarded.logprob_E - row.old_logprob_E).abs() > EXACT
    assert int(apart.sum()) <= 2, "ties"
    assert int(forwarded.outside_E.sum()) <= 2, "ties"


async def test_greedy_output_equals_that_of_transformers(engine: Engine, client: EngineClient) -> None:
    found = await ask(engine, client, PROMPT, 24, temperature=0)
    assert found.output_ids == engine.reference.greedy(engine.label, PROMPT, 24)
    engine.reference.assert_truthful(PROMPT, found)


async def test_a_stop_token_ends_a_reply_and_is_part_of_it(engine: Engine, client: EngineClient) -> None:
    greedy = engine.reference.greedy(engine.label, CHAT, 12)
    stop = greedy[-1]
    expected = greedy[: greedy.index(stop) + 1]
    found = await ask(engine, client, CHAT, 100, temperature=0, stop_token_ids=[stop], ignore_eos=False)
    assert (found.finish_reason, found.matched, found.output_ids) == ("stop", stop, expected)
    engine.reference.assert_truthful(CHAT, found)


async def test_the_models_own_end_of_turn_ends_a_reply(engine: Engine, client: EngineClient) -> None:
    end = TOKENIZER.token_to_id("<|im_end|>")
    found = await ask(engine, client, CHAT, 400, ignore_eos=False, temperature=0)
    assert (found.finish_reason, found.matched, found.output_ids[-1]) == ("stop", end, end)
    assert end not in found.output_ids[:-1]
    longer = await ask(engine, client, CHAT, len(found.output_ids) + 5, temperature=0)
    assert (longer.finish_reason, longer.output_ids[: len(found.output_ids)]) == ("length", found.output_ids)


async def test_a_stop_string_ends_a_reply_and_its_tokens_stay(engine: Engine, client: EngineClient) -> None:
    greedy = engine.reference.greedy(engine.label, CHAT, 12)
    text = TOKENIZER.decode(greedy, skip_special_tokens=True)
    stop = text[3:6]
    found = await ask(engine, client, CHAT, 60, temperature=0, stop=[stop])
    assert (found.finish_reason, found.matched) == ("stop", stop)
    assert found.output_ids == greedy[: len(found.output_ids)]
    assert stop in TOKENIZER.decode(found.output_ids, skip_special_tokens=True)
    engine.reference.assert_truthful(CHAT, found)


async def test_a_stop_token_takes_precedence_over_the_length(engine: Engine, client: EngineClient) -> None:
    greedy = engine.reference.greedy(engine.label, CHAT, 12)
    count = greedy.index(greedy[-1]) + 1
    found = await ask(engine, client, CHAT, count, temperature=0, stop_token_ids=[greedy[-1]], ignore_eos=False)
    assert (found.finish_reason, found.matched) == ("stop", greedy[-1])


async def test_a_cached_prefix_is_reported_and_changes_no_logprob(engine: Engine, client: EngineClient) -> None:
    first = await ask(engine, client, PROMPT)
    prompt = [*PROMPT, *first.output_ids, *range(70, 80)]
    second = await ask(engine, client, prompt)
    assert (first.cached_tokens, first.prompt_tokens) == (0, len(PROMPT))
    assert len(PROMPT) <= second.cached_tokens <= len(PROMPT) + len(first.output_ids)
    assert second.prompt_tokens == len(prompt)
    engine.reference.assert_truthful(prompt, second)


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 500])
async def test_a_prompt_without_room_for_a_token_is_too_long(engine: Engine, client: EngineClient, length: int) -> None:
    with pytest.raises(ContextTooLong):
        await ask(engine, client, [20] * length, 1)


async def test_more_new_tokens_than_the_context_holds_are_refused(engine: Engine, client: EngineClient) -> None:
    with pytest.raises(ContextTooLong):
        await ask(engine, client, [20] * 1000, 25)


async def test_a_reply_up_to_the_context_ends_two_tokens_before_it(engine: Engine, client: EngineClient) -> None:
    prompt = [20 + i % 200 for i in range(1000)]
    found = await ask(engine, client, prompt, 24)
    assert (found.finish_reason, len(found.output_ids)) == ("length", 22)
    engine.reference.assert_truthful(prompt, found)


async def test_fifty_requests_at_once_are_each_answered_exactly(
    engine: Engine, client: EngineClient, pool: EnginePool, until: Until
) -> None:
    """Groups of four share a prompt, as in training. No request runs afterwards."""
    prompts = [[20 + (7 * (i // 4) + j) % 300 for j in range(10 + i)] for i in range(50)]
    lengths = [20 + 3 * (i % 20) for i in range(50)]

    async def one(i: int) -> Generation:
        params: Mapping[str, Any] = {"max_new_tokens": lengths[i], "temperature": 1.0, "ignore_eos": True}
        return (await pool.generate(prompts[i], params, rid=f"crowd-{i}")).generation

    replies = await asyncio.gather(*(one(i) for i in range(50)))
    assert [len(reply.output_ids) for reply in replies] == lengths
    for prompt, reply in zip(prompts, replies, strict=True):
        engine.reference.assert_truthful(prompt, reply)
    assert pool.stats.failures == pool.stats.continuations == 0

    async def idle() -> bool:
        load = await client.load(engine.url)
        return load.running + load.waiting == 0

    await until(idle)


async def test_the_engine_reports_what_a_keeper_needs(engine: Engine, client: EngineClient) -> None:
    info = await client.model_info(engine.url)
    assert (info.weight_version, info.model_path) == (str(engine.label), str(engine.models[0]))
    server = await client.server_info(engine.url)
    assert server.max_running_requests == 64
    assert (server.version == "0.5.23") is (engine.kind == "sglang")


async def test_the_fields_that_training_needs_have_one_form(engine: Engine) -> None:
    """Checks the raw response, since `EngineClient` would hide differences."""
    body = {
        "rid": "raw-1",
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 3, "ignore_eos": True},
        "return_logprob": True,
        "a_key_that_nobody_knows": 1,  # ignored by both
    }
    async with httpx.AsyncClient(timeout=60) as http:
        answer = (await http.post(engine.url + "/generate", json=body)).json()
    assert {"text", "output_ids", "meta_info"} <= answer.keys()
    meta = answer["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("raw-1", len(PROMPT), 3)
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    assert meta["weight_version"] == str(engine.label)
    assert meta["weight_versions"] == [{"version": str(engine.label), "start": 0, "end": 3}]
    assert [(type(lp), token, text) for lp, token, text in meta["output_token_logprobs"]] == [
        (float, token, None) for token in answer["output_ids"]
    ]


async def test_ids_are_heard_while_they_are_sampled(engine: Engine, client: EngineClient) -> None:
    heard: list[list[int]] = []
    sampling = {"max_new_tokens": 200, "ignore_eos": True}
    found = await client.generate(engine.url, PROMPT, sampling, rid="heard", on_ids=lambda ids: heard.append(list(ids)))
    assert (found.finish_reason, len(found.output_ids)) == ("length", 200)
    assert found.version_runs == [[engine.label, 200]]
    engine.reference.assert_truthful(PROMPT, found, 1.0)
    assert heard, "a fast engine may end within the first pause, and what comes last is told with the reply"
    assert len(heard[0]) < 200
    assert all(found.output_ids[: len(ids)] == ids for ids in heard)
    with pytest.raises(ContextTooLong):
        await client.generate(engine.url, [5] * (CONTEXT + 5), sampling, rid="long", on_ids=heard.append)


async def test_a_stream_ends_with_the_whole_answer(engine: Engine) -> None:
    body = {
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 5, "ignore_eos": True},
        "return_logprob": True,
        "stream": True,
    }
    async with httpx.AsyncClient(timeout=60) as http:
        response = await http.post(engine.url + "/generate", json=body)
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    last = json.loads(events[-2])
    assert (len(last["output_ids"]), last["meta_info"]["finish_reason"]) == (5, {"type": "length", "length": 5})


async def test_a_schema_constrains_a_reply_where_the_engine_has_grammars(engine: Engine, client: EngineClient) -> None:
    params = {"json_schema": json.dumps({"enum": ["Paris"]}), "ignore_eos": False, "temperature": 1.0}
    if engine.kind == "local":
        with pytest.raises(EngineRefused, match="json_schema"):
            await ask(engine, client, CHAT, 60, **params)
        return
    found = await ask(engine, client, CHAT, 60, **params)
    assert json.loads(TOKENIZER.decode(found.output_ids, skip_special_tokens=True)) == "Paris"
    own = engine.reference.logprobs(engine.label, CHAT, found.output_ids)
    gains = [stored - free for stored, free in zip(found.logprobs, own, strict=True)]
    assert min(gains) > -0.01, "log-probs of the allowed tokens alone, renormalized, are never below the model's own"
    assert max(gains) > 1.0, "and far above where few tokens are allowed"
