"""A run has ended once every trainer that it had has said so, and goes on with the next start of one."""

import asyncio
import json
import re

from shared.documents.run import Admission, TrainerEnd
from shared.documents.states import RunState
from shared.store import Store
from tests.tandem.commands.commands import Command

ADMISSION = Admission(groups_per_step=1, max_staleness=0, num_steps=9)


async def begin(store: Store, policy: str) -> int:
    return await store.runs.start_trainer(policy, ADMISSION)


async def end(store: Store, policy: str, trainer_generation: int, reason: str = "all 9 steps are taken") -> None:
    await store.runs.end_trainer(policy, TrainerEnd(trainer_generation=trainer_generation, step=9, reason=reason))


async def state(store: Store) -> RunState:
    return (await store.runs.read()).state


async def test_of_several_policies_the_last_trainers_end_is_the_runs(store: Store) -> None:
    solver, judge = await begin(store, "solver"), await begin(store, "judge")
    await end(store, "solver", solver)
    assert await state(store) is RunState.RUNNING
    await end(store, "judge", judge)
    assert await state(store) is RunState.ENDED
    again = await begin(store, "judge")
    run = await store.runs.read()
    assert (run.state, set(run.ends)) == (RunState.RUNNING, {"solver"})
    await end(store, "judge", again)
    assert await state(store) is RunState.ENDED


async def test_a_trainer_that_was_replaced_cannot_end_the_run(store: Store) -> None:
    zombie = await begin(store, "main")
    await begin(store, "main")
    await end(store, "main", zombie)
    run = await store.runs.read()
    assert (run.state, run.ends) == (RunState.RUNNING, {})


async def test_a_pause_is_a_persons_word_and_when_it_is_over_the_run_is_what_its_trainers_say(store: Store) -> None:
    trainer = await begin(store, "main")
    assert await store.runs.set_state(RunState.PAUSED)
    await end(store, "main", trainer)
    assert await state(store) is RunState.PAUSED
    assert await store.runs.set_state(RunState.RUNNING)
    assert await state(store) is RunState.ENDED
    assert not await store.runs.set_state(RunState.RUNNING)
    await store.runs.set_state(RunState.PAUSED)
    await begin(store, "main")
    assert await state(store) is RunState.PAUSED
    await store.runs.set_state(RunState.RUNNING)
    assert await state(store) is RunState.RUNNING


async def test_a_run_that_never_had_a_trainer_has_not_ended(store: Store) -> None:
    await store.runs.set_state(RunState.PAUSED)
    await store.runs.set_state(RunState.RUNNING)
    assert await state(store) is RunState.RUNNING


async def test_a_spoilt_entry_holds_neither_the_pause_nor_its_end_up(store: Store) -> None:
    await store.database["runs"].update_one({"_id": "run"}, {"$set": {"ends": "none", "trainer_generations": 3}})
    for paused in (RunState.PAUSED, RunState.RUNNING):
        assert await store.runs.set_state(paused)
        document = await store.database["runs"].find_one({"_id": "run"})
        assert document is not None
        assert document["state"] == paused


async def test_the_commands_say_when_and_why_a_run_ended(store: Store, tandem: Command) -> None:
    async def said(*arguments: str) -> str:
        return (await asyncio.to_thread(tandem, arguments[0], store.run, *arguments[1:])).stdout

    await end(store, "main", await begin(store, "main"), "before step 3 of 9: told to stop")
    shown = " ".join((await said("status")).split())
    assert f"run {store.run} is ended;" in shown
    when = r"ended \d+ s ago \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\)"
    assert re.search(rf"the trainer of policy main {when} after step 9: before step 3 of 9: told to stop", shown)
    told = json.loads(await said("status", "--json"))
    assert (told["state"], [e["policy"] for e in told["ends"]]) == ("ended", ["main"])
    assert "is already ended: its trainers have finished; starting one continues it" in await said("resume")
