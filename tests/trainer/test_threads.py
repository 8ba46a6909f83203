"""Episodes with parallel threads, forks at any depth and two policies are trained as exactly as a single conversation."""

from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import given, settings
from transformers import PreTrainedModel

from sampler.core.rendering.recorded import Parent, RecordedRequests
from shared.documents import DispatchedSamplingTask, SampledResponse
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.states import DispatchStatus
from shared.tokens.flatten import answered, flatten
from shared.tokens.record_tree import RecordTree
from tandem.audit.report import AuditReport
from tandem.audit.tokens import compare
from tests.trainer.builders import NUM_VERSIONS, STALENESS, logprobs_one_by_one
from tests.trainer.exactness import TOLERANCE, assert_same, every_loss, merged, one_by_one, seeds
from trainer.losses import LossConfig
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.trees.packing import pack
from trainer.trees.tree import merge

POLICIES = ("main", "judge")


@dataclass
class Episode:
    """Requests of two policies in random threads: some wait while others are asked, some are never answered.

    `whole`: what the engine read and sampled, by dispatch. A request begins anew, goes on behind any reply of its policy, or
    begins with a part of any earlier request, all of its prompt included. So few words that replies collide.
    """

    rng: np.random.Generator
    record: str
    dispatches: dict[str, DispatchedSamplingTask] = field(default_factory=dict)
    whole: dict[str, list[int]] = field(default_factory=dict)
    recorded: dict[str, RecordedRequests] = field(default_factory=lambda: {p: RecordedRequests() for p in POLICIES})
    waiting: dict[str, tuple[list[int], Parent]] = field(default_factory=dict)

    def play(self, turns: int) -> None:
        for turn in range(turns):
            self.ask(turn)
            while self.waiting and self.rng.random() < 0.6:
                self.answer(str(self.rng.choice(list(self.waiting))))
        for name in list(self.waiting):
            if self.rng.random() < 0.8:
                self.answer(name)

    def ask(self, turn: int) -> None:
        policy, name = str(self.rng.choice(POLICIES)), f"{self.record}:{turn}"
        earlier = [ids for key, ids in self.whole.items() if self.dispatches[key].policy == policy]
        new = self.rng.integers(3, 6, size=self.rng.integers(0, 3)).tolist()
        prompt = [int(self.rng.integers(7, 9)), 10, *new]
        if earlier and self.rng.random() < 0.8:
            base = earlier[int(self.rng.integers(len(earlier)))]
            prompt = [*base[: int(self.rng.integers(1, len(base) + 1)) if self.rng.random() < 0.5 else None], *new]
        parent = self.recorded[policy].parent_of(prompt)
        self.waiting[name] = (prompt, parent)
        self.dispatches[name] = DispatchedSamplingTask(
            id=name,
            record=self.record,
            policy=policy,
            turn=turn,
            parent=parent.name,
            shared_length=parent.shared,
            prompt_ids=pack_ints(prompt[parent.shared :]),
            messages=[],
            tools_hash="",
            sampling_params={"temperature": float(self.rng.choice([1.0, 0.7]))},
            status=DispatchStatus.FAILED,
        )

    def answer(self, name: str) -> None:
        prompt, parent = self.waiting.pop(name)
        ids = self.rng.integers(0, 3, size=self.rng.integers(1, 5)).tolist()
        logprobs = (-3.6 + 0.35 * self.rng.standard_normal(len(ids))).tolist()
        response = SampledResponse(
            text="",
            message={},
            output_ids=pack_ints(ids),
            output_logprobs=pack_floats(logprobs),
            finish_reason="stop",
        )
        versions = sorted(self.rng.integers(0, NUM_VERSIONS, len(ids)).tolist())
        update = {
            "response": response,
            "status": DispatchStatus.COMPLETED,
            "weight_versions": [(v, 1) for v in versions],
        }
        self.dispatches[name] = self.dispatches[name].model_copy(update=update)
        self.whole[name] = [*prompt, *ids]
        policy = self.dispatches[name].policy
        assert policy is not None
        self.recorded[policy].add(name, self.whole[name], parent)

    def of(self, policy: str) -> list[DispatchedSamplingTask]:
        return answered([d for d in self.dispatches.values() if d.policy == policy])


def group(seed: int, policy: str) -> list[RecordTree]:
    rng, records = np.random.default_rng(seed), []
    for k in range(3):
        episode = Episode(rng, f"r{k}")
        episode.play(7)
        if not (taken := episode.of(policy)):
            continue
        advantages = {d.id: float(rng.choice([1.3, -0.7, 0.4, 0.0])) for d in taken}
        tree = flatten(f"r{k}", taken, advantages)
        check_paths(episode, taken, tree)
        records.append(tree)
    return records


def check_paths(episode: Episode, taken: list[DispatchedSamplingTask], tree: RecordTree) -> None:
    """Each reply once, behind exactly what the engine read; and the audit, which assembles rows by itself, agrees."""
    for k, dispatch in enumerate(taken):
        nodes = np.flatnonzero(tree.dispatches_N == k)
        assert tree.token_ids_N[tree.path(int(nodes[-1]))].tolist() == episode.whole[dispatch.id]
    report = AuditReport("r")
    compare(report, tree, taken)
    assert report.ok, report


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_every_reply_of_every_thread_is_in_the_tree_once_behind_what_the_engine_read(seed: int) -> None:
    for policy in POLICIES:
        group(seed, policy)


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_log_probs_of_threads_are_those_of_one_forward_per_sequence(model: PreTrainedModel, seed: int) -> None:
    for policy in POLICIES:
        if not (records := group(seed, policy)):
            continue
        wanted = [token.new for tokens in logprobs_one_by_one(model, records) for token in tokens]
        (row,) = pack([merge(records)], 10_000)
        found_E, _ = row_logprobs(TreeLM(model), row)
        assert (found_E - torch.stack(wanted)).abs().max() < 1e-12


@every_loss
@settings(max_examples=4, deadline=None)
@given(seed=seeds)
def test_threads_merged_have_the_loss_and_gradients_of_one_forward_per_sequence(
    model: PreTrainedModel, config: LossConfig, seed: int
) -> None:
    for policy in POLICIES:
        if not (records := group(seed, policy)):
            continue
        expected_loss, expected = one_by_one(model, records, config)
        loss, found = merged(model, [merge(records).at(STALENESS)], config)
        assert abs(loss - expected_loss) <= TOLERANCE * max(1.0, abs(expected_loss))
        assert_same(found, expected)
