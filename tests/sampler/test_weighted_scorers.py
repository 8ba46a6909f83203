"""Several scorers of an episode, and scorers in the forms in which people write them."""

import asyncio
import functools
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sampler.core.episode.sampler import METRIC_NAME
from sampler.core.errors import ScorerFailed, UnusableTask
from sampler.core.scorers.calling import MOST_THREADS
from sampler.core.scorers.weighted import combined, judge_metrics, metric_name, metrics_of
from sampler.scorers import Score, ScoringRequest, register_scorer, score_answer
from shared.documents import TaskPayload, ToolCallResult
from shared.documents.scoring import WeightedScorer
from shared.documents.states import SlotStatus
from shared.errors import ConfigError
from shared.names import LONGEST
from shared.store import Store
from shared.tasks.checks import Samplers, TaskCheck
from shared.tasks.files import ImportTarget, import_task_file
from tests.sampler.running import running_sampler, until
from tests.shared.builders import make_task

pytestmark = pytest.mark.usefixtures("own_scorers")

OPTIONS: dict[str, Any] = {"poll_s": 0.02, "heartbeat_s": 0.05}


def weighted(**weights: float) -> list[WeightedScorer]:
    return [WeightedScorer(name=name, weight=weight) for name, weight in weights.items()]


def request(**fields: Any) -> ScoringRequest:
    given: dict[str, Any] = {"answer": "4", "accepted": ("4",), "query": "2+2?", "reply": "it is 4"}
    return ScoringRequest(**(given | fields))


# ---------------------------------------------------------------------- several


async def played(store: Store, payload: dict[str, Any], **options: Any) -> Any:
    task = make_task(0, num_generations=1).model_copy(update={"payload": TaskPayload(query="2+2?", **payload)})
    await store.tasks.insert_new([task])

    async def slot() -> Any:
        found = await store.tasks.get(task.id)
        assert found is not None
        return found.slots[0]

    async with running_sampler(store, **OPTIONS, **options):
        await until(slot, lambda one: one.status in (SlotStatus.SCORED, SlotStatus.FAILED))
    record = await store.records.get((await slot()).record_id)
    assert record is not None
    return record


async def test_the_score_is_the_weighted_sum_and_each_part_is_a_metric_with_its_reason(store: Store) -> None:
    register_scorer("brief", needs_answer=False)(lambda reply: 1 / len(reply.split()))
    several = weighted(exact_match=2.0, includes=0.5, brief=0.0)
    record = await played(store, {"answer": "4", "scorers": several})
    assert record.score == 2.5
    assert record.metrics == {"score_exact_match": 1.0, "score_includes": 1.0, "score_brief": 1.0}
    assert record.reward_details["scorer"] == "2 * exact_match + 0.5 * includes + 0 * brief"
    assert record.reward_details["components"]["exact_match"]["reason"] == "equals '4'"
    assert record.reward_details["components"]["includes"]["weight"] == 0.5


async def test_a_run_has_scorers_of_tasks_that_name_none(store: Store) -> None:
    several = [one.model_dump() for one in weighted(exact_match=1.0, includes=-0.5)]
    record = await played(store, {"answer": "4"}, default_scorers=several)
    assert (record.score, record.metrics) == (0.5, {"score_exact_match": 1.0, "score_includes": 1.0})
    await store.tasks.insert_new(
        [
            make_task(1, num_generations=1).model_copy(
                update={"payload": TaskPayload(query="q", answer="4", scorer="f1")}
            )
        ]
    )
    async with running_sampler(store, **OPTIONS, default_scorers=several):
        last = await until(lambda: store.records.get("main:train:0:t1:0:1"), lambda one: one and one.score is not None)
    assert last is not None
    assert (last.score, last.reward_details["scorer"], last.metrics) == (1.0, "f1", {})


async def test_if_one_of_them_fails_there_is_no_score(store: Store) -> None:
    @register_scorer("away")
    async def away(request: ScoringRequest) -> Score:
        raise ConnectionError("no model")

    record = await played(store, {"answer": "4", "scorers": weighted(exact_match=1.0, away=0.1)}, max_failures=1)
    assert (record.score, record.termination) == (None, "scorer_failure")
    assert "scorer 'away' crashed: ConnectionError: no model" in (record.error or "")


