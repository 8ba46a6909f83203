"""`tandem metrics`: a run's queue and services over HTTP, for Prometheus and for what scales samplers.

    GET /metrics        Prometheus' text format        GET /metrics.json   the same as one JSON object
    GET /health         200 if the database answers

`wanted_episodes` is what samplers could play at once: free slots, and those that samplers play, of the tasks that the trainers'
off-policy budget admits now, and of open evaluations. Queued tasks beyond the budget do not count: more samplers could not play
them.
"""

import asyncio
import json
from http import HTTPStatus
from typing import Annotated

import typer

from shared.documents.run import Run, Worker
from shared.documents.states import RunState, ServiceStatus
from shared.errors import TandemError
from shared.http.listening import in_url, listening_socket
from shared.http.pages import PlainPage, page_server
from shared.names import EVAL_SPLIT, TRAIN_SPLIT
from shared.processes.signals import ending_signals
from shared.store import Store
from shared.tasks.admission import seq_limit
from tandem.commands.connect import Connection, RunName, console, with_store

EXAMPLES = """Examples:

`tandem metrics demo --port 9464`  then `curl localhost:9464/metrics`

`tandem metrics demo --once`  print the figures and end
"""

Figures = dict[str, float]
HELP = {
    "wanted_episodes": "Episodes that samplers could play at once: slots open or theirs within the off-policy budget.",
    "slots_open": "Slots that may be claimed now.",
    "slots_leased": "Slots that are being played.",
    "slots_at_gateways": "Of these, slots that agents elsewhere play.",
    "samplers": "Sampler processes that are alive.",
    "gateways": "Gateway processes that are alive.",
    "episodes_running": "Episodes in flight, as samplers report them.",
    "attempts_known": "Attempts of agents elsewhere, each at the gateway that served it last, as gateways report them.",
    "engines_up": "Engines that serve.",
    "engine_requests_running": "Requests that engines compute.",
    "engine_requests_waiting": "Requests that wait in engines.",
    "step": "Optimizer step of the newest published weights, the lowest of all policies.",
    "ended": "1 if every trainer has ended.",
    "paused": "1 if the run is paused.",
}
TIME_LIMIT_S = 20.0
PROMETHEUS, JSON = "text/plain; version=0.0.4; charset=utf-8", "application/json"


async def figures(store: Store) -> Figures:
    """The figures of `HELP`, queried now."""
    run = await store.runs.get()
    values = dict.fromkeys(HELP, 0.0)
    if run is None:
        return values
    trained, owner = list(run.admission), await _owner(store, run)
    slots = {"open": 0, "leased": 0, "at_gateways": 0}
    if owner is not None:
        limit = (await seq_limit(store, [owner, *(name for name in trained if name != owner)], run.admission))[0]
        slots = await store.questions.slots_to_play(owner, limit)
    playing = run.state is RunState.RUNNING or (run.state is RunState.ENDED and bool(slots["open"]))
    newest = [await store.versions.newest(policy) for policy in trained]
    live = await store.workers.live()
    workers = [worker for worker in live if worker.kind == "sampler"]
    gateways = [worker for worker in live if worker.kind == "gateway"]
    services = [service for policy in await store.questions.policies() for service in await store.services.live(policy)]
    up = {service.url for service in services if service.status is ServiceStatus.UP}
    engines = {service.url: service for service in services}.values()  # one may serve several policies as adapters
    return values | {
        "wanted_episodes": slots["leased"] - slots["at_gateways"] + (slots["open"] if playing else 0),
        "slots_open": slots["open"],
        "slots_leased": slots["leased"],
        "slots_at_gateways": slots["at_gateways"],
        "samplers": len(workers),
        "gateways": len(gateways),
        "episodes_running": _running(workers),
        "attempts_known": _running(gateways),
        "engines_up": len(up),
        "engine_requests_running": sum(service.running for service in engines),
        "engine_requests_waiting": sum(service.waiting for service in engines),
        "step": min((version.step for version in newest if version is not None), default=0),
        "ended": float(run.state is RunState.ENDED),
        "paused": float(run.state is RunState.PAUSED),
    }


def _running(workers: list[Worker]) -> int:
    return sum(int(worker.stats.get("episodes_running") or 0) for worker in workers)


async def _owner(store: Store, run: Run) -> str | None:
    """The policy whose tasks the run has; None without tasks."""
    for policy in (*run.admission, *await store.questions.policies()):
        if await store.tasks.next_seq(policy, TRAIN_SPLIT) or await store.tasks.next_seq(policy, EVAL_SPLIT):
            return policy
    return None


def as_text(run: str, values: Figures) -> str:
    """Prometheus' text format, each metric with its meaning."""
    lines = []
    for name, value in values.items():
        lines += [f"# HELP tandem_{name} {HELP[name]}", f"# TYPE tandem_{name} gauge"]
        lines.append(f'tandem_{name}{{run="{run}"}} {value:g}')
    return "\n".join(lines) + "\n"


def metrics(
    run: RunName,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: a free one.")] = 9464,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    once: Annotated[bool, typer.Option("--once", help="Print the figures as JSON and end.")] = False,
    db_connection_string: Connection = None,
) -> None:
    """Serve a run's figures to Prometheus and autoscalers.

    Read-only and without authentication: figures of the queue and of services, no text of any episode.
    """
    if once:
        typer.echo(json.dumps(with_store(db_connection_string, run, figures, read_only=True)))
        return
    with_store(db_connection_string, run, lambda store: _serve(store, host, port), must_exist=False, read_only=True)


async def _serve(store: Store, host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    asking = asyncio.Lock()  # one query at a time, however many ask

    async def page(path: str) -> PlainPage:
        async with asking:
            return await respond(store, path)

    listener = listening_socket(host, port, "--host and --port")
    async with page_server(listener, page, TIME_LIMIT_S):
        place = f"{in_url(host)}:{listener.getsockname()[1]}"
        console().print(f"figures of {store.run} at http://{place}/metrics", soft_wrap=True, markup=False)
        await stop.wait()


async def respond(store: Store, path: str) -> PlainPage:
    """503 while the database does not answer."""
    if path not in ("/metrics", "/metrics.json", "/health"):
        return PlainPage(HTTPStatus.NOT_FOUND, JSON, '{"error": "expected GET /metrics, /metrics.json or /health"}\n')
    try:
        async with asyncio.timeout(TIME_LIMIT_S / 2):
            values = await figures(store)
    except (TandemError, TimeoutError):
        return PlainPage(HTTPStatus.SERVICE_UNAVAILABLE, JSON, '{"error": "the database does not answer"}\n')
    if path == "/metrics":
        return PlainPage(HTTPStatus.OK, PROMETHEUS, as_text(store.run, values))
    return PlainPage(HTTPStatus.OK, JSON, json.dumps(values if path == "/metrics.json" else {"status": "ok"}) + "\n")
