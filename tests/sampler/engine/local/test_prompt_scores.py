"""Log-probs of prompt tokens: exact however a prompt is computed, and refused by the client where an answer is not whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.errors import EngineContractBroken, EngineRefused
from tests.sampler.engine.local.harness import ROUNDING, Reference, Server
from tests.sampler.engine.local.test_generate import PROMPT, prompts

URL = "http://engine:1"


def scores(server: Server, ids: list[int], start: int, **sampling: Any) -> list[list[Any]]:
    body = {"input_ids": ids, "return_logprob": True, "logprob_start_len": start}
    answer = server.ok("/generate", {**body, "sampling_params": {"max_new_tokens": 1, **sampling}}).json()
    found: list[list[Any]] = answer["meta_info"]["input_token_logprobs"]
    return found


def assert_scored(reference: Reference, ids: list[int], start: int, found: list[list[Any]]) -> None:
    assert [token for _, token, _ in found] == ids[start:]
    assert found[0][0] is None
    expected = reference.log_probs(0, ids[: start + 1], ids[start + 1 :])
    assert [lp for lp, _, _ in found[1:]] == pytest.approx(expected, abs=ROUNDING)


def test_prompt_log_probs_equal_a_plain_forward_also_after_the_cache_has_the_prompt(
    server: Server, reference: Reference
) -> None:
    ids = prompts(1, seed=4)[0] + PROMPT * 3
    for start in (0, 5, len(ids) - 2, 0):
        assert_scored(reference, ids, start, scores(server, ids, start, temperature=0.5))


def test_prompt_log_probs_stay_exact_in_a_batch_of_long_prompts_and_generations(
    server: Server, reference: Reference
) -> None:
    many = [ids * 2 for ids in prompts(24, seed=5, longest=110)]  # beyond one prefill: they are computed in pieces
    with ThreadPoolExecutor(24) as pool:
        others = [pool.submit(server.generate, ids[:20], 30) for ids in many[:8]]
        found = list(pool.map(lambda ids: scores(server, ids, len(ids) // 3), many))
    for ids, one in zip(many, found, strict=True):
        assert_scored(reference, ids, len(ids) // 3, one)
    for ids, other in zip(many, others, strict=False):
        reference.assert_exact(0, ids[:20], other.result())


async def test_the_client_returns_one_log_prob_per_token_and_the_version(server: Server, reference: Reference) -> None:
    server.ok("/update_weight_version", {"new_version": "7", "abort_all_requests": False})
    async with EngineClient() as client:
        found = await client.score_prompt(server.url, PROMPT, 2, "r")
        with pytest.raises(EngineRefused, match="starts at 8 of 8"):
            await client.score_prompt(server.url, PROMPT, 8, "r")
    assert found.version == 7
    assert found.logprobs == pytest.approx(reference.log_probs(0, PROMPT[:3], PROMPT[3:]), abs=ROUNDING)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([[None, 5, None]], "expected 2, those from position 0 on"),
        ([[None, 5, None], [-0.5, 7, None]], "belongs to token 7, not to 6"),
        ([[None, 5, None], [0.5, 6, None]], "expected at most 0"),
        ([[None, 5, None], [None, 6, None]], "expected a finite number"),
        ([[None, 5, None], 6], "expected \\[log-prob"),
        (None, "expected a JSON array"),
    ],
)
async def test_an_answer_without_a_log_prob_of_each_token_is_never_read_as_one(pairs: Any, words: str) -> None:
    meta = {"finish_reason": {"type": "length", "length": 1}, "weight_version": "3", "prompt_tokens": 2}
    meta |= {"output_token_logprobs": [[-1.0, 9, None]], "input_token_logprobs": pairs}

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"output_ids": [9], "meta_info": meta})

    async with EngineClient(transport=httpx.MockTransport(answer)) as client:
        with pytest.raises(EngineContractBroken, match=words):
            await client.score_prompt(URL, [5, 6], 0, "r")
