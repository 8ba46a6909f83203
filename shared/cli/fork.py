"""`tandem fork`: other continuations of one stored turn, sampled now by the run's samplers, as a group of their own."""

import asyncio
from typing import Annotated, Any

import typer
from rich.progress import Progress

from shared.cli.connect import PROBLEM, AsJson, Connection, RunName, warn, with_store
from shared.documents import Task
from shared.documents.fork import ForkOrigin
from shared.documents.states import OVER, SlotStatus
from shared.errors import ConfigError
from shared.outside_console import OutsideConsole
from shared.store import Store
from shared.what_if.fork import Origin, queue_fork, read_origin
from shared.what_if.forked import read_fork, tell

POLL_S = 0.5

EXAMPLES = """Examples:

`tandem fork demo main:eval:0:arith-00017:3:1:0`  eight other continuations of turn 0 of that record

`tandem fork demo main:eval:0:arith-00017:3:1:1 --n 32 --replay_tools`  of turn 1; its tool calls are made again, and compared

`tandem fork demo main:eval:0:arith-00017:3:1:0 --temperature 1 --no_wait`  of a greedy evaluation; the same command shows it
"""


def fork(
    run: RunName,
    dispatch: Annotated[str, typer.Argument(metavar="DISPATCH", help="A turn: RECORD:TURN, the turn from 0.")],
    n: Annotated[int, typer.Option("--n", min=1, max=512, help="How many continuations.")] = 8,
    stateless_tools: Annotated[
        bool, typer.Option("--stateless_tools", help="Earlier tool calls left nothing behind: go on with fresh tools.")
    ] = False,
    replay_tools: Annotated[
        bool, typer.Option("--replay_tools", help="Make earlier tool calls again; a result that differs ends the slot.")
    ] = False,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0, help="Default: the turn's own.")] = None,
    again: Annotated[bool, typer.Option("--again", help="A further group, where the turn has one already.")] = False,
    no_wait: Annotated[bool, typer.Option("--no_wait", help="Only queue it; the same command shows it later.")] = False,
    as_json: AsJson = False,
    db_connection_string: Connection = None,
) -> None:
    """Sample other continuations of one stored turn: what else could the model have done, how often does it succeed from here?

    A living sampler of the run plays them with the weights that its engines serve now, from the turn's exact token ids. They are
    scored like their origin, and never trained on. The same command again shows the same group. Exit code 1: a
    continuation has no score, or no sampler is alive; 2: wrong usage.
    """

    async def work(store: Store) -> int:
        origin = await read_origin(store, dispatch)
        wanted = _wanted(origin, temperature, stateless=stateless_tools, replay=replay_tools)
        task, new = await queue_fork(store, origin, wanted, n, again=again)
        if not new:
            _check_same(task, wanted, n)
        if no_wait and task.status not in OVER:
            OutsideConsole(soft_wrap=True).print(f"{'queued' if new else 'already queued'}: {task.id}", markup=False)
            return 0
        ended = await _ended(store, task)
        return PROBLEM if ended is None else tell(await read_fork(store, origin, ended), as_json=as_json)

    raise typer.Exit(with_store(db_connection_string, run, work))


def _wanted(origin: Origin, temperature: float | None, *, stateless: bool, replay: bool) -> ForkOrigin:
    """Raises ConfigError where it must be said what becomes of the tools, and for greedy copies of a greedy reply."""
    if stateless and replay:
        raise ConfigError("give either --stateless_tools or --replay_tools")
    calls = origin.num_earlier_calls
    if calls and not (stateless or replay):
        raise ConfigError(
            f"turn {origin.turn} comes after {calls} tool {'call' if calls == 1 else 'calls'}, whose effects a new session of "
            "the tools does not have: give --stateless_tools if they keep nothing between calls, or --replay_tools to make the "
            "calls again and compare their results"
        )
    if replay and any(call.summarized_by is not None for one in origin.earlier for call in one.tool_calls):
        raise ConfigError(
            "--replay_tools: a model summarized a result of an earlier call, and would say something else today"
        )
    sampling: dict[str, Any] = dict(origin.dispatch.sampling_params)
    sampling.pop("max_new_tokens", None)
    sampling |= {} if temperature is None else {"temperature": temperature}
    if not sampling.get("temperature"):
        raise ConfigError(f"dispatch {origin.dispatch.id} was sampled greedily: give a --temperature above 0")
    calls_told = "none" if not calls else "replayed" if replay else "stateless"
    return ForkOrigin(dispatch=origin.dispatch.id, sampling_params=sampling, earlier_calls=calls_told)


def _check_same(task: Task, wanted: ForkOrigin, n: int) -> None:
    if (task.num_generations, task.payload.fork) != (n, wanted):
        raise ConfigError(
            f"{task.id} exists, with --n {task.num_generations} or another temperature or way with tools: repeat its command to "
            "see it, or add --again for a further group"
        )


async def _ended(store: Store, task: Task) -> Task | None:
    """Wait until it is settled. None: it waits for a process that is not there, which is told."""
    with Progress(console=OutsideConsole(stderr=True), transient=True) as progress:
        bar = progress.add_task(task.id, total=task.num_generations)
        while task.status not in OVER:
            if (missing := await _missing(store, task.policy)) is not None:
                progress.stop()
                warn(f"{task.id} is queued and waits: {missing}. Repeat this command then")
                return None
            over = sum(slot.status in (SlotStatus.SCORED, SlotStatus.FAILED) for slot in task.slots)
            progress.update(bar, completed=over)
            await asyncio.sleep(POLL_S)  # until the next look
            task = await store.tasks.get(task.id) or task
    return task


async def _missing(store: Store, policy: str) -> str | None:
    """What it waits for, and the command that starts it; None: nothing is missing."""
    if await store.runs.is_paused():
        return f"the run is paused; `tandem resume {store.run}` continues it"
    run = f"--run {store.run} --model_name_or_path MODEL"
    if not await store.services.live(policy):
        keeper = f"python -m sampler.engine.keeper {run} --engine_url URL"
        return f"no engine of policy {policy} is alive; start one, or look after a running one: `{keeper}`"
    if all(worker.kind != "sampler" for worker in await store.workers.live()):
        return f"no sampler is alive; start one, with its --config and tool servers: `python -m sampler {run}`"
    return None
