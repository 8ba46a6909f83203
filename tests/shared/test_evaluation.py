"""Rounds of evaluation, from the documents: queued once, bound to their version, counted by task."""

import json
from pathlib import Path

from shared.documents import TaskPayload
from shared.documents.run import PolicyVersion
from shared.documents.states import TaskStatus
from shared.evaluation.pass_rates import pass_at_k, wilson
from shared.evaluation.rounds import best_steps, evaluation_round, evaluation_rounds
from shared.store import Store
from tandem.commands.evaluation import ends_text
from tests.shared.builders import claim, make_task
from tests.shared.episodes import announce
from tests.shared.rounds import SOURCES, import_set, play


async def test_a_round_is_a_copy_of_the_set_bound_to_its_version_and_queued_once(store: Store) -> None:
    await import_set(store)
    payload = TaskPayload(query="2+2?", answer="4", max_turns=3, tools=["calculator"])
    await store.database["tasks"].update_one({"tid": "t1"}, {"$set": {"payload": payload.model_dump()}})
    await play(store, {tid: [1.0, 0.0] for tid in SOURCES}, 0)
    assert [await store.evaluation.queue_round("main", 7) for _ in range(2)] == [3, 0]
    await store.database["tasks"].delete_one({"_id": "main:eval:7:t1"})  # as a process that was killed leaves it
    assert await store.evaluation.queue_round("main", 7) == 1
    copies = await store.evaluation.round_tasks("main", 7)
    assert {(c.at_version, c.status, c.num_generations, c.slots[0].attempt) for c in copies} == {
        (7, TaskStatus.CREATED, 2, 0)
    }
    assert {c.tid: c.source for c in copies} == SOURCES
    assert next(c.payload for c in copies if c.tid == "t1") == payload
    assert await store.evaluation.queue_round("other", 7) == 0
    assert await claim(store, split="eval", served_versions=[6]) is None


async def test_the_oldest_open_round_is_awaited_and_its_version_kept(store: Store) -> None:
    await import_set(store)
    await store.evaluation.queue_round("main", 4)
    await store.evaluation.queue_round("main", 2)
    assert await store.evaluation.open_versions("main") == [0, 2, 4]
    assert await store.evaluation.awaited_version("main", before=5) == 0
    await play(store, {tid: [1.0, 1.0] for tid in SOURCES}, 0)
    assert await store.evaluation.awaited_version("main", before=5) == 4  # queued before that of version 2
    assert await store.evaluation.awaited_version("main", before=4) == 2
    assert await store.evaluation.awaited_version("main", before=2) is None
    assert await store.evaluation.count_round("main", 0) == (3, 3)


async def test_rounds_of_withdrawn_versions_are_skipped_and_leave_the_curve(store: Store) -> None:
    await import_set(store)
    for step in (0, 5, 10):
        await announce(store, step)
    await play(store, {tid: [1.0, 1.0] for tid in SOURCES}, 0)
    await store.evaluation.queue_round("main", 1)
    await store.evaluation.queue_round("main", 2)
    held = await claim(store, split="eval", served_versions=[2])
    assert await store.versions.withdraw_after("main", 5, 1) == 1
    assert await store.evaluation.withdraw("main", [2]) == 3
    await store.tasks.finish_slot(held, 1.0)  # an episode under way may end; nothing comes of it
    assert await claim(store, split="eval", served_versions=[2]) is None
    assert await store.evaluation.open_versions("main") == [1]
    assert [played.step for played in await evaluation_rounds(store, "main")] == [0, 5]
    everything = await evaluation_rounds(store, "main", withdrawn=True)
    assert [(played.step, played.withdrawn, played.overall.episodes) for played in everything] == [
        (0, False, 6),
        (5, False, 0),
        (10, True, 0),
    ]


async def test_a_task_counts_once_and_an_infrastructure_failure_is_not_a_wrong_answer(store: Store) -> None:
    await import_set(store, num_generations=4)
    await play(store, {"t0": [1, 0, 0, 0], "t1": [0.5, 1, 1, 1], "t2": [0, 0, None, None]}, 0)
    played = await evaluation_round(store, "main", 0)
    assert (played.version, played.step, played.versions, played.complete) == (0, 0, (0,), True)
    overall = played.overall
    assert (overall.tasks, overall.episodes, overall.failed, overall.terminations) == (3, 10, 2, {"answered": 10})
    assert overall.causes == {"engine down": 2}
    assert ends_text(overall).splitlines()[1:] == ["failed, 2 ×: engine down"]
    assert (overall.turns_mean, overall.tokens_mean, overall.tokens) == (2, 10, 100)
    assert overall.pass_at[1] == wilson([0.25, 0.75, 0.0])
    assert overall.pass_at[2] == wilson([pass_at_k(4, 1, 2), 1.0, 0.0])
    assert overall.pass_at[4] == wilson([1.0, 1.0])  # t2 has only two episodes
    assert overall.reward is not None
    assert overall.reward.value == (0.25 + 0.875 + 0) / 3
    assert {name: (f.tasks, f.pass_at[1].value) for name, f in played.by_source.items()} == {
        "sums": (1, 0.25),
        "boxes": (2, 0.375),
    }
    assert played.to_json()["by_source"]["sums"]["pass_at"]["4"]["value"] == 1.0


async def test_a_round_without_a_version_names_the_versions_that_sampled_it(store: Store) -> None:
    await store.tasks.insert_new([make_task(0, split="eval", num_generations=1)])
    await play(store, {"t0": [1.0]}, 0, policy_versions=[3, 4])
    played = await evaluation_round(store, "main", 0, dict[int, PolicyVersion]())
    assert (played.version, played.step, played.versions) == (None, None, (3, 4))


def test_the_best_steps_are_those_of_the_highest_held_out_rewards(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert best_steps(path, 3) == []
    rewards = {5: 0.25, 10: 0.75, 15: 0.5, 20: 0.75}
    lines = [{"step": step + 2, "eval/step": float(step), "eval/reward": reward} for step, reward in rewards.items()]
    path.write_text(
        "".join(json.dumps(line) + "\n" for line in [{"step": 1}, *lines, {"step": 30, "eval/reward": None}])
    )
    assert best_steps(path, 3) == [20, 10, 15]
    assert best_steps(path, 0) == []


async def test_another_policys_reward_is_over_the_episodes_in_which_it_took_turns_and_its_versions_are_reported(
    store: Store,
) -> None:
    await import_set(store)
    took = {"policy_scores": {"guide": 0.25}, "other_policy_versions": {"guide": [3]}}
    await play(store, {"t0": [1.0, 1.0]}, 0, limit=2, **took)
    await play(
        store, {"t1": [1.0, 0.0]}, 0, limit=2, other_policy_versions={"guide": [4]}
    )  # no score: it has the task's
    await play(store, {"t2": [1.0, 1.0]}, 0, limit=2)  # it took no turn
    played = await evaluation_round(store, "main", 0)
    assert played.other_versions == {"guide": (3, 4)}
    assert played.overall.other_rewards["guide"].value == (0.25 + 0.5) / 2
    assert {name: [*figures.other_rewards] for name, figures in played.by_source.items()} == {
        "sums": ["guide"],
        "boxes": ["guide"],
    }
    assert played.by_source["boxes"].other_rewards["guide"].value == 0.5
    assert played.overall.reward is not None
    assert played.overall.reward.value == (1.0 + 0.5 + 1.0) / 3, "the owner's is untouched"
    assert json.loads(json.dumps(played.to_json()))["overall"]["other_rewards"]["guide"]["value"] == 0.375
