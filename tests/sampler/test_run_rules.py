"""What decides what is learned belongs to the run: declared once, compared at starts, changed by a verb, stamped on groups."""

import asyncio
from collections.abc import Sequence

import pytest

from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.settlement.registry import register_advantage
from sampler.core.settlement.settle import settle
from sampler.scorers import Score
from sampler.settings import SamplerConfig
from shared.documents import Task
from shared.documents.rules import RunRules
from shared.documents.states import Termination
from shared.errors import ConfigError, DataError, MalformedDocument
from shared.rules.run_rules import Rules
from shared.store import Store
from tests.sampler.declared_rules import current, forget_truncation
from tests.sampler.episodes import TEMPLATE
from tests.sampler.groups import completed_group
from tests.sampler.running import running_sampler, until
from tests.sampler.settlement_cases import make_config
from tests.sampler.settling import rules_number
from tests.shared.builders import import_tasks


async def test_the_first_process_declares_the_rules_and_one_with_nothing_given_reads_them(store: Store) -> None:
    first = current(store, advantage="zscore", min_turns=2)
    assert (await first.begin()).group.advantage == "zscore"
    second = await current(store).begin()
    assert (second.group.advantage, second.group.min_turns) == ("zscore", 2)
    (written,) = await store.rules.all("main")
    assert (written.id, written.by, written.is_whole) == ("main:1", "sampler:a:1", True)
    assert written.since is not None
    await current(store, advantage="zscore").begin()
    assert await store.rules.all("main") == [written]


async def test_rules_that_an_earlier_version_wrote_without_a_later_rule_go_on_with_its_default(store: Store) -> None:
    template = (await current(store).begin()).prompt.template_digest
    await forget_truncation(store, template)
    assert (await current(store).begin()).sampling.truncation.keeps_all
    with pytest.raises(ConfigError, match=r"top_k is 20; expected None, as the run has it"):
        await current(store, top_k=20).begin()
    assert len(await store.rules.all("main")) == 1


async def test_of_two_that_write_a_number_at_once_the_first_one_counts(store: Store) -> None:
    first = RunRules.of("main", 1, Rules(template_digest="").sections(), "first")
    second = RunRules.of("main", 1, Rules(template_digest="", advantage="zscore").sections(), "second")
    assert (await store.rules.add(first)).by == "first"
    assert (await store.rules.add(second)).by == "first"
    assert [one.digest for one in await store.rules.all("main")] == [first.digest]


async def test_a_change_reaches_episodes_of_groups_that_are_opened_later_alone(store: Store) -> None:
    """Also a slot of the earlier group that is played after the change, and after the process was started again."""
    configs: dict[str, SamplerConfig] = {}

    class Noting(MCPSampler):
        async def run(self) -> Termination:
            configs[self.claim.record_id] = self.config
            if len(configs) == 1:  # the first slot of the first group: the other one is claimed after the change
                newest = (await store.rules.all("main"))[0]
                changed = Rules.model_validate(newest.values | {"temperature": 0.5, "max_turns": 5})
                await store.rules.add(RunRules.of("main", 2, changed.sections(), "a person"))
                await asyncio.sleep(1.0)  # many times the period at which the service reads them
            return Termination.ANSWERED

        async def evaluate_record(self) -> Score:
            return Score(1.0)

    await import_tasks(store, 2, num_generations=3)
    await store.versions.ensure_first("main", "/first", {})
    async with running_sampler(store, Noting, max_turns=2, max_concurrent_episodes=1, heartbeat_s=0.05, poll_s=0.05):
        await until(lambda: asyncio.sleep(0, list(configs)), lambda played: len(played) == 6)
    played = [
        (name.split(":")[3], config.sampling.temperature, config.budget.max_turns)
        for name, config in sorted(configs.items())
    ]
    assert played == [("t0", 1.0, 2)] * 3 + [("t1", 0.5, 5)] * 3


async def test_a_group_is_settled_by_the_rules_that_it_was_opened_with(store: Store) -> None:
    rules = current(store)
    await rules.begin()
    await import_tasks(store, 2, num_generations=2)

    async def opened() -> Task:
        (claim,) = await store.tasks.claim_slots(
            "w", policy="main", split="train", lease_s=60, seq_limit=None, max_failures=3, rules=rules.number
        )
        return claim.task

    assert (await opened()).rules == 1
    assert await rules_number(store, make_config({"advantage": "zscore"})) == 2
    assert rules.number == 1
    await rules.refresh()
    assert (rules.number, rules.applicable) == (2, [2, 1])
    again, other = await opened(), await opened()
    assert (again.tid, again.rules, other.tid, other.rules) == ("t0", 1, "t1", 2)


