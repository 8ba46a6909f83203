"""`tandem status, show, trace, audit`: what a run tells a person, and a program."""

import asyncio
import json
import re
from pathlib import Path

import pymongo
import pytest

from shared.documents.rules import RunRules
from shared.documents.run import Admission, InferenceService, Worker
from shared.documents.scoring import WeightedScorer
from shared.documents.step_cost import StepCost
from shared.processes.mongod import Mongod
from shared.rules.run_rules import Rules
from shared.store import Store
from tandem.commands import status_tables
from tandem.commands.run_status import read_status
from tests.shared.builders import claim, make_task, set_settings
from tests.shared.episodes import CALCULATOR, SCHEMAS, announce
from tests.tandem.commands.commands import RECORD, Command


def test_status_shows_everything_of_a_run(tandem: Command, played: str) -> None:
    result = tandem("status", played)
    assert result.exit_code == 0, result.output
    for text in (
        "run played is played",
        "settled",
        "too old",
        "http://e:1",
        "UP",
        "h:7",
        "playing",
        "ready data by staleness",
    ):
        assert text in result.stdout


def test_status_marks_a_number_that_it_has_not_counted_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_tables, "MOST_COUNTED", 1_000)
    table = status_tables._counts(
        "tasks", {"train": {"settled": 1_001, "created": 1_000}}, ["created", "settled", "running"]
    )
    assert [next(iter(column.cells)) for column in table.columns] == ["train", "1,000", "> 1,000", "0"]


async def test_status_says_what_a_step_costs_and_by_which_rules_groups_are_settled(
    tandem: Command, store: Store
) -> None:
    await announce(store, 0)
    cost = StepCost(groups=4, generations=8, tokens_each=2048)
    await store.runs.note_step_cost("main", cost)
    rules = Rules(template_digest="d1", advantage="rloo", min_turns=2, default_scorers=[WeightedScorer(name="math")])
    await store.rules.add(RunRules.of("main", 1, rules.sections(), "a"))
    result = await asyncio.to_thread(tandem, "status", store.run)
    assert result.exit_code == 0, (result.output, result.exception)
    shown = result.stdout
    assert "a step is 4 groups x 8 = 32 episodes of at most 2,048 sampled tokens: 65,536 tokens at worst" in shown
    assert "tokens/s: about" not in shown, "not measured yet"
    assert (
        "by a: min_turns=2 advantage=rloo default_scorer=none default_scorers=1 x math template_digest=d1 temperature=1.0"
        in " ".join(shown.split())
    )
    await store.runs.note_step_cost("main", cost.model_copy(update={"tokens_per_s": 100.0, "mean_tokens": 50.0}))
    assert (
        "about 16 s of sampling for a step, 50 tokens an episode so far"
        in (await asyncio.to_thread(tandem, "status", store.run)).stdout
    )
    page = json.loads((await asyncio.to_thread(tandem, "status", store.run, "--json")).stdout)
    assert page["terms"][0]["chosen"]["advantage"] == "rloo"


