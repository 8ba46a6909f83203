"""What /generate promises: exact log-probs under every way of batching, SGLang's finish reasons and limits."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.sampler.engine.local.harness import CONTEXT, VOCABULARY, Reference, Server

PROMPT = [5, 100, 101, 102, 103, 104, 105, 106]
EOS = 2


def prompts(count: int, seed: int = 0, longest: int = 120) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def test_a_response_has_sglangs_fields(server: Server) -> None:
    answer = server.generate(PROMPT, 4)
    meta = answer["meta_info"]
    assert set(answer) == {"text", "output_ids", "meta_info"}
    assert len(answer["output_ids"]) == meta["completion_tokens"] == meta["output_token_logprobs_length"] == 4
    assert [token for _, token, _ in meta["output_token_logprobs"]] == answer["output_ids"]
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert meta["prompt_tokens"] == 8
    assert meta["weight_version"] == "v0"
    assert meta["weight_versions"] == [{"version": "v0", "start": 0, "end": 4}]
    assert meta["input_token_logprobs"] == []
    assert meta["e2e_latency"] > 0


def test_greedy_output_equals_transformers_generate(server: Server, reference: Reference) -> None:
    for prompt in prompts(5):
        assert server.generate(prompt, 24, temperature=0, ignore_eos=False)["output_ids"] == reference.greedy(
            0, prompt, 24
        )


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6, 0])
def test_log_probs_equal_a_plain_forward_at_the_temperature(
    server: Server, reference: Reference, temperature: float
) -> None:
    answer = server.generate(PROMPT, 40, temperature=temperature)
    reference.assert_exact(0, PROMPT, answer, temperature or 1.0)


def test_a_reply_says_that_its_log_probs_are_of_a_truncated_distribution(server: Server) -> None:
    """Their values: tests/contract/test_generate.py."""
    cut = server.generate(PROMPT, 4, temperature=0.8, top_p=0.7)
    assert cut["meta_info"]["truncated_logprobs"] is True
    for whole in ({}, {"top_p": 1.0, "top_k": -1, "min_p": 0.0}, {"temperature": 0, "top_p": 0.7}):
        assert "truncated_logprobs" not in server.generate(PROMPT, 4, **whole)["meta_info"]


def test_log_probs_stay_exact_when_turns_reuse_the_cache(server: Server, reference: Reference) -> None:
    context = list(PROMPT)
    for turn in range(5):
        answer = server.generate(context, 12)
        reference.assert_exact(0, context, answer)
        if turn:
            # all but the last sampled token and the new "tool result" were in the cache
            assert answer["meta_info"]["cached_tokens"] == len(context) - 6
        context += answer["output_ids"] + [7, 8, 9, 10 + turn, 11]


def test_log_probs_stay_exact_with_many_requests_of_mixed_lengths(server: Server, reference: Reference) -> None:
    """More requests than slots, prompts longer than one prefill step together, different ends."""
    asked = prompts(40, seed=1) + [[9] * 100 + [i] for i in range(8)]

    def one(i: int) -> dict[str, Any]:
        return server.generate(asked[i], 5 + 3 * (i % 11))

    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(one, range(len(asked))))
    for prompt, answer in zip(asked, answers, strict=True):
        reference.assert_exact(0, prompt, answer)


def test_a_group_with_one_prompt_computes_it_once(server: Server, reference: Reference) -> None:
    prompt = prompts(1, seed=3, longest=90)[0] * 3
    sampling = {"max_new_tokens": 10, "ignore_eos": True}
    body = {"input_ids": [prompt] * 8, "sampling_params": sampling, "return_logprob": True}
    answers = server.ok("/generate", body).json()
    cached = sorted(answer["meta_info"]["cached_tokens"] for answer in answers)
    assert cached == [0] + [len(prompt) - 1] * 7
    for answer in answers:
        reference.assert_exact(0, prompt, answer)
    assert len({tuple(answer["output_ids"]) for answer in answers}) > 1


def test_the_last_context_positions_are_exact_too(server: Server, reference: Reference) -> None:
    prompt = [i % VOCABULARY for i in range(CONTEXT - 24)]
    answer = server.generate(prompt, 24)
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 22}  # as SGLang: context - 2
    reference.assert_exact(0, prompt, answer)


def test_max_new_tokens_defaults_to_128_and_null_means_up_to_the_context(server: Server) -> None:
    def count(prompt: list[int], sampling: dict[str, Any]) -> int:
        return len(server.ok("/generate", {"input_ids": prompt, "sampling_params": sampling}).json()["output_ids"])

    assert count(PROMPT, {"ignore_eos": True}) == 128
    assert count([3] * (CONTEXT - 24), {"ignore_eos": True}) == 22
    assert count(PROMPT, {"ignore_eos": True, "max_new_tokens": None}) == CONTEXT - 2 - len(PROMPT)


def test_max_new_tokens_zero_generates_nothing(server: Server) -> None:
    answer = server.generate(PROMPT, 0)
    assert answer["output_ids"] == []
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert answer["meta_info"]["weight_versions"] == [{"version": "v0", "start": 0, "end": 0}]


def test_a_stop_token_ends_the_output_and_is_part_of_it(server: Server) -> None:
    greedy = server.generate(PROMPT, 8, temperature=0)["output_ids"]
    stop = next(token for i, token in enumerate(greedy) if i > 1 and token not in greedy[:i])
    answer = server.generate(PROMPT, 8, temperature=0, stop_token_ids=[stop], ignore_eos=False)
    assert answer["output_ids"] == greedy[: greedy.index(stop) + 1]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_the_end_of_sequence_token_ends_the_output_unless_ignored(server: Server) -> None:
    ended = [server.generate(p, 100, ignore_eos=False, sampling_seed=1) for p in prompts(20, seed=5, longest=9)]
    stopped = [a for a in ended if a["meta_info"]["finish_reason"]["type"] == "stop"]
    assert stopped, "no sequence ended with a stop token: the test model needs another seed"
    for answer in stopped:
        assert answer["meta_info"]["finish_reason"]["matched"] == EOS
        assert answer["output_ids"].index(EOS) == len(answer["output_ids"]) - 1
        assert "<|im_end|>" not in answer["text"]
    assert len(server.generate(PROMPT, 100, ignore_eos=True)["output_ids"]) == 100


def test_a_stop_string_ends_the_output_and_is_cut_from_the_text(server: Server, model_paths: tuple[Path, Path]) -> None:
    tokenizer = Tokenizer.from_file(str(model_paths[0] / "tokenizer.json"))
    long = server.generate(PROMPT, 60, sampling_seed=4)
    text = long["text"]
    stop = next(text[i : i + 2] for i in range(8, 50) if "�" not in text[i : i + 2] and text[i : i + 2].isprintable())
    answer = server.generate(PROMPT, 60, sampling_seed=4, stop=[stop])
    count = len(answer["output_ids"])
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert answer["output_ids"] == long["output_ids"][:count]
    assert answer["text"] == text[: text.index(stop)]
    assert stop in tokenizer.decode(answer["output_ids"])
    assert stop not in tokenizer.decode(answer["output_ids"][:-1])


def test_a_seed_repeats_a_generation_and_no_seed_does_not(server: Server) -> None:
    first, second, other = (server.generate(PROMPT, 30, sampling_seed=seed)["output_ids"] for seed in (7, 7, 8))
    assert first == second != other
    assert server.generate(PROMPT, 30)["output_ids"] != server.generate(PROMPT, 30)["output_ids"]


def test_a_batch_is_answered_in_its_order_with_its_own_parameters(server: Server) -> None:
    body = {
        "input_ids": [PROMPT, PROMPT[:4]],
        "sampling_params": [{"max_new_tokens": 8, "ignore_eos": True}, {"max_new_tokens": 3, "temperature": 0}],
        "return_logprob": [True, False],
        "rid": ["a1", "a2"],
    }
    first, second = server.ok("/generate", body).json()
    assert (first["meta_info"]["id"], second["meta_info"]["id"]) == ("a1", "a2")
    assert (len(first["output_ids"]), second["meta_info"]["prompt_tokens"]) == (8, 4)
    assert "output_token_logprobs" in first["meta_info"]
    assert "output_token_logprobs" not in second["meta_info"]


def test_text_is_tokenized_and_n_gives_several_samples(server: Server, model_paths: tuple[Path, Path]) -> None:
    ids = Tokenizer.from_file(str(model_paths[0] / "tokenizer.json")).encode("the quick brown").ids
    answers = server.ok("/generate", {"text": "the quick brown", "sampling_params": {"n": 3}}).json()
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [len(ids)] * 3


def test_a_stream_sends_one_event_per_token_and_then_done(server: Server, reference: Reference) -> None:
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 6, "ignore_eos": True}, "return_logprob": True}
    text = server.ok("/generate", {**body, "stream": True}).text
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    assert [len(event["output_ids"]) for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * 5
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    reference.assert_exact(0, PROMPT, events[-1])


@pytest.mark.parametrize(
    ("interval", "lengths"), [(4, [1, 5, 9, 10]), (3, [1, 4, 7, 10]), (50, [1, 10]), (0, list(range(1, 11)))]
)
def test_a_stream_sends_its_first_token_then_an_event_per_interval_and_the_last(
    server: Server, reference: Reference, interval: int, lengths: list[int]
) -> None:
    sampling = {"max_new_tokens": 10, "ignore_eos": True, "stream_interval": interval}
    body = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True, "stream": True}
    events = [json.loads(line[6:]) for line in server.ok("/generate", body).text.split("\n\n") if line[6:7] == "{"]
    assert [len(event["output_ids"]) for event in events] == lengths
    reference.assert_exact(0, PROMPT, events[-1])


def test_sampled_tokens_follow_the_distribution(server: Server, reference: Reference) -> None:
    """4,800 first tokens: the frequency of the likely ones within 6 standard errors of their probability."""
    sampling = {"max_new_tokens": 1, "ignore_eos": True}
    counts = [0] * VOCABULARY
    for _ in range(24):
        for answer in server.ok("/generate", {"input_ids": [PROMPT] * 200, "sampling_params": sampling}).json():
            counts[answer["output_ids"][0]] += 1
    total = sum(counts)
    for token in range(VOCABULARY):
        p = 2.718281828459045 ** reference.log_probs(0, PROMPT, [token])[0]
        if p > 0.01:
            assert abs(counts[token] / total - p) < 6 * (p * (1 - p) / total) ** 0.5
