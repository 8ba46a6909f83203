"""Turns drawn from several sources: each has its share, and a policy trains on its own turns alone."""

import random

import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool
from sampler.core.engines.pool.turn_sources import Source, check_tokenizers
from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.scorers import Score
from shared.documents.run import FileEntry
from shared.documents.states import Termination
from shared.errors import ConfigError
from shared.store import Store
from shared.tokens.flatten import tree_of
from tandem.audit.run import audit
from tests.sampler.engines import Up
from tests.sampler.episodes import LIMITS, ended, resources, says
from tests.sampler.pools import fields_of, pools
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, import_tasks, make_task


class Talk(AsyncSampler):
    async def run(self) -> Termination:
        for k in range(self.config.budget.max_turns):
            await self.create_chat_completions([{"role": "user", "content": f"turn {k}"}])
        return Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        return Score(float(self.claim.traj_id))


async def test_turns_are_drawn_by_share_and_only_the_policys_own_are_trained(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chances = iter([0.9, 0.1, 0.4, 0.6] * 2)
    monkeypatch.setattr(random, "random", lambda: next(chances))
    await import_tasks(store, 1)
    async with (
        pools(main=("new", "5"), old=("old", "2"), other=("other", "7")) as made,
        resources(store, says(""), max_turns=4) as shared,
    ):
        sources = [Source("lagging", None, 0.3, made["old"]), Source("other", "other", 0.2, made["other"])]
        mixed = Resources(**{**fields_of(shared), "pool": made["main"], "sources": sources})
        for _ in range(2):
            await play(Talk(mixed, await claim(store)))
        await settle_next(store, "w", shared.config)
    first, second = await store.data.find({})
    dispatches = (await store.records.dispatches_of([first.record]))[first.record]
    assert [(d.service, d.sampled_by, d.weight_versions[0][0]) for d in dispatches] == [
        ("http://main", None, 5),
        ("http://old", None, 2),
        ("http://other", "other", 7),
        ("http://main", None, 5),
    ]
    assert [d.trained for d in first.dispatches] == [True, True, False, True]
    tree = tree_of(first, dispatches)
    assert set(tree.versions_N[tree.trained_N].tolist()) == {5, 2}
    assert (first.min_version, first.max_version, first.policy) == (2, 5, "main")
    assert [d.advantage for d in second.dispatches] == [0.5] * 4
    record = await store.records.get(first.record)
    assert record is not None
    assert record.policy_versions == [2, 5]
    report = await audit(store)
    assert report.ok, report


async def test_a_source_without_an_engine_cedes_its_turns_and_evaluation_uses_no_source(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)
    await store.tasks.insert_new([make_task(0), make_task(0, split="eval")])
    async with pools(main=("new", "5"), old=("old", "2")) as made, resources(store, says("")) as shared:

        async def none() -> list[Up]:
            return []

        async with EngineClient() as client:
            for split, pool in (("train", EnginePool(client, none, LIMITS)), ("eval", made["old"])):
                mixed = {"pool": made["main"], "sources": [Source("lagging", None, 1.0, pool)]}
                sampler = Talk(Resources(**{**fields_of(shared), **mixed}), await claim(store, split=split))
                await play(sampler)
                assert {d.service for d in (await ended(store, sampler))[2]} == {"http://main"}


async def test_turns_are_not_drawn_from_a_policy_with_another_tokenizer(store: Store) -> None:
    for policy, digest in (("main", "a"), ("same", "a"), ("other", "b")):
        entry = FileEntry(sha256=digest, bytes=1)
        await store.versions.ensure_first(policy, f"/{policy}", {"tokenizer.json": entry})
    await check_tokenizers(store, "main", "same")
    with pytest.raises(ConfigError, match="of policy other differs"):
        await check_tokenizers(store, "main", "other")