async def test_tasks_of_which_one_scorer_is_unknown_are_left_to_others(store: Store) -> None:
    tasks = [
        make_task(seq, num_generations=1).model_copy(
            update={"payload": TaskPayload(query="q", answer="4", scorers=several)}
        )
        for seq, several in enumerate(
            [weighted(exact_match=1, mine=1), weighted(exact_match=1, f1=1), weighted(mine=1)]
        )
    ]
    await store.tasks.insert_new(tasks)
    async with running_sampler(store, **OPTIONS):
        await until(lambda: store.tasks.count_slots(), lambda counts: counts.get("scored") == 1)
        await asyncio.sleep(0.3)  # it has looked for work several times
        found = [await store.tasks.get(task.id) for task in tasks]
    assert [one.slots[0].attempt for one in found if one is not None] == [0, 1, 0]


def test_the_parts_of_other_policies_and_of_seats_are_summed_by_the_same_weights() -> None:
    scores = [Score(1.0, others={"judge": 0.0}, actors={"X": 1.0, "O": 0.0}), Score(0.5)]
    score = combined(weighted(a=1.0, b=2.0), scores)
    assert (score.value, score.others, score.actors) == (2.0, {"judge": 1.0}, {"X": 2.0, "O": 1.0})


def test_what_judges_took_is_a_metric() -> None:
    use = {"judged_by": {"prompt_tokens": 30, "completion_tokens": 2, "duration_s": 0.5}}
    assert judge_metrics([Score(1.0, use)]) == {"judge_tokens": 32.0, "judge_s": 0.5}
    two = metrics_of(weighted(**{"a": 1.0, "b/c": 1.0}), [Score(1.0, use), Score(0.0, use)])
    assert two == {"score_a": 1.0, metric_name("b/c"): 0.0, "judge_tokens": 64.0, "judge_s": 1.0}


async def test_a_wrong_list_of_scorers_is_refused_with_its_line(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for line, said in (
        (
            {"scorers": [{"name": "math"}], "scorer": "math"},
            r'"scorer" and "scorers" are both given; expected one of them',
        ),
        ({"scorers": [{"name": "math"}, {"name": "math"}]}, r'"scorers" names .math. twice; expected each scorer once'),
        ({"scorers": [{"name": "maths", "weight": 1}]}, r'"scorer" is "maths"; expected "math"'),
        ({"scorers": [{"name": "math", "weight": "1"}]}, r'"scorers.0.weight" is "1"; expected a list of'),
        ({"scorers": [{"weight": 1}]}, r'"scorers.0.name" is missing; expected a list of'),
        ({"scorers": [{"name": f"s{n}"} for n in range(21)]}, r'"scorers" is .*; expected a list of .* \(at most 20\)'),
    ):
        path.write_text(json.dumps({"id": "a", "query": "q", "answer": "4"} | line))
        with pytest.raises(ConfigError, match=rf"t.jsonl:1: {said}"):
            await import_task_file(store, path, ImportTarget(check=TaskCheck(Samplers(knows_scorers=True))))


async def test_nothing_is_stored_where_there_are_none(store: Store, tmp_path: Path) -> None:
    """Processes of earlier versions refuse a field that they do not know."""
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"id": "a", "query": "q"}))
    await import_task_file(store, path, ImportTarget())
    stored = await store.database["tasks"].find_one()
    assert stored is not None
    assert "scorers" not in stored["payload"]


# ---------------------------------------------------------------------- forms of a scorer


async def test_a_scorer_may_ask_for_what_it_needs_by_name() -> None:
    seen: dict[str, Any] = {}

    @register_scorer("by_name")
    def by_name(reply, answer, difficulty, hint="none", **task):  # type: ignore[no-untyped-def]  # as people write it
        seen.update(reply=reply, answer=answer, difficulty=difficulty, hint=hint, task=task)
        return True

    @register_scorer("mixed", needs_answer=False)
    async def mixed(request: ScoringRequest, tool_calls: Any, level: int = 7) -> float:
        return len(tool_calls) + level + len(request.reply)

    metadata = {"difficulty": 3, "source_file": "x"}
    score = await score_answer("by_name", request(payload={"metadata": metadata}))
    assert (score.value, score.details["scorer"]) == (1.0, "by_name")
    assert seen == {"reply": "it is 4", "answer": "4", "difficulty": 3, "hint": "none", "task": {"source_file": "x"}}
    call = ToolCallResult(name="add", arguments={}, result="4", is_error=False, duration_s=0.1)
    assert (await score_answer("mixed", request(tool_calls=(call,)))).value == 15.0
    with pytest.raises(UnusableTask, match="asks for 'difficulty', which the task does not have; expected it under"):
        await score_answer("by_name", request())


