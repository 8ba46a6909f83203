"""Truncation in training: where it comes from, what is stored with a reply, and which engines and replies are refused."""

import json
from typing import Any

import httpx
import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engines import Engines
from sampler.core.episode.dispatch import sampling_params
from sampler.core.episode.episode import play
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.settings import SamplerConfig
from shared.documents.states import RecordStatus
from shared.errors import ConfigError
from shared.names import EVAL_SPLIT
from shared.rules.run_rules import RuleSettings
from shared.store import Store
from shared.truncation import Truncation
from tests.sampler.engines import STOP, answer
from tests.sampler.episodes import MODEL, TEMPLATE, ended, resources
from tests.sampler.test_engine_lists import up
from tests.shared.builders import claim, import_tasks, make_task

REQUIRED = ["--run=r", "--model_name_or_path=m", "--db_connection_string=mongodb://h"]


def test_a_request_says_no_truncation_in_several_ways() -> None:
    for params in ({}, {"top_p": 1.0}, {"top_p": None, "top_k": -1, "min_p": 0}, {"top_k": None}):
        assert Truncation.of(params).keeps_all
    assert str(Truncation.of({"top_p": 0.95, "top_k": 20, "temperature": 0.5})) == "top_p 0.95, top_k 20"


def test_training_has_the_rules_and_evaluation_its_own_or_the_same() -> None:
    config = SamplerConfig.load([*REQUIRED, "--top_p=0.9", "--top_k=20", '--eval_sampling={"top_p": 1, "min_p": 0.1}'])
    training = make_task(0)
    sampled = sampling_params(config, training, [2])
    assert Truncation.of(sampled) == Truncation(top_p=0.9, top_k=20) == config.sampling.truncation
    evaluated = sampling_params(config, training.model_copy(update={"split": EVAL_SPLIT}), [2])
    assert Truncation.of(evaluated) == Truncation(top_k=20, min_p=0.1)
    plain = sampling_params(SamplerConfig.load(REQUIRED), training, [2])
    assert (plain["top_p"], plain.keys() & {"top_k", "min_p"}) == (1.0, set())


@pytest.mark.parametrize("flag", ["--top_p=0", "--top_p=1.1", "--top_k=1", "--min_p=1", "--presence_penalty=0.5"])
def test_what_cannot_be_trained_is_refused(flag: str) -> None:
    with pytest.raises(ConfigError, match=flag.partition("=")[0].removeprefix("--")):
        SamplerConfig.load([*REQUIRED, flag])


def test_evaluation_may_keep_all_tokens_and_not_none() -> None:
    assert SamplerConfig.load([*REQUIRED, "--eval_sampling.top_k=-1"]).sampling.eval_sampling.top_k == -1
    with pytest.raises(ConfigError, match="top_k is 0; expected 1 or more, or -1"):
        SamplerConfig.load([*REQUIRED, "--eval_sampling.top_k=0"])


@pytest.mark.parametrize("says_so", [True, False])
@pytest.mark.parametrize("split", ["train", "eval"])
async def test_a_trained_reply_whose_log_probs_are_those_before_truncation_is_refused(
    store: Store, split: str, says_so: bool
) -> None:
    ids = [*TEMPLATE.encode("<answer>5</answer>"), TEMPLATE.token_id("<|im_end|>") or 0]

    async def engine(request: httpx.Request) -> httpx.Response:
        prompt = json.loads(request.content)["input_ids"]
        reply = answer(ids, {**STOP, "matched": ids[-1]}, prompt_tokens=len(prompt))
        content: dict[str, Any] = reply.json()
        content["meta_info"] |= {"truncated_logprobs": True} if says_so else {}
        return httpx.Response(200, json=content)

    await import_tasks(store, 1, num_generations=1, split=split)
    got = await claim(store, split=split)
    async with resources(store, engine, top_p=0.9, mcp_manager_url=None) as shared:
        sampler = MCPSampler(shared, got)
        await play(sampler)
        record, _, dispatches = await ended(store, sampler)
    if split == "train" and not says_so:
        assert record.status is not RecordStatus.SCORED
        assert "top_p 0.9 in training, and the log-probs of the reply" in (record.error or "")
        assert all(dispatch.response is None for dispatch in dispatches)
        return
    assert record.status is RecordStatus.SCORED
    (dispatch,) = dispatches
    assert dispatch.response is not None
    assert (dispatch.response.truncated_logprobs, dispatch.sampling_params["top_p"]) == (says_so, 0.9)


async def test_an_engine_that_reports_log_probs_before_truncation_is_refused(store: Store) -> None:
    base = {"run": store.run, "db_connection_string": "(open already)", "model_name_or_path": MODEL}
    plain = SamplerConfig.model_validate(base)
    cut = SamplerConfig.model_validate(base | {"top_k": 20})
    async with EngineClient() as client:
        engines = Engines(store, client, cut)
        for kind, refused in (("local", False), ("vllm", False), ("sglang", True)):
            service = up(f"http://{kind}:30000", "keeper:elsewhere:7").model_copy(update={"kind": kind})
            await store.services.heartbeat(service)
            await engines.refresh()
            engines.check_truncation(plain)
            if not refused:
                engines.check_truncation(cut)
                continue
            with pytest.raises(
                ConfigError, match="engine http://sglang:30000: top_k 20 in training, and sglang reports"
            ):
                engines.check_truncation(cut)


def test_a_grammar_and_a_truncation_are_refused_together() -> None:
    grammar: dict[str, Any] = {"agents": {"agent_output_format": "constrain"}}
    RuleSettings.model_validate(grammar | {"sampling": {"eval_sampling": {"top_k": 20}}})
    with pytest.raises(ValueError, match=r"agent_output_format is constrain, and training samples with top_k 20"):
        RuleSettings.model_validate(grammar | {"sampling": {"top_k": 20}})