@pytest.mark.parametrize("arguments", [["show"], ["show", "t0"], ["trace", "--step", "1"]], ids=" ".join)
def test_ids_stay_whole_in_a_narrow_terminal(
    tandem: Command, played: str, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    command, *rest = arguments
    wide = tandem(command, played, *rest).stdout
    monkeypatch.setenv("COLUMNS", "80")
    narrow = tandem(command, played, *rest)
    assert narrow.exit_code == 0, narrow.output
    ids = set(re.findall(r"main:train:0:\S+:\d+:\d+", wide))
    assert ids
    assert ids <= set(re.findall(r"main:train:0:\S+:\d+:\d+", narrow.stdout))
    assert max(map(len, narrow.stdout.splitlines())) <= 80 or command == "trace"


async def test_a_run_is_trained_once_every_policy_has_taken_its_last_step(store: Store) -> None:
    await store.runs.start_trainer("main", Admission(groups_per_step=1, max_staleness=0, num_steps=1))
    await announce(store, 0)
    assert (await read_status(store)).state == "running"
    await announce(store, 1)
    assert (await read_status(store)).state == "trained"
    await store.runs.start_trainer("guide", Admission(groups_per_step=1, max_staleness=0, num_steps=1))
    assert (await read_status(store)).state == "running"


async def test_a_run_without_a_trainer_is_played_once_every_task_has_ended(store: Store) -> None:
    await set_settings(store, "sampler", {})
    assert (await read_status(store)).state == "unstarted", "no process was ever heard of"
    await store.workers.heartbeat(Worker(id="one", kind="sampler", host="one", pid=1, stats={}, heartbeat_s=600))
    assert (await read_status(store)).state == "running", "nothing is queued yet"
    await store.tasks.insert_new([make_task(n, num_generations=1, split="eval") for n in range(2)])
    for _ in range(2):
        assert (await read_status(store)).state == "running"
        await store.tasks.finish_slot(await claim(store, split="eval"), 1.0)
    assert (await read_status(store)).state == "running", "not settled yet"
    while (task := await store.tasks.claim_settlement("settler", policy="main", lease_s=60)) is not None:
        await store.tasks.finish_settlement(task, "evaluated", abandoned=False)
    assert (await read_status(store)).state == "played"
    await store.runs.start_trainer("main", Admission(groups_per_step=1, max_staleness=0, num_steps=1))
    assert (await read_status(store)).state == "running", "it is trained after all"


async def test_a_worker_that_was_killed_is_said_to_be_silent_then_only_counted_and_never_counted_as_alive(
    tandem: Command, store: Store
) -> None:
    for name, heartbeat_s in (("alive", 60), ("slow", 60), ("killed", 2), ("forgotten", 2), ("stopped", 2)):
        stats = {"tokens_per_s": 1.0}
        await store.workers.heartbeat(
            Worker(id=name, kind="sampler", host=name, pid=1, stats=stats, heartbeat_s=heartbeat_s)
        )
    await store.workers.leave("stopped")
    for name, silent_s in (("slow", 120), ("killed", 45), ("forgotten", 3600)):
        earlier = [{"$set": {"heartbeat": {"$subtract": ["$heartbeat", 1000 * silent_s]}}}]
        await store.database["workers"].update_one({"_id": name}, earlier)
    now = await read_status(store)
    assert {w["process"] for w in now.workers if w["live"]} == {"alive:1", "slow:1"}
    assert now.rates["sampler/tokens_per_s"] == 2.0
    shown = (await asyncio.to_thread(tandem, "status", store.run)).stdout
    lines = {name: line for line in shown.splitlines() for name in ("alive:1", "slow:1", "killed:1") if name in line}
    assert "workers: 2 alive" in shown
    assert [re.search(r"not heard of for \d+ s", lines[name]) is not None for name in lines] == [False, False, True]
    assert "1 more have stopped, 1 not heard of for more than 10 min; --all lists them" in shown
    assert not {"forgotten:1", "stopped:1"} & set(shown.split())
    everyone = (await asyncio.to_thread(tandem, "status", store.run, "--all")).stdout
    assert {"forgotten:1", "stopped:1"} <= set(everyone.split())


async def test_an_engine_whose_keeper_was_killed_is_said_to_be_silent(tandem: Command, store: Store) -> None:
    """And one whose keeper means to be heard of more rarely is not: samplers go on sending to it, too."""
    for name, heartbeat_s in (("e", 1.0), ("rare", 120.0)):
        url = f"http://{name}:1"
        engine = InferenceService(id=url, url=url, policy="main", version=1, status="UP", heartbeat_s=heartbeat_s)
        await store.services.heartbeat(engine)
    assert len(await store.services.live("main")) == 2
    assert "not heard of" not in (await asyncio.to_thread(tandem, "status", store.run)).stdout
    earlier = [{"$set": {"heartbeat": {"$subtract": ["$heartbeat", 300_000]}}}]
    await store.database["inference_services"].update_many({}, [*earlier, {"$set": {"needs_full_weights": "$version"}}])
    shown = (await asyncio.to_thread(tandem, "status", store.run)).stdout
    (line,) = [line for line in shown.splitlines() if "not heard of" in line]
    assert "not heard of for 5 min" in line
    assert "http://e:1" in line
    assert [service.url for service in await store.services.live("main")] == ["http://rare:1"]
    await store.services.remove("http://rare:1")
    assert await store.services.needs_full_weights("main") is None


def test_status_as_json_is_for_programs(tandem: Command, mongod: Mongod, played: str) -> None:
    with pymongo.MongoClient(mongod.connection_string) as client:  # rates are over the last minute
        client[played]["records"].update_many({}, [{"$set": {"finished_at": "$$NOW"}}])
    now = json.loads(tandem("status", played, "--json").stdout)
    assert now["tasks"] == {"train": {"settled": 2}}
    assert now["slots"] == {"train": {"failed": 0, "failures": 0}}, "no group is in progress"
    assert now["record_data"] == {"trained": 2, "ready": 1, "stale": 1}
    assert now["set_aside"] == {"stale": {"too old": 1}}
    assert [w["process"] for w in now["workers"]] == ["h:7", "h:8"]
    assert now["rates"]["sampler/episodes_per_s"] == 5.0
    assert now["rates"]["episodes_per_s"] == pytest.approx(4 / 60)
    assert now["policies"][0]["version"] == 1


def test_what_settlement_dropped_is_shown_with_its_reason(tandem: Command, mongod: Mongod, played: str) -> None:
    record, why = "main:train:0:t1:0:1", "zero variance: scores differ by less than 0.1"
    with pymongo.MongoClient(mongod.connection_string) as client:
        run = client[played]
        task, before = run["tasks"].find_one({"tid": "t1"}), run["records"].find_one({"_id": record})
        run["tasks"].update_one({"tid": "t1"}, {"$set": {"status": "abandoned", "outcome": f"abandoned: {why}"}})
        run["records"].update_one({"_id": record}, {"$set": {"status": "abandoned", "reason": why}})
        try:
            assert f"1 × abandoned: {why}" in tandem("status", played).stdout
            assert json.loads(tandem("status", played, "--json").stdout)["abandoned"] == {f"abandoned: {why}": 1}
            assert why in tandem("show", played, record).stdout
        finally:
            run["tasks"].replace_one({"tid": "t1"}, task)
            run["records"].replace_one({"_id": record}, before)


def test_why_attempts_failed_is_shown_with_an_example(tandem: Command, mongod: Mongod, played: str) -> None:
    record = "main:train:0:t1:0:1"
    with pymongo.MongoClient(mongod.connection_string) as client:
        records = client[played]["records"]
        before = records.find_one({"_id": record})
        failed = {"status": "failed", "termination": "agent_failure", "error": "AgentFailed: [m] is down"}
        records.update_one({"_id": record}, {"$set": failed})
        try:
            assert "failed: 1 × agent_failure, such as: AgentFailed: [m] is down" in tandem("status", played).stdout
        finally:
            records.replace_one({"_id": record}, before)


def test_the_age_of_ready_data_is_counted_in_optimizer_steps(tandem: Command, mongod: Mongod, played: str) -> None:
    with pymongo.MongoClient(mongod.connection_string) as client:
        data = client[played]["record_data"]
        data.update_one({"status": "ready"}, {"$set": {"min_version": 0}})
        try:
            assert json.loads(tandem("status", played, "--json").stdout)["policies"][0]["ready_by_staleness"] == {
                "1": 1
            }
        finally:
            data.update_one({"status": "ready"}, {"$set": {"min_version": 3}})


def test_show_lists_what_to_choose_from_then_a_task_then_an_episode(tandem: Command, played: str) -> None:
    recent = tandem("show", played)
    assert RECORD in recent.stdout
    task = tandem("show", played, "t0")
    assert "2+2?" in task.stdout
    assert "2 attempts" in task.stdout
    episode = tandem("show", played, RECORD)
    assert episode.exit_code == 0
    for text in (
        *("2+2?", "message [0]", "reply 1", "calculator({'e': '2+2'})", "[4]  [0.25 s]"),
        *("v3 × 2, v4 × 1", "score", "steps: 1", "6 of 12 tokens have a loss", "forks from 1 (shares 5 tokens)"),
    ):
        assert text in episode.stdout
    assert "-0.4000" not in episode.stdout
    assert "-0.4000" in tandem("show", played, RECORD, "--tokens").stdout


def test_show_says_when_nothing_is_called_so(tandem: Command, played: str) -> None:
    result = tandem("show", played, "t99")
    assert result.exit_code == 2
    assert "no record and no task is called 't99'" in result.stderr


def test_trace_gives_the_chain_and_a_query_that_gives_the_same(tandem: Command, mongod: Mongod, played: str) -> None:
    result = tandem("trace", played, "--step", "1")
    assert result.exit_code == 0, result.output
    for text in (RECORD, "v3×2 v4×1", "+1.0000", "-1.0000", "calculator", "first in main:1", "2 records of 1 tasks"):
        assert text in result.stdout
    query = json.loads(result.stdout.splitlines()[-1])
    with pymongo.MongoClient(mongod.connection_string) as client:
        pasted = list(client[played]["record_data"].aggregate(query))
    assert pasted == json.loads(tandem("trace", played, "--step", "1", "--json").stdout)["rows"]
    assert {row["record"] for row in pasted} == {RECORD, "main:train:0:t0:1:1"}
    assert len(pasted) == 6


def test_trace_of_a_step_says_what_was_logged_of_it(tandem: Command, played: str) -> None:
    shown = tandem("trace", played, "--step", "1").stdout
    assert "logged of policy main: reward/mean 0.25, loss/loss -0.5, 3 metrics in total (--json)" in shown
    told = json.loads(tandem("trace", played, "--step", "1", "--json").stdout)["metrics"]
    assert told == {"main": {"reward/mean": 0.25, "loss/loss": -0.5, "loss/ratio": None}}
    assert json.loads(tandem("trace", played, "--record", RECORD, "--json").stdout)["metrics"] == {}


def test_show_prints_the_tools_once_by_name_or_as_the_model_was_told_of_them(
    tandem: Command, mongod: Mongod, played: str
) -> None:
    shown = tandem("show", played, RECORD).stdout
    assert shown.count(f"calculator ({SCHEMAS.id})") == 1
    assert "$defs" not in shown
    assert json.dumps(CALCULATOR) in " ".join(tandem("show", played, RECORD, "--tools").stdout.split())


def test_show_names_the_settings_of_the_sampler_that_played(tandem: Command, mongod: Mongod, played: str) -> None:
    with pymongo.MongoClient(mongod.connection_string) as client:
        kept = client[played]["settings"].find_one({"workers": "w"})
    assert f"w, with {kept['_id']}" in tandem("show", played, RECORD).stdout


def test_trace_of_a_record_says_which_steps_used_it(tandem: Command, played: str) -> None:
    assert "step 1 of policy main: first in main:1" in tandem("trace", played, "--record", RECORD).stdout
    assert "none yet" in tandem("trace", played, "--record", "main:train:0:t1:0:1").stdout


def test_trace_of_nothing_exits_with_1(tandem: Command, played: str) -> None:
    assert tandem("trace", played, "--step", "77").exit_code == 1
    assert "gave no training data" in tandem("trace", played, "--record", "r").stderr


def test_audit_exits_with_0_when_all_is_well(tandem: Command, played: str) -> None:
    result = tandem("audit", played)
    assert result.exit_code == 0, result.output
    assert "stale: too old" in result.stdout
    assert json.loads(tandem("audit", played, "--json").stdout)["ok"]


async def test_audit_since_examines_what_is_new_and_writes_its_file(
    tandem: Command, store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "run.audit"
    arguments = ("audit", store.run, "--since", str(file), "--json")
    await store.tasks.insert_new([make_task(0, num_generations=1)])
    await claim(store)
    result = await asyncio.to_thread(tandem, *arguments)
    assert (result.exit_code, file.exists()) == (1, False)
    assert "is not written" in result.stderr
    for settled in (None, 0):
        result = await asyncio.to_thread(tandem, *arguments, "--running")
        assert (result.exit_code, result.stderr, file.exists()) == (0, "", True)
        assert json.loads(result.stdout)["counts"].get("groups settled since") == settled
    file.write_text("{}")
    result = await asyncio.to_thread(tandem, *arguments)
    assert (result.exit_code, "remove it to examine the whole run" in result.stderr) == (2, True)


async def test_audit_exits_with_1_on_a_violation_and_names_it(tandem: Command, store: Store) -> None:
    await store.tasks.insert_new([make_task(0, num_generations=1)])
    await claim(store)
    result = await asyncio.to_thread(tandem, "audit", store.run)
    assert result.exit_code == 1
    assert "main:train:0:t0 slot 0 is leased" in result.stdout
    assert (await asyncio.to_thread(tandem, "audit", store.run, "--running")).exit_code == 0