async def test_a_scorer_that_is_not_async_runs_in_a_thread_and_may_hang() -> None:
    """Neither the event loop nor other scorers wait for it."""
    release, threads = threading.Event(), set()

    @register_scorer("hangs")
    def hangs(request: ScoringRequest) -> float:
        threads.add(threading.current_thread())
        release.wait(30)
        return 1.0

    began = time.monotonic()
    with pytest.raises(ScorerFailed, match=r"scorer 'hangs' gave no score within 0.2 s"):
        await score_answer("hangs", request(), timeout_s=0.2)
    assert time.monotonic() - began < 10
    assert threading.main_thread() not in threads
    release.set()
    assert (await score_answer("hangs", request())).value == 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1", [1]])
async def test_what_is_no_number_is_no_score(value: Any) -> None:
    register_scorer("odd")(lambda request: value)
    with pytest.raises(ScorerFailed, match=r"scorer 'odd' returned .*; expected a finite number from"):
        await score_answer("odd", request())


async def test_a_scorer_may_be_an_object() -> None:
    class Model:
        async def __call__(self, reply: str) -> float:
            return 0.5 * len(reply.split())

    register_scorer("object", needs_answer=False)(Model())
    assert (await score_answer("object", request())).value == 1.5


async def test_calls_that_hang_keep_only_calls_of_the_same_scorer_waiting() -> None:
    release = threading.Event()
    register_scorer("hangs_too")(lambda request: release.wait(30) and 1.0)
    register_scorer("quick")(lambda request: 0.5)
    hanging = [
        asyncio.create_task(score_answer("hangs_too", request(), timeout_s=0.3)) for _ in range(2 * MOST_THREADS)
    ]
    found = await asyncio.gather(*hanging, return_exceptions=True)
    assert {type(one) for one in found} == {ScorerFailed}
    assert sum(thread.name == "scorer" for thread in threading.enumerate()) <= MOST_THREADS
    assert (await score_answer("quick", request(), timeout_s=10)).value == 0.5
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "scorer"), "the process can end"
    release.set()


async def test_a_decorated_scorer_is_called_as_its_decorator_takes_it() -> None:
    def by_request(function: Any) -> Any:
        @functools.wraps(function)
        async def wrapper(request: ScoringRequest) -> float:
            return float(function(reply=request.reply, words=3))

        return wrapper

    def passes_on(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

        return wrapper

    def longer(reply: str, words: int) -> bool:
        return len(reply.split()) >= words

    register_scorer("by_request")(by_request(longer))
    register_scorer("passes_on")(passes_on(longer))
    given = request(payload={"metadata": {"words": 3, "request": "x"}})
    assert (await score_answer("by_request", given)).value == (await score_answer("passes_on", given)).value == 1.0
    register_scorer("all_of_it")(lambda request, **task: len(task))
    assert (await score_answer("all_of_it", given)).value == 1.0


@pytest.mark.parametrize("value", [1.7e308, -1.7e308])
async def test_scores_without_a_finite_sum_are_no_score(store: Store, value: float) -> None:
    register_scorer("far", needs_answer=False)(lambda request: value)
    register_scorer("farther", needs_answer=False)(lambda request: value)
    record = await played(store, {"scorers": weighted(far=10.0, farther=2.0)}, max_failures=1)
    assert (record.score, record.termination) == (None, "scorer_failure")
    with pytest.raises(ValueError, match="less than or equal to 1000000"):
        WeightedScorer(name="far", weight=1e7)


async def test_a_scorer_that_cancels_itself_is_a_failure() -> None:
    @register_scorer("cancels")
    async def cancels(request: ScoringRequest) -> float:
        raise asyncio.CancelledError

    with pytest.raises(ScorerFailed, match="scorer 'cancels' cancelled its own task"):
        await score_answer("cancels", request())


def test_two_scorers_never_share_a_metric() -> None:
    names = ["a_b", "a.b", "a:b", "long" * 50, "long" * 50 + "er", "math"]
    found = [metric_name(name) for name in names]
    assert len(set(found)) == len(names)
    assert (found[0], found[-1]) == ("score_a_b", "score_math")
    assert all(METRIC_NAME.fullmatch(name) and len(name) <= len("score_") + LONGEST for name in found)
