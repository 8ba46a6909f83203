"""`tandem pause` and `tandem resume`: hold a run, and let it go on. Its processes stay, and read the run's state themselves."""

from collections.abc import Mapping
from typing import Literal

import typer

from shared.cli.connect import Connection, RunName, with_store
from shared.documents.states import RunState
from shared.store import Store

EXAMPLES = """Examples:

`tandem pause demo`  the engines become idle within an episode, the trainer within a step

`tandem resume demo`  on from there
"""


def pause(run: RunName, db_connection_string: Connection = None) -> None:
    """Hold a run: samplers claim nothing more, trainers begin no further step.

    Episodes and steps under way go on to their end. The run stays paused, also for processes that are started
    later, until `tandem resume`.
    """
    held = "paused: no slot is claimed and no step begun; what is under way goes on to its end"
    _set(run, db_connection_string, RunState.PAUSED, {RunState.PAUSED: f"{held}. `tandem resume {run}` lets it go on"})


def resume(run: RunName, db_connection_string: Connection = None) -> None:
    """Let a paused run go on."""
    ended = "ended: its trainers have; it goes on when one is started again"
    _set(run, db_connection_string, RunState.RUNNING, {RunState.RUNNING: "running", RunState.ENDED: ended})


def _set(
    run: str, given: str | None, state: Literal[RunState.PAUSED, RunState.RUNNING], means: Mapping[RunState, str]
) -> None:
    async def work(store: Store) -> None:
        changed = await store.runs.set_state(state)
        found = (await store.runs.read()).state
        typer.echo(f"run {run} is {'now' if changed else 'already'} {means.get(found, found.value)}")

    with_store(given, run, work)
