"""`tandem resettle`: played groups scored and settled anew into another run; interrupted or repeated, the same documents."""

from collections.abc import Iterator
from typing import Any

import pytest
from rich.progress import Progress

from sampler.core.errors import ScorerFailed
from sampler.scorers import ScoringRequest, register_scorer
from shared.documents.content import image_block
from shared.documents.run import Worker
from shared.documents.tool_schemas import ToolSchemas
from shared.errors import ConfigError
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.resettling import ResettlingVerbs
from tandem.audit.run import audit
from tandem.what_if import resettle as module
from tandem.what_if.resettle import resettle
from tandem.what_if.resettled import Resettled, print_outcome
from tests.sampler.declared_rules import forget_truncation
from tests.sampler.groups import timeless, varied_group
from tests.sampler.scored_groups import config
from tests.sampler.settling import settle
from tests.shared.builders import claim, import_tasks
from tests.shared.episodes import play
from tests.shared.image_files import image_file

COLLECTIONS = ("tasks", "records", "dispatched_sampling_tasks", "record_data", "tool_schemas")
SAID: list[ScoringRequest] = []
BROKEN: set[str] = set()  # replies for which `by_slot` fails


class CutError(Exception):
    pass


@register_scorer("tests_by_slot", needs_answer=False)
async def by_slot(request: ScoringRequest) -> float:
    """Another value at every call, as a judge may give."""
    if request.reply in BROKEN:
        raise ScorerFailed("no judge today")
    SAID.append(request)
    return len(SAID) / 100


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    yield
    SAID.clear()
    BROKEN.clear()


async def everything(store: Store) -> dict[str, list[dict[str, Any]]]:
    found = {name: await store.database[name].find().sort("_id", 1).to_list() for name in COLLECTIONS}
    return timeless(found)


async def played(store: Store) -> None:
    """Two plain groups, of three turns each, settled by `mean`; the first one's data bears the mark of step 1."""
    await import_tasks(store, 2)
    while (held := await claim(store)) is not None:
        await play(store, held, float(held.traj_id))
    for seq in range(2):
        task = await store.tasks.get(f"main:train:0:t{seq}")
        assert task is not None
        await settle(store, task, config(store, default_scorers=[]))
    await store.database["record_data"].update_many({"task": "main:train:0:t0"}, {"$set": {"trained_steps": [1]}})
    await store.database["records"].update_many({"task": "main:train:0:t0"}, {"$set": {"last_trained_step": 1}})


async def anew(mongod: Mongod, store: Store, target: str, **given: Any) -> Resettled:
    values = {"run": store.run, "target": target, "db_connection_string": mongod.connection_string, **given}
    return await resettle(mongod.connection_string, values, Progress(disable=True))


@pytest.fixture
async def target(mongod: Mongod, store: Store) -> Any:
    name = f"{store.run}-2"
    async with Store.open(mongod.connection_string, name) as opened:
        await opened.client.drop_database(name)
        yield opened
        await opened.client.drop_database(name)


async def test_a_run_without_a_played_group_is_refused_and_makes_no_run(mongod: Mongod, store: Store) -> None:
    await import_tasks(store, 2)
    with pytest.raises(ConfigError, match="has no played group of policy main: there is nothing to settle anew"):
        await anew(mongod, store, f"{store.run}-2")
    assert f"{store.run}-2" not in await store.client.list_database_names()


async def test_another_estimator_changes_the_advantages_alone_and_the_run_stays_as_it_is(
    mongod: Mongod, store: Store, target: Store
) -> None:
    await played(store)
    before = await everything(store)
    await anew(mongod, store, target.run, advantage="zscore")
    assert await everything(store) == before
    found = await everything(target)
    root = 0.5**0.5
    advantages = sorted({d["advantage"] for d in found["records"]})
    assert advantages == pytest.approx([-root, root], abs=1e-5)
    assert [d["trained_steps"] for d in found["record_data"]] == [[]] * 4
    own = {"advantage"}
    for old, new in zip(before["dispatched_sampling_tasks"], found["dispatched_sampling_tasks"], strict=True):
        assert {k: v for k, v in old.items() if k not in own} == {k: v for k, v in new.items() if k not in own}
    assert [d["digest"] for d in found["record_data"]] == [d["digest"] for d in before["record_data"]]
    assert (await audit(target, running=True)).ok
    assert await anew(mongod, store, target.run, advantage="zscore")
    assert await everything(target) == found, "the same command again changes nothing"


