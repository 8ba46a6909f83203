"""`tandem fork`: other continuations of one stored turn, sampled now by the run's samplers, as a group of their own."""

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.progress import Progress

from shared.documents import Task
from shared.documents.fork import ForkOrigin
from shared.documents.states import OVER, SlotStatus
from shared.episodes.origin import Origin, deleted_while_waiting, is_of, queue_fork, read_origin
from shared.errors import ConfigError
from shared.outside_console import OutsideConsole
from shared.store import Store
from tandem.commands.connect import PROBLEM, AsJson, Connection, RunName, warn, with_store
from tandem.what_if.forked import print_fork, read_fork

POLL_S = 0.5
QUIET_S = 10.0  # without a slot that is played: then it says what the samplers do
MOST_TOLD = 5  # errors of slots that are tried again

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
    temperature: Annotated[float | None, typer.Option("--temperature", help="Default: the turn's own.")] = None,
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
        new_origin = _wanted(origin, temperature, stateless=stateless_tools, replay=replay_tools)
        task, new = await queue_fork(store, origin, new_origin, n, again=again)
        _check_same(task, new_origin, n)
        if no_wait and task.status not in OVER:
            queued = f"{'queued' if new else 'already queued'}: {task.id}"
            output = json.dumps({"group": task.id, "status": task.status.value}) if as_json else queued
            OutsideConsole(soft_wrap=True).print(output, markup=False)
            return 0
        ended = await _ended(store, task)
        return PROBLEM if ended is None else print_fork(await read_fork(store, origin, ended), as_json=as_json)

    raise typer.Exit(with_store(db_connection_string, run, work))


def _wanted(origin: Origin, temperature: float | None, *, stateless: bool, replay: bool) -> ForkOrigin:
    """Raises ConfigError where it must be said what becomes of the tools, and for greedy copies of a greedy reply."""
    if stateless and replay:
        raise ConfigError("give either --stateless_tools or --replay_tools")
    if temperature is not None and not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(
            f"--temperature is {temperature}; expected a finite number above 0, such as 1.0: continuations differ"
        )
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
    earlier_calls = "none" if not calls else "replayed" if replay else "stateless"
    return ForkOrigin(dispatch=origin.dispatch.id, sampling_params=sampling, earlier_calls=earlier_calls)


def _check_same(task: Task, new_origin: ForkOrigin, n: int) -> None:
    """Raises ConfigError: the first group of the turn is another one."""
    if is_of(task, new_origin, n):
        return
    assert task.payload.fork is not None, "every task of the split is a fork"
    stored = _terms(task.payload.fork, task.num_generations)
    pairs = [
        (name, here, there) for (name, here), there in zip(stored.items(), _terms(new_origin, n).values(), strict=True)
    ]
    differing = ", ".join(f"{name} {here}, not {there}" for name, here, there in pairs if here != there)
    raise ConfigError(
        f"{task.id} exists, with {differing}: repeat its command to see it, or add --again for a further group"
    )


def _terms(fork: ForkOrigin, n: int) -> dict[str, object]:
    others = {name: value for name, value in fork.sampling_params.items() if name != "temperature"}
    return {
        "--n": n,
        "--temperature": fork.sampling_params.get("temperature"),
        "earlier tool calls": fork.earlier_calls,
        "sampling": others,
    }


async def _ended(store: Store, task: Task) -> Task | None:
    """Wait until it is settled. None: it waits for a process that is not there, which is told. Raises ConfigError if it is
    deleted meanwhile."""
    printed: set[str] = set()
    quiet_since = time.monotonic()
    with Progress(console=OutsideConsole(stderr=True), transient=True) as progress:
        bar = progress.add_task(task.id, total=task.num_generations)
        while task.status not in OVER:
            missing = await _missing(store, task.policy)
            if missing is not None:
                progress.stop()
                warn(f"{task.id} is queued and waits: {missing}. Repeat this command then")
                return None
            states = Counter(slot.status for slot in task.slots)
            progress.update(bar, completed=states[SlotStatus.SCORED] + states[SlotStatus.FAILED])
            if states[SlotStatus.LEASED]:
                quiet_since = time.monotonic()
            news = [*retried(task), *(await samplers_say(store) if time.monotonic() - quiet_since > QUIET_S else ())]
            for text in [text for text in dict.fromkeys(news) if text not in printed][: MOST_TOLD - len(printed)]:
                printed.add(text)
                warn(text)
            await asyncio.sleep(POLL_S)  # until the next look
            stored = await store.tasks.get(task.id)
            if stored is None:
                raise deleted_while_waiting(task.id)
            task = stored
    return task


def retried(task: Task) -> Sequence[str]:
    """Why slots that are open again failed, each reason once."""
    errors = {slot.error for slot in task.slots if slot.status is SlotStatus.OPEN and slot.failures and slot.error}
    return [f"an attempt failed, and its slot is tried again: {error}" for error in sorted(errors)]


async def samplers_say(store: Store) -> Sequence[str]:
    """What the living samplers do instead of playing it."""
    live = [worker for worker in await store.workers.live() if worker.kind == "sampler"]
    texts = dict.fromkeys(text for worker in live for text in (worker.doing, *worker.alarms) if text)
    return [f"no slot is played yet; samplers say: {'; '.join(texts)}"] if texts else []


async def _missing(store: Store, policy: str) -> str | None:
    """What it waits for, and the command that starts it; None: nothing is missing."""
    if await store.runs.is_paused():
        return f"the run is paused; `tandem resume {store.run}` continues it"
    run = f"--run {store.run} --model_name_or_path MODEL"
    if all(engine.serve_version is not None for engine in await store.services.live(policy)):
        keeper = f"python -m sampler.engine.keeper {run} --engine_url URL"
        return f"no engine of policy {policy} is alive; start one, or look after a running one: `{keeper}`"
    samplers = [worker.id for worker in await store.workers.live() if worker.kind == "sampler"]
    if not [one for one in samplers if await _plays(store, one, policy)]:
        which = f"no living sampler plays tasks of policy {policy}" if samplers else "no sampler is alive"
        return f"{which}; start one, with its --config and tool servers: `python -m sampler {run}`"
    return None


async def _plays(store: Store, worker: str, policy: str) -> bool:
    """By its settings; True if they are not known."""
    settings = await store.settings.of_worker(worker)
    return not settings or settings[0].values.get("policy", policy) == policy
