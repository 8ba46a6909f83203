"""docs/look/why_not_learning.md: each question is asked of a run that is broken in that way, and answers as the page says."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from shared.documents.states import TaskStatus, Termination
from shared.names import EVAL_SPLIT
from shared.store import Store
from tests.shared.builders import make_task
from tests.tandem.viewer.conftest import Client
from tests.tandem.viewer.stories import Call, Told, tell

PAGE = (Path(__file__).parents[3] / "docs" / "look" / "why_not_learning.md").read_text(encoding="utf-8")
QUESTIONS = {
    title: section
    for title, section in re.findall(r"^## \d+\. (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
View = dict[str, Any]
ADD = (("I add", (Call(),)), ("4", ()))


def good(seq: int, slot: int) -> Told:
    return Told(score=float(slot % 2), replies=ADD)


# ---------------------------------------------------------------------- broken runs


async def a_tool_that_fails(store: Store) -> None:
    def told(seq: int, slot: int) -> Told:
        broken = Call("browse", {"url": "x"}, "timed out", is_error=True)
        return Told(replies=(("look", (broken,)), ("again", (broken, Call())), ("no", ())))

    await tell(store, told, groups=6)


async def equal_rewards(store: Store) -> None:
    await tell(store, lambda seq, slot: Told(score=1.0), groups=6, steps=2, groups_per_step=3)


async def a_working_run(store: Store) -> None:
    await tell(store, good, groups=6, steps=3, groups_per_step=2, source=lambda seq: "sums" if seq % 2 else "words")


async def too_hard(store: Store) -> None:
    await tell(store, lambda seq, slot: Told(score=float(seq == 0 and slot == 0)), groups=20)


async def a_source_that_never_passes(store: Store) -> None:
    def told(seq: int, slot: int) -> Told:
        return Told(score=float(slot % 2 and seq % 2))

    await tell(store, told, groups=10, source=lambda seq: "sums" if seq % 2 else "words")


async def cut_replies(store: Store) -> None:
    def told(seq: int, slot: int) -> Told:
        return Told(termination=Termination.LENGTH_LIMIT if slot else Termination.ANSWERED, score=float(not slot))

    await tell(store, told, groups=5)


async def no_calls(store: Store) -> None:
    await tell(store, lambda seq, slot: Told(score=float(slot == 0)), groups=5)


async def unparsed_calls(store: Store) -> None:
    def told(seq: int, slot: int) -> Told:
        bad = slot > 0
        return Told(
            replies=(('<tool_call>{"name": calculator}', ()), ("4", ())) if bad else ADD,
            error="the tool call is not valid JSON" if bad else None,
        )

    await tell(store, told, groups=5)


async def a_scorer_that_wants_another_form(store: Store) -> None:
    reason = "no answer: the last reply has no <answer>…</answer> with something in it"
    details = {"scorer": "math", "extracted": None, "expected": ["4"], "reason": reason}
    await tell(store, lambda seq, slot: Told(replies=(("The answer is 4", ()),), details=details), groups=5)


async def long_ones_dropped(store: Store) -> None:
    def told(seq: int, slot: int) -> Told:
        long = (7 * seq + 3 * slot) % 5 > 2
        end = Termination.TURNS_LIMIT if long else Termination.ANSWERED
        return Told(score=float((seq + slot) % 2), tokens=40 if long else 3, termination=end)

    await tell(store, told, groups=40, settings={"reserve_context_error_count": 0}, steps=20, groups_per_step=2)


async def old_data(store: Store) -> None:
    await tell(store, good, groups=6, steps=6)


async def no_variance_dropped(store: Store) -> None:
    def told(seq: int, slot: int) -> Told:
        return Told(score=1.0 if seq % 3 else float(slot % 2))

    await tell(store, told, groups=9, settings={"zero_variance_tolerance": 0.01}, steps=3)


async def engines_that_fail(store: Store) -> None:
    def told(seq: int, slot: int) -> Told:
        down = seq % 2 == 1
        return Told(failed="no engine answered", termination=Termination.ENGINE_FAILURE) if down else good(seq, slot)

    await tell(store, told, groups=8, steps=2)


async def one_way_of_saying_it(store: Store) -> None:
    await tell(store, lambda seq, slot: Told(score=1.0, replies=ADD), groups=2, slots=8)


async def a_wrong_last_turn(store: Store) -> None:
    def told(seq: int, slot: int) -> Told:
        return Told(score=float(slot == 0), replies=(ADD[0], ("4" if slot == 0 else "5", ())))

    await tell(store, told, groups=1)


async def certain_of_all(store: Store) -> None:
    await tell(store, lambda seq, slot: Told(score=1.0, logprob=-1e-4), groups=1)


async def requests_written_anew(store: Store) -> None:
    await tell(store, lambda seq, slot: Told(score=float(slot % 2), replies=ADD, fresh=True), groups=1)


async def worse_on_held_out_tasks(store: Store) -> None:
    await tell(store, good, groups=1, steps=1)
    for version, scores in ((0, [1.0, 1.0]), (1, [0.0, 0.0])):
        tasks = [
            make_task(
                20 * version + k,
                split=EVAL_SPLIT,
                epoch=version,
                tid=f"held{k}",
                at_version=version,
                scores=scores if k < 8 else [1.0, 1.0],
                status=TaskStatus.SETTLED,
            )
            for k in range(12)
        ]
        await store.tasks.insert_new(tasks)


async def masked_ones(store: Store) -> None:
    def told(seq: int, slot: int) -> Told:
        return Told(termination=Termination.TURNS_LIMIT if slot else Termination.ANSWERED, score=float(not slot))

    await tell(store, told, groups=1, settings={"mask_overlong": True}, steps=1)


async def marks_that_are_not_the_trainers(store: Store) -> None:
    await a_working_run(store)
    await store.database["record_data"].update_one({"_id": "main:train:0:t0:0:1"}, {"$set": {"trained_steps": []}})


# ---------------------------------------------------------------------- what the pages answer


def tools(view: View) -> str:
    return "; ".join(f"{t['_id']}: {t['errors']} of {t['calls']} calls are errors" for t in view["tools"])


def equal_groups(view: View) -> str:
    return f"{sum(group['same_rewards'] for group in view['data'])} of {len(view['data'])} groups have equal rewards"


def eaten(view: View) -> str:
    made = ", ".join(f"{group['task']} ({group['source']})" for group in view["data"])
    return f"{made}; {view['trained_tokens']} trained tokens; reward {view['reward']:g}"


def bands(view: View) -> str:
    every = [stretch["every"] for stretch in view["stretches"]]
    names = ("none_pass", "some_pass", "most_pass", "all_pass")
    return ", ".join(f"{name.replace('_', ' ')}: {sum(e[name] for e in every)}" for name in names)


def by_source(view: View) -> str:
    found = []
    for name in view["sources"]:
        own = [s["by_source"][name] for s in view["stretches"] if name in s["by_source"]]
        found.append(f"{name}: {sum(o['passed'] for o in own)} of {sum(o['episodes'] for o in own)}")
    return ", ".join(found)


def ends(view: View) -> str:
    return ", ".join(f"{name}: {n} of {view['episodes']}" for name, n in view["terminations"])


def called(view: View) -> str:
    return f"{sum(t['calls'] for t in view['tools'])} calls in {view['turns']} turns of {view['episodes']} episodes"


def broken(view: View) -> str:
    return "; ".join(
        f"{b['_id']['status']}: {b['_id']['error']}: {b['turns']} of {view['turns']} turns" for b in view["broken"]
    )


def reason(view: View) -> str:
    reply = view["threads"][0]["turns"][-1]["reply"]
    return f"reply “{reply}”; {view['record']['reward_details']['reason']}"


def alarms(view: View) -> str:
    return "they part by " + ", ".join(
        side["name"] for side in view["sides"] if side["is_alarm"] and side["name"] != "duration"
    )


def ages(view: View) -> str:
    return ", ".join(
        f"version {v['version']}, {v['staleness']} steps old, {v['records']} records" for v in view["versions"]
    )


def fates(view: View) -> str:
    return ", ".join(f"{fate}{': ' * bool(why)}{why} {n}" for fate, why, n, _ in view["by_reason"])


def ways(view: View) -> str:
    last = [cell["letter"] for cell in view["rows"][-1] if cell]
    return f"{len(set(last))} way of {len(last)} attempts, in {len(view['rows'])} turns"


def parting(view: View) -> str:
    a, b = (row["reply"] for row in view["rows"][view["first_turn"]])
    return f"they part in turn {view['first_turn']}, at token {view['first_token']}: “{a}” and “{b}”"


def certainty(view: View) -> str:
    return f"lowest log-prob of the turn: {min(t['logprob'] for t in view['tokens'] if t['sampled']):.4f}"


def saved(view: View) -> str:
    counts = view["every"]
    return f"{counts['num_flat']} tokens, {counts['num_tree']} as a tree: {1 - counts['num_tree'] / counts['num_flat']:.0%} saved"


def held_out(view: View) -> str:
    return f"{view['better']} better, {view['worse']} worse, p {view['p']:.3f}"


def loss(view: View) -> str:
    return "has a loss" if view["is_trained"] else f"no loss: {view['why_not']}"


def advantages(view: View) -> str:
    return ", ".join(f"{a['record']['score']:g} → {a['record']['advantage']:+g}" for a in view["attempts"])


CASES: dict[str, tuple[Callable[[Store], Awaitable[None]], Callable[[View], str]]] = {
    "Which tool breaks?": (a_tool_that_fails, tools),
    "Is it the data or the loss?": (equal_rewards, equal_groups),
    "What did step 2 eat?": (a_working_run, eaten),
    "Are the tasks too hard, or too easy?": (too_hard, bands),
    "Does one source never pass?": (a_source_that_never_passes, by_source),
    "Are replies cut off?": (cut_replies, ends),
    "Does the model call its tools at all?": (no_calls, called),
    "Can its tool calls be parsed?": (unparsed_calls, broken),
    "Is the scorer wrong, or the answer?": (a_scorer_that_wants_another_form, reason),
    "Are long episodes sampled and never trained?": (long_ones_dropped, alarms),
    "How old is what a step trains?": (old_data, ages),
    "What was dropped, and why?": (no_variance_dropped, fates),
    "Does the infrastructure fail?": (engines_that_fail, fates),
    "Do all rollouts of a group say the same?": (one_way_of_saying_it, ways),
    "Where do a good and a bad rollout part?": (a_wrong_last_turn, parting),
    "Is the model certain of everything?": (certain_of_all, certainty),
    "Why is a step so slow for so few tokens?": (requests_written_anew, saved),
    "Did training make it worse?": (worse_on_held_out_tasks, held_out),
    "Why has this token no loss?": (masked_ones, loss),
    "Do rewards become the advantages that I expect?": (a_working_run, advantages),
    "Are the marks on the data those of the trainer?": (
        marks_that_are_not_the_trainers,
        lambda view: view["disagreement"],
    ),
}


def test_each_question_has_a_run_here_and_each_run_a_question() -> None:
    assert set(QUESTIONS) == set(CASES)
    assert len(QUESTIONS) >= 20


@pytest.mark.parametrize("title", CASES)
async def test_the_page_answers_on_a_run_that_is_broken_so(viewer: Client, store: Store, title: str) -> None:
    break_it, read = CASES[title]
    await break_it(store)
    path = re.search(r"^Address: `/runs/RUN(.*?)`", QUESTIONS[title], re.MULTILINE)
    answered = re.search(r"^It answered: (.*)$", QUESTIONS[title], re.MULTILINE)
    assert path is not None
    assert answered is not None
    html = await viewer.get(f"/runs/{store.run}{path[1]}")
    assert html.status_code == 200, html.text
    bare, _, query = path[1].partition("?")
    view = (await viewer.get(f"/runs/{store.run}{bare}.json?{query}")).json()
    assert read(view) == answered[1]
