"""Stored settings of services and metrics of steps: stored once, found by worker or step, and bounded."""

import math

from shared.documents.run import TrainedStep, step_id
from shared.store import Store
from shared.store.settings import MOST_WORKERS
from shared.store.steps import MOST_METRICS


async def test_equal_settings_are_one_document_with_every_worker_that_had_them(store: Store) -> None:
    one = {"temperature": 1.0, "chat_template_kwargs": {"a.b": "$x"}}
    first = await store.settings.keep("sampler", one, "sampler:h:1")
    assert await store.settings.keep("sampler", dict(reversed(one.items())), "sampler:h:2") == first
    other = await store.settings.keep("sampler", one | {"temperature": 0.5}, "sampler:h:3")
    keeper = await store.settings.keep("keeper", one, "keeper:h:4")
    assert len({first, other, keeper}) == 3
    (found,) = await store.settings.of_worker("sampler:h:2")
    assert (found.id, found.kind, found.values) == (first, "sampler", one)
    assert found.workers == ["sampler:h:1", "sampler:h:2"]
    assert [settings.values["temperature"] for settings in await store.settings.of_worker("sampler:h:3")] == [0.5]
    await store.settings.keep(
        "sampler", one | {"temperature": 2.0}, "sampler:h:3"
    )  # the number of a process comes again
    assert [settings.values["temperature"] for settings in await store.settings.of_worker("sampler:h:3")] == [2.0, 0.5]


async def test_of_very_many_workers_the_last_stay(store: Store) -> None:
    identity = await store.settings.keep("sampler", {}, "the first")
    many = [f"w{n}" for n in range(MOST_WORKERS)]
    await store.database["settings"].update_one({"_id": identity}, {"$set": {"workers": many}})
    await store.settings.keep("sampler", {}, "the last")
    (found,) = await store.settings.of_worker("the last")
    assert found.workers == [*many[1:], "the last"]


async def test_what_a_step_logged_is_stored_with_it_and_bounded(store: Store) -> None:
    identity = step_id("main", 1, 1)
    await store.steps.add(TrainedStep(id=identity, policy="main", step=1, trainer_generation=1, groups=[("t", 2)]))
    logged = {"loss/loss": 0.5, "reward_by_source/openai/gsm8k.v1": 1.0, "loss/ratio": math.nan}
    await store.steps.note_metrics(identity, logged)
    await store.steps.note_metrics(identity, {"loss/loss": 7.0})
    assert await store.steps.metrics_of("main", 1, [0]) == logged | {"loss/ratio": None}
    assert await store.steps.metrics_of("main", 1, [0, 0]) == {}, "the step was taken back"
    (step,) = await store.steps.surviving("main", [0])
    assert (step.groups, step.metrics) == ([("t", 2)], {}), "the audit reads no metrics"
    many = step_id("main", 2, 1)
    await store.steps.add(TrainedStep(id=many, policy="main", step=2, trainer_generation=1, groups=[]))
    await store.steps.note_metrics(many, {f"m/{n:05}": 1.0 for n in range(3 * MOST_METRICS)})
    assert list(await store.steps.metrics_of("main", 2, [0])) == [f"m/{n:05}" for n in range(MOST_METRICS)]


async def test_the_newest_metrics_are_those_of_steps_that_are_part_of_the_weights(store: Store) -> None:
    for number, generation in ((1, 1), (2, 1), (3, 1), (3, 2), (4, 2), (5, 2)):
        identity = step_id("main", number, generation)
        step = TrainedStep(id=identity, policy="main", step=number, trainer_generation=generation, groups=[])
        await store.steps.add(step)
        if number < 5:  # it has not logged anything yet
            await store.steps.note_metrics(identity, {"loss/loss": number + generation / 10})

    async def losses(starts: list[int], most: int) -> list[float | None]:
        return [metrics["loss/loss"] for metrics in await store.steps.newest_metrics("main", starts, most)]

    assert await losses([0, 2], 3) == [4.2, 3.2, 2.1], "the second start took step 3 again"
    assert await losses([0, 2], 9) == [4.2, 3.2, 2.1, 1.1]
    assert await losses([], 1) == [4.2]
    assert await store.steps.newest_metrics("other", [0], 3) == []
