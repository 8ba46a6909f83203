"""Several policies in one episode: each trains on its own turns, with its own scores, counts and versions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engines import Engines as SamplerEngines
from sampler.core.engines.pool.policy_client import PolicyClient
from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.service.kinds import SamplerKinds
from sampler.core.service.process import ServiceProcess
from sampler.core.service.service import SamplerService
from sampler.scorers import Score
from sampler.settings import SamplerConfig
from shared.documents import DataClaim, DBRecordData
from shared.documents.packed import unpack_ints
from shared.documents.run import Admission, TrainedStep
from shared.documents.states import DataStatus, SlotStatus, TaskStatus, Termination
from shared.errors import ConfigError
from shared.store import Store
from tandem.audit.run import Check, audit
from tests.sampler.chats import save_model_dir
from tests.sampler.episodes import MODEL, TEMPLATE, ended, resources, says
from tests.sampler.pools import fields_of, pools
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, import_tasks

TASK = "main:train:0:t0"


class Debate(AsyncSampler):
    """Two rounds: the solver answers, and the judge reads only the answer. Even slots are right; the judge is right in slot 0."""

    async def run(self) -> Termination:
        for k in range(2):
            turn = await self.create_chat_completions([{"role": "user", "content": f"round {k}"}])
            assert turn is not None
            await self.create_chat_completions([{"role": "user", "content": f"heard {turn.text}"}], policy="judge")
        return Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        return Score(1.0 - self.claim.traj_id % 2, others={"judge": float(self.claim.traj_id == 0)})


class Stranger(Debate):
    async def run(self) -> Termination:
        await self.create_chat_completions([{"role": "user", "content": "who?"}], policy="stranger")
        return Termination.ANSWERED


@asynccontextmanager
async def debate(store: Store, **config: Any) -> AsyncIterator[Resources]:
    """What the episodes of a solver (policy main, weights 3) and a judge (weights 8) share."""
    async with pools(main=("four", "3"), judge=("no", "8")) as made, resources(store, says(""), **config) as shared:
        policy_clients = {"judge": PolicyClient(TEMPLATE, made["judge"])}
        yield Resources(**{**fields_of(shared), "pool": made["main"], "others": policy_clients})


async def debated(store: Store, num_generations: int = 2, **config: Any) -> list[DBRecordData]:
    """A whole group, played and settled; its training data, by id."""
    await import_tasks(store, 1, num_generations=num_generations)
    async with debate(store, **config) as shared:
        for _ in range(num_generations):
            assert await play(Debate(shared, await claim(store))) is not None
        await settle_next(store, "w", shared.config)
    return sorted(await store.data.find({}), key=lambda data: data.id)


# ---------------------------------------------------------------------- the episode


async def test_each_policy_has_a_separate_conversation(store: Store) -> None:
    await import_tasks(store, 1)
    async with debate(store) as shared:
        sampler = Debate(shared, await claim(store))
        await play(sampler)
    record, _, dispatches = await ended(store, sampler)
    assert [d.policy for d in dispatches] == ["main", "judge", "main", "judge"]
    assert [d.parent for d in dispatches] == [None, None, dispatches[0].id, dispatches[1].id]
    assert [d.service for d in dispatches] == ["http://main", "http://judge"] * 2
    heard = TEMPLATE.decode(unpack_ints(dispatches[1].prompt_ids).tolist())
    assert "heard four" in heard
    assert "round 0" not in heard
    assert (record.score, record.policy_scores, record.policy_versions) == (1.0, {"judge": 1.0}, [3])
    assert record.other_policy_versions == {"judge": [8]}
    assert record.traj == [d.id for d in dispatches]


def scoring(name: str, **others: float) -> type[AsyncSampler]:
    async def score(self: AsyncSampler) -> Score:
        return Score(1.0, others=others)

    return type(name, (Debate,), {"evaluate_record": score})


@pytest.mark.parametrize(
    ("sampler", "text", "status"),
    [
        (Stranger, "policy 'stranger' is not configured; expected one of: main, judge", SlotStatus.FAILED),
        (scoring("Unknown", ref=1.0), "scored policies ['ref']", SlotStatus.OPEN),
        (scoring("Nan", judge=float("nan")), "a finite number", SlotStatus.OPEN),
    ],
)
async def test_an_unconfigured_policy_or_a_non_numeric_score_fails_the_slot(
    store: Store, sampler: type[AsyncSampler], text: str, status: SlotStatus
) -> None:
    await import_tasks(store, 1)
    async with debate(store) as shared:
        playing = sampler(shared, await claim(store))
        assert await play(playing) is None
    _, slot, _ = await ended(store, playing)
    assert slot.status is status
    assert slot.error is not None
    assert text in slot.error


# ---------------------------------------------------------------------- its training data


async def test_every_policy_gets_a_group_of_its_own_turns_with_its_own_scores(store: Store) -> None:
    data = await debated(store, num_generations=4)
    of = {p: [d for d in data if d.policy == p] for p in ("main", "judge")}
    assert [d.id for d in of["main"]] == [f"{TASK}:{k}:1" for k in range(4)]
    assert [d.id for d in of["judge"]] == [f"{TASK}:{k}:1:judge" for k in range(4)]
    assert [d.reward for d in of["main"]] == [1.0, 0.0, 1.0, 0.0]
    assert [d.reward for d in of["judge"]] == [1.0, 0.0, 0.0, 0.0]
    assert [d.dispatches[0].advantage for d in of["judge"]] == [0.75, -0.25, -0.25, -0.25]
    assert {(d.policy, d.group_size, d.min_version, d.max_version) for d in data} == {
        ("main", 4, 3, 3),
        ("judge", 4, 8, 8),
    }
    assert {d.policy: [x.turn for x in d.dispatches] for d in data} == {"main": [0, 2], "judge": [1, 3]}
    task = await store.tasks.get(TASK)
    assert task is not None
    assert (task.outcome, task.data_of) == ("ready", ["judge", "main"])
    report = await audit(store)
    assert report.ok, report
    assert report.results[Check.POLICIES].examined == 8 + 16


async def test_the_rules_count_a_policys_own_turns(store: Store) -> None:
    """Two of four each: fewer than the three that a correct episode should have."""
    data = await debated(store, num_generations=4, min_turns=3, min_group_size=1)
    dropped = {d.id.removeprefix(f"{TASK}:"): d.reason for d in data if d.reason is not None}
    assert dropped == dict.fromkeys(("0:1", "2:1", "0:1:judge"), "correct in fewer than 3 turns")


async def test_each_trainer_marks_its_own_data_and_the_record_has_its_policys_marks(store: Store) -> None:
    await debated(store)
    for policy, step in (("judge", 7), ("main", 2)):
        (group,) = await store.data.ready_groups(policy, 10)
        borrowed = DataClaim(trainer_generation=1, step=step)
        assert await store.data.claim(group["records"], borrowed) == 2
        assert len(await store.data.commit_step(policy, borrowed, max_trained_count=1)) == 2
        said: dict[str, Any] = {"id": f"{policy}:{step}:1", "policy": policy, "step": step, "trainer_generation": 1}
        await store.steps.add(TrainedStep(**said, groups=[(TASK, 2)]))
    for step in range(8):
        await store.versions.announce("judge", step, f"/judge/{step}", {})
        await store.versions.announce("main", step, f"/main/{step}", {})
    record = await store.records.get(f"{TASK}:0:1")
    assert record is not None
    assert (record.trained_count, record.last_trained_step) == (1, 2)
    rows = await store.questions.chain({"record": record.id})
    assert [(row["policy"], row["trained_steps"]) for row in rows] == [("main", [2]), ("judge", [7])] * 2
    report = await audit(store)
    assert report.ok, report.to_json()["checks"]
    for _ in range(2):  # the second from step 0 again
        await store.runs.start_trainer("judge", Admission(groups_per_step=1, max_staleness=1))
    assert await store.data.rewind("judge", 0, max_trained_count=1) == 2
    assert {(d.policy, d.trained_count) for d in await store.data.find({})} == {("judge", 0), ("main", 1)}
    report = await audit(store)
    assert report.ok, report.to_json()["checks"]


@pytest.mark.parametrize(
    ("collection", "where", "update", "found"),
    [
        ("dispatched_sampling_tasks", f"{TASK}:0:1:1", {"policy": "main"}, Check.POLICIES),
        ("dispatched_sampling_tasks", f"{TASK}:0:1:0", {"sampled_by": "judge"}, Check.POLICIES),
        ("record_data", f"{TASK}:0:1:judge", {"policy": "main"}, Check.ONCE),
        ("record_data", f"{TASK}:0:1:judge", {"record": f"{TASK}:1:1"}, Check.POLICIES),
    ],
    ids=["another's turn", "a turn another sampled", "two sets for one policy", "another record's"],
)
async def test_the_audit_finds_data_with_another_policys_tokens(
    store: Store, collection: str, where: str, update: dict[str, Any], found: Check
) -> None:
    await debated(store)
    await store.database[collection].update_one({"_id": where}, {"$set": update})
    assert (await audit(store)).results[found].violations > 0


# ---------------------------------------------------------------------- admission


async def test_a_frozen_policy_takes_turns_gets_no_data_and_does_not_limit_admission(store: Store) -> None:
    others: dict[str, Any] = {"other_policies": {"judge": Path(".")}, "frozen_policies": ["judge"]}
    data = await debated(store, **others)
    assert {one.policy for one in data} == {"main"}
    assert {one.status for one in data} == {DataStatus.READY}
    task = await store.tasks.get(TASK)
    assert task is not None
    assert (task.status, task.data_of) == (TaskStatus.SETTLED, ["main"])
    assert [d.policy for d in (await store.records.dispatches_of([data[0].record]))[data[0].record]].count("judge") == 2
    assert sum(found.violations for found in (await audit(store)).results.values()) == 0
    await store.runs.start_trainer("main", Admission(groups_per_step=4, max_staleness=2, num_steps=3))
    others["other_policies"] = {"judge": MODEL}
    config = SamplerConfig(run=store.run, db_connection_string="x", model_name_or_path=MODEL, **others)
    async with EngineClient() as client:
        service = SamplerService(ServiceProcess(store, client, "w"), config, SamplerKinds(Debate, {}))
        await service._refresh()
        assert service._view.state.seq_limit == 12, "no trainer of the judge is waited for"


# ---------------------------------------------------------------------- settings


async def test_an_unusable_template_stops_the_start_and_names_the_model(store: Store, tmp_path: Path) -> None:
    folder = save_model_dir(tmp_path / "no-ends", "{{ messages[-1].content }}", in_config=False)
    config = SamplerConfig(
        run="r", db_connection_string="x", model_name_or_path=MODEL, other_policies={"judge": folder}
    )
    async with EngineClient() as client:
        with pytest.raises(ConfigError, match="no-ends: chat template: no special token follows"):
            SamplerEngines(store, client, config)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"turn_sources": {"lagging": 0.7, "b": 0.4}}, "add up to 1.1"),
        ({"turn_sources": {"main": 0.5}}, "gets the remaining share"),
        ({"other_policies": {"main": "."}}, "this process's own policy"),
        ({"lease_s": 10, "renew_s": 15}, "renew_s is 15; expected less than lease_s = 10"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SamplerConfig(run="r", db_connection_string="x", model_name_or_path=".", **options)
