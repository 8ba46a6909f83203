"""Routed experts: an engine says which experts computed each token, and they are those of a plain forward."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.errors import EngineContractBroken, EngineRefused
from sampler.core.rendering.template import ChatTemplate
from sampler.core.scorers import Score
from scripts.make_example_model import build_tokenizer
from shared.documents.states import Termination
from shared.store import Store
from shared.tokens.flatten import flatten
from tests.contract.engines import EXACT, START_S, Engine, running
from tests.sampler.episodes import resources
from tests.shared.builders import claim, import_tasks
from trainer.modeling.forward import TreeLM, forward_row
from trainer.modeling.model import load_model
from trainer.trees.packing import pack
from trainer.trees.tree import merge

LAYERS, EXPERTS, TOP_K = 3, 8, 2
PROMPT = list(range(20, 60))
PARAMS = {"max_new_tokens": 24, "ignore_eos": True, "temperature": 1.0}
ROUTED_BY_SGLANG = "--enable-return-routed-experts"


class Routed(NamedTuple):
    url: str
    model: PreTrainedModel

    def expected(self, ids: Sequence[int]) -> npt.NDArray[np.int32]:
        """[tokens but the last, choices] of transformers' own forward, each layer's in ascending order."""
        chosen: list[torch.Tensor] = []
        gates = [layer.mlp.gate for layer in self.model.model.layers]
        hooks = [gate.register_forward_hook(lambda _, args, out: chosen.append(out[2])) for gate in gates]
        with torch.no_grad():
            self.model(input_ids=torch.tensor([list(ids)]), use_cache=False)
        for hook in hooks:
            hook.remove()
        return np.concatenate([np.sort(layer.numpy(), -1) for layer in chosen], 1)[:-1]


@pytest.fixture(scope="module")
def experts_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tokenizer = tmp_path_factory.mktemp("experts"), build_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    config = Qwen3MoeConfig(
        vocab_size=-(-len(tokenizer) // 8) * 8, hidden_size=64, intermediate_size=64, moe_intermediate_size=32,
        num_hidden_layers=LAYERS, num_experts=EXPERTS, num_experts_per_tok=TOP_K, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=512, initializer_range=0.2, norm_topk_prob=True,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).float().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def routed(experts_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    log = tmp_path_factory.mktemp("local") / "engine.log"
    with running("local", experts_model, log) as url:
        yield Routed(url, Qwen3MoeForCausalLM.from_pretrained(experts_model, dtype=torch.float32))


def ascending(experts: npt.NDArray[np.int32] | None) -> npt.NDArray[np.int32]:
    """The experts of each layer in ascending order: engines order them by themselves."""
    assert experts is not None
    return np.sort(experts.reshape(len(experts), LAYERS, TOP_K), -1).reshape(len(experts), -1)


async def test_the_experts_of_prompt_and_reply_are_those_of_a_plain_forward(
    routed: Routed, client: EngineClient
) -> None:
    await _assert_experts(routed, client)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="SGLang registers the memory of routed experts with CUDA")
@pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed in this environment")
@pytest.mark.timeout(2 * START_S)
async def test_sglang_returns_the_experts_of_a_plain_forward(
    experts_model: Path, client: EngineClient, tmp_path: Path
) -> None:
    with running("sglang-gpu", experts_model, tmp_path / "engine.log", ROUTED_BY_SGLANG, "--base-gpu-id", "0") as url:
        model = Qwen3MoeForCausalLM.from_pretrained(experts_model, dtype=torch.float32)
        await _assert_experts(Routed(url, model), client)


async def _assert_experts(routed: Routed, client: EngineClient) -> None:
    found = await client.generate(routed.url, PROMPT, PARAMS, "experts-1", experts_from=0)
    ids = PROMPT + found.output_ids
    np.testing.assert_array_equal(ascending(found.experts), routed.expected(ids))
    following = [*ids, 7, 8, 9]  # a turn that continues it, from the engine's cache
    again = await client.generate(routed.url, following, PARAMS, "experts-2", experts_from=len(ids) - 1)
    expected = routed.expected(following + again.output_ids)
    np.testing.assert_array_equal(ascending(again.experts), expected[len(ids) - 1 :])
    assert again.cached_tokens > 0
    whole = await client.generate(routed.url, following, PARAMS, "experts-3", experts_from=0)
    np.testing.assert_array_equal(ascending(whole.experts), routed.expected(following + whole.output_ids))


async def test_they_are_not_in_a_reply_that_does_not_ask_for_them(routed: Routed, client: EngineClient) -> None:
    assert (await client.generate(routed.url, PROMPT, PARAMS, "experts-4")).experts is None


async def test_a_streamed_reply_has_them_at_its_end(routed: Routed, client: EngineClient) -> None:
    found = await client.generate(routed.url, PROMPT, PARAMS, "experts-5", experts_from=3, on_ids=lambda ids: None)
    np.testing.assert_array_equal(ascending(found.experts), routed.expected(PROMPT + found.output_ids)[3:])


async def test_an_aborted_reply_has_them_up_to_its_last_token_but_one(routed: Routed, client: EngineClient) -> None:
    begun = asyncio.Event()
    long = PARAMS | {"max_new_tokens": 440}
    asked = asyncio.create_task(
        client.generate(routed.url, PROMPT, long, "experts-6", experts_from=0, on_ids=lambda ids: begun.set())
    )
    await begun.wait()
    await client.abort(routed.url, "experts-6")
    found = await asked
    assert found.finish_reason == "abort", "it was not aborted before its end"
    np.testing.assert_array_equal(ascending(found.experts), routed.expected(PROMPT + found.output_ids))


class TwoTurns(AsyncSampler):
    async def run(self) -> Termination:
        await self.create_chat_completions([{"role": "user", "content": "What is 4+3?"}])
        await self.create_chat_completions([{"role": "user", "content": "And 5+1?"}])
        return Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        return Score(1.0)


@pytest.mark.parametrize("replay", [True, False])
async def test_the_trainer_replays_what_the_engine_chose_in_an_episode(
    routed: Routed, store: Store, experts_model: Path, *, replay: bool
) -> None:
    """From the engine by way of the documents to the log-probs: both compute in float32, so the routers agree by themselves."""
    await import_tasks(store, 1)
    async with resources(
        store, routed.url, max_new_tokens=12, answer_instruction="none", router_replay=replay
    ) as shared:
        values = {one.name: getattr(shared, one.name) for one in fields(shared)}
        held = await claim(store)
        assert (
            await play(TwoTurns(Resources(**values | {"template": ChatTemplate.from_dir(experts_model)}), held)) == 1.0
        )
    dispatches = (await store.records.tokens_of([held.record_id]))[held.record_id]
    record = flatten(held.record_id, dispatches, {one.id: 1.0 for one in dispatches})
    arrays = await store.routed_experts.read([span.stored for span in record.experts])
    assert len(arrays) == (2 if replay else 0)
    tree = merge([record], experts=arrays)
    (row,) = pack([tree], 10_000)
    lm = TreeLM(load_model(experts_model, dtype="float32", attn_implementation="sdpa"))
    logprob_E = forward_row(lm, row).logprob_E
    assert (logprob_E - row.old_logprob_E).abs().max() < EXACT
    assert lm.replay is not None
    tokens, replayed, _, differing = lm.replay.counts.tolist()
    assert (tokens - replayed, differing) == ((1, 0) if replay else (tokens, 0)), (
        "all but the last token, which predicts none"
    )


async def test_a_dense_model_is_refused(shared_engine: Engine, client: EngineClient) -> None:
    if shared_engine.kind == "vllm":
        pytest.skip(
            "our vLLM engine returns no routed experts; tests/sampler/engine/test_request_experts.py has its refusal"
        )
    with pytest.raises((EngineRefused, EngineContractBroken), match="routed_experts"):
        await client.generate(shared_engine.url, PROMPT, PARAMS, "experts-7", experts_from=0)
