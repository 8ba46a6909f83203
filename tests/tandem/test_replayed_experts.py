"""`tandem verify` and `replay` compute a mixture of experts with the experts that the engine chose."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.progress import Progress

from shared.documents import DBRecordData, DispatchedSamplingTask
from shared.documents.packed import pack_floats
from shared.documents.routed_experts import PackedExperts, pack_experts, unpack_experts
from shared.documents.states import RecordStatus, Termination
from shared.errors import DataError
from shared.store import Store
from shared.tokens.flatten import data_fields, flatten, tree_of
from tandem.what_if.forward_scores import inputs_of_turns, turn_logprobs
from tandem.what_if.replay import replay
from tandem.what_if.row_inputs import read_inputs
from tandem.what_if.sampled import read_episode
from tandem.what_if.stored_weights import kept_weights, published_versions
from tandem.what_if.verify import VerifyConfig, verify
from tests.shared.builders import claim, import_tasks
from tests.shared.episodes import make_dispatch
from tests.trainer.builders import tiny_experts_model
from tests.trainer.replayed import LAYERS, NUM_EXPERTS, TOP_K, expected_choices, replay_one_by_one
from trainer.modeling.forward import TreeLM
from trainer.process.parallel import parallel_session

RNG = np.random.default_rng(7)
REQUESTS = (  # parent, tokens shared with it, prompt, reply; the first token with experts, and how many
    (None, 0, [1, 2, 3], [4, 5, 6], 0, 5),
    (0, 6, [7, 8], [9, 10], 5, 4),
    (1, 4, [11], [12, 13], 3, 3),  # shares one token of the first reply, whose array goes on
)

PATHS = ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 11, 12, 13])


def packed(first: int, count: int) -> PackedExperts:
    chosen = np.argsort(RNG.random((count, LAYERS, NUM_EXPERTS)), -1)[..., :TOP_K]
    return pack_experts(chosen.reshape(count, -1), first)


def answered(record: str, turn: int, experts: PackedExperts, logprobs: list[float]) -> DispatchedSamplingTask:
    parent, shared, prompt, reply, *_ = REQUESTS[turn]
    made = make_dispatch(record, turn, shared=shared, parent=parent, prompt=prompt, output=reply)
    assert made.response is not None
    response = made.response.model_copy(update={"output_logprobs": pack_floats(logprobs)})
    of_version_0 = {"response": response, "weight_versions": [(0, len(reply))]}
    return made.model_copy(update={**of_version_0, "routed_experts": experts.described})


def sampled(record: str, experts: list[PackedExperts]) -> list[DispatchedSamplingTask]:
    """By the formula, token by token: log-probs of a model whose routers got these experts."""
    drafts = [answered(record, turn, experts[turn], [0.0] * len(REQUESTS[turn][3])) for turn in range(3)]
    tree = flatten(record, drafts, {one.id: 1.0 for one in drafts})
    arrays = {one.described.sha256: unpack_experts(one.described, one.data).copy() for one in experts}
    model = tiny_experts_model()
    replay_one_by_one(model, expected_choices([tree], arrays))
    dispatches = []
    for turn, path in enumerate(PATHS):
        with torch.no_grad():
            logprobs = model(input_ids=torch.tensor([path])).logits[0].log_softmax(-1)
        places = range(len(path) - len(REQUESTS[turn][3]), len(path))
        own = [float(logprobs[at - 1, path[at]]) for at in places]
        dispatches.append(answered(record, turn, experts[turn], own))
    return dispatches


@pytest.fixture
async def record(store: Store, tmp_path: Path) -> str:
    """An episode of a mixture whose engine chose other experts than the model's routers would have."""
    await import_tasks(store, 1, num_generations=1)
    held = await claim(store)
    started = await store.records.start(held, "w")
    experts = [packed(first, count) for *_, first, count in REQUESTS]
    dispatches = sampled(started.id, experts)
    for one in experts:
        await store.routed_experts.keep(one)
    for one in dispatches:
        await store.records.open_dispatch(one)
        await store.records.close_dispatches([one])
    values = {"traj": [one.id for one in dispatches], "num_turns": 3, "num_tokens": 7, "policy_versions": [0]}
    values |= {"termination": Termination.ANSWERED.value, "score": 1.0}
    await store.records.move(held.record_id, RecordStatus.SCORED, values)
    await store.data.write_group(
        [
            DBRecordData(
                id=started.id,
                record=started.id,
                task=started.task,
                group_size=1,
                seq=0,
                policy="main",
                split="train",
                source="test",
                reward=1.0,
                **data_fields(flatten(started.id, dispatches, {one.id: 1.0 for one in dispatches})),
            )
        ]
    )
    tiny_experts_model().save_pretrained(tmp_path / "model")
    await store.versions.announce("main", 0, str(tmp_path / "model"), {})
    return started.id


async def test_verify_repeats_them(store: Store, record: str) -> None:
    (found,) = await verify(store, VerifyConfig(run=store.run, db_connection_string="given"))
    assert (found.records, found.tokens) == (1, 7)
    assert found.largest_difference < 1e-5


async def test_replay_repeats_them_also_where_a_turn_shares_a_part_of_another(store: Store, record: str) -> None:
    episode = await read_episode(store, record)
    assert [[(span.start, span.rows) for span in turn.experts] for turn in episode.turns] == [
        [(0, 5)],
        [(0, 5), (5, 4)],
        [(0, 4), (3, 3)],
    ]
    published = await published_versions(store, "main")
    inputs = await inputs_of_turns(store, episode.turns, published)
    with parallel_session("cpu", 1), kept_weights(published, Path("none"), "cpu") as weights:
        result = replay(episode, inputs, weights, "cpu", Progress(disable=True))
        routed = [dataclasses.replace(turn, experts=()) for turn in episode.turns]
        own = turn_logprobs(weights.load(weights.all[0]), routed, "cpu", inputs)
    for turn, by_routers in zip(result.turns, own, strict=True):
        assert np.abs(turn.recomputed - turn.sampled.logprobs).max() < 1e-5
        assert np.abs(by_routers.detach().numpy() - turn.sampled.logprobs).max() > 1e-2


async def test_experts_of_another_model_are_refused(store: Store, record: str) -> None:
    (data,) = await store.data.load([record])
    tree = tree_of(data, (await store.records.tokens_of([record]))[record])
    inputs = await read_inputs(store, [tree], Path("none"))
    with pytest.raises(DataError, match=rf"record {record}: routed expert \d; expected 0 to 1"):
        inputs.rows(TreeLM(tiny_experts_model(num_experts=2)), [tree])