async def test_a_run_whose_rules_an_earlier_version_wrote_is_settled_anew(
    mongod: Mongod, store: Store, target: Store
) -> None:
    await played(store)
    await forget_truncation(store)
    await anew(mongod, store, target.run, advantage="zscore")
    (rules,) = await target.rules.all("main")
    assert (rules.values["advantage"], rules.values["top_k"]) == ("zscore", None)


async def test_the_same_settings_give_the_same_documents_also_of_a_group_with_a_case_for_every_rule(
    mongod: Mongod, store: Store, target: Store
) -> None:
    task = await varied_group(store)
    await settle(store, task, config(store, default_scorers=[], min_turns=2, advantage="gigpo"))
    await anew(mongod, store, target.run)
    old, new = await everything(store), await everything(target)
    assert new["record_data"] == old["record_data"]
    assert new["dispatched_sampling_tasks"] == old["dispatched_sampling_tasks"]
    assert [(d["status"], d["score"], d["advantage"]) for d in new["records"]] == [
        (d["status"], d["score"], d["advantage"]) for d in old["records"]
    ]
    assert new["tasks"] == old["tasks"]


async def test_scorers_read_the_stored_conversation_and_an_interrupted_call_keeps_what_they_said(
    mongod: Mongod, store: Store, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call ends after the records of the first group are written, and before its task is."""
    await played(store)
    scorers = [{"name": "tests_by_slot"}]
    write = ResettlingVerbs.write

    async def cut(verbs: ResettlingVerbs, group: Any) -> None:
        if "tasks" in group:
            raise CutError
        await write(verbs, group)

    monkeypatch.setattr(module, "GROUPS_AT_ONCE", 1)
    monkeypatch.setattr(ResettlingVerbs, "write", cut)
    with pytest.raises(ExceptionGroup):
        await anew(mongod, store, target.run, new_scorers=scorers)
    monkeypatch.setattr(ResettlingVerbs, "write", write)
    first = {d["_id"]: d["score"] for d in (await everything(target))["records"]}
    assert len(first) == 2
    assert SAID[0].reply == "reply 2"
    assert [m["content"] for m in SAID[0].messages] == [
        *("message [0]", "reply 0", "message [1]", "reply 1", "message [2]", "reply 2"),
    ]
    assert [call.result for call in SAID[0].tool_calls] == ["[4]"]
    outcome = await anew(mongod, store, target.run, new_scorers=scorers)
    found = await everything(target)
    scores = {d["_id"]: d["score"] for d in found["records"]}
    assert {name: scores[name] for name in first} == first, "a judge that says something else is not heard"
    for task in found["tasks"]:
        assert [slot["score"] for slot in task["slots"]] == [scores[slot["record_id"]] for slot in task["slots"]]
        assert task["payload"]["scorers"] == [{"name": "tests_by_slot", "weight": 1.0}]
    assert [d["reward"] for d in found["record_data"]] == [scores[d["_id"]] for d in found["record_data"]]
    assert print_outcome(outcome) == 0


async def test_scorers_read_calls_with_the_types_of_the_tools_that_the_model_had(
    mongod: Mongod, store: Store, target: Store
) -> None:
    await played(store)
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    schemas = ToolSchemas.of([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    await store.tool_schemas.keep(schemas)
    text = "<tool_call>\n<function=f>\n<parameter=x>\n2024\n</parameter>\n</function>\n</tool_call>"
    await store.database["dispatched_sampling_tasks"].update_many(
        {"turn": 0}, {"$set": {"tools_hash": schemas.id, "response.text": text}}
    )
    await anew(mongod, store, target.run, new_scorers=[{"name": "tests_by_slot"}], tool_call_parser="qwen3_coder")
    (call,) = next(message["tool_calls"] for message in SAID[0].messages if message.get("tool_calls"))
    assert call["function"]["arguments"] == {"x": "2024"}


async def test_a_group_whose_scorer_fails_has_no_score_and_the_same_call_tries_it_again(
    mongod: Mongod, store: Store, target: Store
) -> None:
    await played(store)
    BROKEN.add("reply 2")
    outcome = await anew(mongod, store, target.run, new_scorers=[{"name": "tests_by_slot"}])
    assert set(outcome.failed) == {"main:train:0:t0", "main:train:0:t1"}
    assert print_outcome(outcome) == 1
    assert not any((await everything(target)).values())
    BROKEN.clear()
    assert print_outcome(await anew(mongod, store, target.run, new_scorers=[{"name": "tests_by_slot"}])) == 0
    assert len((await everything(target))["record_data"]) == 4


async def test_group_scorers_score_the_stored_groups(mongod: Mongod, store: Store, target: Store) -> None:
    await played(store)
    await anew(mongod, store, target.run, new_scorers=[{"name": "tests_by_slot"}, {"name": "diversity", "weight": 0.5}])
    (first, *_) = (await everything(target))["tasks"]
    assert first["status"] == "settled"
    assert first["group_scores"][0]["scorer"] == "diversity"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"advantage": "mean"}, "was resettled with advantage='zscore', not 'mean'"),
        ({"advantage": "nonsense"}, "nonsense"),
        ({"new_scorers": [{"name": "nobody_knows"}]}, "scorer 'nobody_knows' is unknown"),
    ],
)
async def test_what_does_not_fit_is_refused_with_the_remedy(
    mongod: Mongod, store: Store, target: Store, given: dict[str, Any], words: str
) -> None:
    await played(store)
    await anew(mongod, store, target.run, advantage="zscore")
    before = await everything(target)
    with pytest.raises(ConfigError, match=words):
        await anew(mongod, store, target.run, **given)
    assert await everything(target) == before


@pytest.mark.parametrize("own", ["tasks", "processes"])
async def test_a_run_that_is_in_use_is_no_target(mongod: Mongod, store: Store, target: Store, own: str) -> None:
    await played(store)
    if own == "tasks":
        await import_tasks(target, 1, split="eval")
    else:
        await target.workers.heartbeat(Worker(id="sampler:h:1", kind="sampler", host="h", pid=1))
    with pytest.raises(ConfigError, match=f"has {own} of its own"):
        await anew(mongod, store, target.run)


def test_what_a_judge_said_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_outcome(Resettled("a", "b", copied=1, failed={"t0": "HTTP 500: \x1b[2Jall is well\x9b31m"}))
    said = capsys.readouterr().out
    assert "left out: t0: HTTP 500: \\x1b[2Jall is well\\x9b31m" in said
    assert "\x1b" not in said


async def test_a_run_with_tasks_of_its_own_and_the_run_itself_are_no_target(
    mongod: Mongod, store: Store, target: Store
) -> None:
    await played(store)
    await import_tasks(target, 1)
    with pytest.raises(ConfigError, match="has tasks of its own"):
        await anew(mongod, store, target.run)
    with pytest.raises(ConfigError, match="itself, which stays as it is"):
        await anew(mongod, store, store.run)


async def test_images_come_with_the_groups_that_name_them(mongod: Mongod, store: Store, target: Store) -> None:
    await played(store)
    await store.images.keep([file := image_file(b"an image"), image_file(b"another")])
    blocks = {"$set": {"payload.query_blocks": [image_block(file)]}}
    await store.database["tasks"].update_one({"_id": "main:train:0:t1"}, blocks)
    await anew(mongod, store, target.run)
    assert await target.images.read(file.sha256) == file.data
    assert await target.database["images"].count_documents({}) == 1