async def test_a_group_that_was_opened_before_there_were_rules_is_settled_by_the_first_ones(store: Store) -> None:
    task = await completed_group(store, [1.0, 0.0])
    with pytest.raises(DataError, match="run_rules main:1, are gone"):
        await settle(store, task)
    await rules_number(store, make_config({"advantage": "zscore"}))
    await rules_number(store, make_config({}))
    await settle(store, task)
    advantages = sorted({d["advantage"] for d in await store.database["records"].find().to_list()})
    assert advantages == pytest.approx([-0.7071058, 0.7071058], abs=1e-5)


async def test_rules_that_a_process_cannot_apply_stop_their_groups_there_and_an_alarm_says_why(store: Store) -> None:
    rules = current(store)
    await rules.begin()
    task = await completed_group(store, [1.0, 0.0])
    elsewhere = Rules(template_digest=TEMPLATE.digest, default_scorer="exact_match", advantage="tests_elsewhere")
    await store.rules.add(RunRules.of("main", 2, elsewhere.sections(), "a person"))
    await store.database["tasks"].update_one({"_id": task.id}, {"$set": {"rules": 2}})
    await rules.refresh()
    assert rules.number is None
    assert await store.tasks.claim_settlement("w", policy="main", lease_s=60, rules=rules.applicable) is None
    (alarm,) = rules.alarms()
    assert "advantage is 'tests_elsewhere' (rules 2 of policy main" in alarm
    with pytest.raises(ConfigError, match="start it with the advantage_modules that register it"):
        await current(store).begin()
    register_advantage("tests_elsewhere")(lambda episodes, rewards, config: [0.0] * len(episodes))
    await rules.refresh()
    assert (rules.number, rules.alarms()) == (2, [])
    assert await store.tasks.claim_settlement("w", policy="main", lease_s=60, rules=rules.applicable) is not None


async def test_episodes_of_rules_that_a_process_cannot_play_are_left_to_others_and_an_alarm_says_why(
    store: Store,
) -> None:
    """Rules 2 have another chat template: this process opens none of its groups, and plays no slot of one that is open."""
    rules = current(store)
    await rules.begin()
    await import_tasks(store, 2, num_generations=2)
    first = (await store.rules.all("main"))[0]
    other = Rules.model_validate(first.values | {"template_digest": "another"})
    await store.rules.add(RunRules.of("main", 2, other.sections(), "a person"))
    await rules.refresh()
    assert (rules.number, rules.playable, rules.applicable) == (None, [1], [2, 1])
    assert "template_digest is 'another' (rules 2 of policy main" in rules.alarms()[0]

    async def claimed(number: int | None, of_rules: Sequence[int] | None) -> Task | None:
        claims = await store.tasks.claim_slots(
            "w",
            policy="main",
            split="train",
            lease_s=60,
            seq_limit=None,
            max_failures=3,
            rules=number,
            of_rules=of_rules,
        )
        return claims[0].task if claims else None

    opened = await claimed(2, None)
    assert (opened is not None, opened and opened.tid, opened and opened.rules) == (True, "t0", 2)
    assert opened is not None
    assert not await rules.plays(opened)
    other_group = await claimed(1, rules.claimable)
    assert other_group is not None
    assert (other_group.tid, other_group.rules) == ("t1", 1), "the open slot of t0 is left"
    assert await rules.plays(other_group)


async def test_rules_that_were_edited_or_deleted_are_not_applied(store: Store) -> None:
    rules = current(store)
    await rules.begin()
    await rules_number(store, make_config({"min_turns": 1}))
    await store.database["run_rules"].update_one({"_id": "main:2"}, {"$set": {"group.min_turns": 5}})
    await rules.refresh()
    assert rules.number is None
    assert "run_rules main:2: its settings were changed" in rules.alarms()[0]
    with pytest.raises(MalformedDocument):
        await current(store).begin()
    await store.database["run_rules"].update_one({"_id": "main:2"}, {"$set": {"group.min_turns": 1}})
    await store.database["run_rules"].delete_one({"_id": "main:1"})
    await rules.refresh()
    assert (rules.number, rules.applicable) == (2, [2])
    assert "run_rules main:1 is gone" in rules.alarms()[0]
