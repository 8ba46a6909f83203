"""`tandem pause` and `tandem resume`: set a run's state, which its processes read. The processes keep running."""

from collections.abc import Mapping
from typing import Literal

import typer

from shared.documents.states import RunState
from shared.store import Store
from tandem.commands.connect import Connection, RunName, with_store

EXAMPLES = """Examples:

`tandem pause demo`  the engines become idle within an episode, the trainer within a step

`tandem resume demo`  continues it
"""


def pause(run: RunName, db_connection_string: Connection = None) -> None:
    """Pause a run: samplers claim no more slots, trainers begin no further step.

    Running episodes and steps are finished. The run stays paused, also for processes started later,
    until `tandem resume`.
    """
    held = "paused: no slot is claimed and no step begun; work in progress is finished"
    _set(run, db_connection_string, RunState.PAUSED, {RunState.PAUSED: f"{held}. `tandem resume {run}` continues it"})


def resume(run: RunName, db_connection_string: Connection = None) -> None:
    """Continue a paused run."""
    ended = "ended: its trainers have finished; starting one continues it"
    _set(run, db_connection_string, RunState.RUNNING, {RunState.RUNNING: "running", RunState.ENDED: ended})


def _set(
    run: str, given: str | None, state: Literal[RunState.PAUSED, RunState.RUNNING], means: Mapping[RunState, str]
) -> None:
    async def work(store: Store) -> None:
        changed = await store.runs.set_state(state)
        current = (await store.runs.read()).state
        typer.echo(f"run {run} is {'now' if changed else 'already'} {means.get(current, current.value)}")

    with_store(given, run, work)
