"""Replays a recorded run, or a synthetic workload, under other orders of its episodes: a simulation on a virtual clock.

    python -m scripts.bench.schedule [RUN] [--policies task,longest,oracle,task+2,task/drain] [--staleness 0,1,2] [--places 64]
                                     [--measured RUN,…] [--json FILE] [--quick]

Of a run it reads every episode's turns (prompt, reply, tools) and fits how fast its engines were; without one, the lengths are
log-normal. A policy is an order of claims, `+K` for K more slots a group of which the last K are cancelled, and `/drain` for
engines that take new weights once their requests have ended (without it they go on with the new weights):

    task       the earliest task with a free slot: what samplers do
    longest    the task with the longest expected episodes, by its siblings, its earlier groups and its source
    shortest   the opposite
    oracle     the longest next episode, by its real length: no expectation is better

    time         s/step, from the first claim to the end of the last step; against the first policy of the same staleness
    idle %       of the engines' time, without a running request
    requests     mean number of running requests, over all engines
    staleness    mean and largest of a trained token, in steps
    wasted %     of the sampled tokens: of cancelled episodes, and of those that no step took
    again        tokens that were prefilled again for new weights
    length       mean sampled tokens of the trained episodes against all slots of their groups: below 1, long ones were cut off

With `--measured` it shows how far predicted seconds a step are from those that were measured, of RUN and of other recorded runs.
All have the other run's places, staleness and steps. `own` replays its episodes at its speeds, `episodes` RUN's episodes at its
speeds, `all` RUN's episodes at RUN's speeds: the last one also has the error of a machine that was busier in one of them.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.scheduling.engine import EngineModel
from scripts.bench.scheduling.order import Order
from scripts.bench.scheduling.recorded import Recording, read
from scripts.bench.scheduling.simulator import Policy, RunModel, SimulatedOutcome, Simulator
from scripts.bench.scheduling.workload import SimulatedTail, Workload, synthetic
from shared.errors import ConfigError, TandemError
from shared.names import DEFAULT_POLICY
from shared.store import Store
from tandem.commands.connect import connection_string

CONNECT_S = 5.0


def measure(options: Options) -> Tables:
    """Exits with 1 and a message for a run that cannot be read, or an unknown policy."""
    try:
        return _measured(options)
    except TandemError as exc:
        sys.exit(str(exc))


def _measured(options: Options) -> Tables:
    policies = [parsed(text) for text in options.policies.split(",")]
    if options.run is None:
        workloads, model = _synthetic(options)
        return {"a synthetic workload": _rows(workloads, model, policies, options)}
    recording = asyncio.run(recorded(options.run, options))
    model = _with(recording.model, options)
    tables: dict[str, list[Row]] = {"what was fitted": [_fit_row(recording)]}
    names = [options.run, *(options.measured.split(",") if options.measured else ())]
    others = [recording, *(asyncio.run(recorded(name, options)) for name in names[1:])]
    tables["predicted and measured"] = [
        _compared(name, recording, other) for name, other in zip(names, others, strict=True)
    ]
    tables[f"run {options.run}, {model.steps} steps"] = _rows([recording.workload], model, policies, options)
    return tables


def parsed(text: str) -> Policy:
    """Of `order[+K][/drain]`. Raises ConfigError."""
    name, _, mode = text.partition("/")
    order, _, extra = name.partition("+")
    if order not in set(Order) or mode not in ("", "drain") or not (extra or "0").isdecimal():
        raise ConfigError(f"--policies: {text!r}; expected {'|'.join(Order)}, with +K and /drain behind it or without")
    return Policy(Order(order), int(extra or 0), drain=mode == "drain")


async def recorded(run: str, options: Options) -> Recording:
    uri = connection_string(options.db_connection_string, run)
    async with Store.open(uri, run, timeout_s=CONNECT_S, must_exist=True, read_only=True) as store:
        return await read(store, options.policy)


def simulated(workloads: Sequence[Workload], model: RunModel, policy: Policy) -> Row:
    """Means over the workloads."""
    rows = [_row(Simulator(workload, model, policy).run(), model) for workload in workloads]
    means: Row = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    return {"policy": policy.name, "max_staleness": model.max_staleness, "places": model.places} | means


def _row(outcome: SimulatedOutcome, model: RunModel) -> Row:
    tokens = outcome.staleness.total()
    return {
        "s/step": outcome.seconds / model.steps,
        "idle %": 100 * (1 - outcome.engine_busy_s / (outcome.seconds * model.engine.count)),
        "requests": outcome.running_s / outcome.seconds,
        "staleness": sum(steps * count for steps, count in outcome.staleness.items()) / max(1, tokens),
        "largest": max(outcome.staleness, default=0),
        "wasted %": 100 * (outcome.cancelled + outcome.unused) / max(1, outcome.sampled),
        "again": outcome.recomputed,
        "length": _length_ratio(outcome),
    }


def _length_ratio(outcome: SimulatedOutcome) -> float:
    trained, slots = outcome.trained_lengths, outcome.slot_lengths
    return sum(trained) / len(trained) / (sum(slots) / len(slots))


def _rows(workloads: Sequence[Workload], model: RunModel, policies: Sequence[Policy], options: Options) -> list[Row]:
    allowed = [int(part) for part in options.staleness.split(",")] if options.staleness else [model.max_staleness]
    rows = []
    for steps in allowed:
        of_steps = [simulated(workloads, replace(model, max_staleness=steps), policy) for policy in policies]
        rows += [row | {"time": row["s/step"] / of_steps[0]["s/step"]} for row in of_steps]
    return rows


def _fit_row(recording: Recording) -> Row:
    engine, model = recording.model.engine, recording.model
    return {
        "groups": len(recording.workload.groups),
        "ms/token alone": 1e3 * (engine.step_s + engine.request_step_s),
        "ms more for each request": f"{1e3 * engine.request_step_s:.4f}",
        "ms/fresh token": f"{1e3 * engine.prefill_s:.4f}",
        "ms/request": 1e3 * engine.overhead_s,
        "tokens/request": engine.request_tokens,
        "median error %": 100 * recording.fit_error,
        "engines": engine.count,
        "training s": model.train_s,
        "settling s": model.settle_s,
        "publishing s": model.publish_s,
    }


def _compared(name: str, recording: Recording, other: Recording) -> Row:
    """Seconds a step of `other`: measured, and predicted in three ways, each with its error."""
    row: Row = {
        "run": name,
        "places": other.model.places,
        "max_staleness": other.model.max_staleness,
        "steps": other.model.steps,
        "measured s/step": other.step_s,
    }
    theirs = other.model
    moved = replace(
        theirs,
        engine=recording.model.engine,
        train_s=recording.model.train_s,
        settle_s=recording.model.settle_s,
        publish_s=recording.model.publish_s,
    )
    for title, workload, model in (
        ("own", other.workload, theirs),
        ("episodes", recording.workload, theirs),
        ("all", recording.workload, moved),
    ):
        predicted = Simulator(workload, model).run().seconds / theirs.steps
        row |= {f"{title} s/step": predicted, f"{title} %": 100 * (predicted / other.step_s - 1)}
    return row


def _with(model: RunModel, options: Options) -> RunModel:
    """The options that are given count; else what was recorded."""
    engine = replace(model.engine, kv_tokens=options.kv_tokens, update_s=options.update_s)
    if options.engines:
        engine = replace(engine, count=options.engines)
    if options.capacity:
        engine = replace(engine, capacity=options.capacity)
    return replace(
        model,
        engine=engine,
        places=options.places or model.places,
        steps=options.steps or model.steps,
        groups_per_step=options.groups_per_step or model.groups_per_step,
        in_order=options.in_order,
    )


def _synthetic(options: Options) -> tuple[list[Workload], RunModel]:
    """Speeds about those of a 4B model on one GPU: 10 ms a step, 0.05 ms more for each request."""
    engine = EngineModel(0.01, 0.00005, 0.00002, 0.01)
    model = _with(RunModel(engine, 16, 10, 64, 0, train_s=20.0, publish_s=2.0), options)
    groups = (model.steps + 6) * model.groups_per_step
    source, task, episode = (float(part) for part in options.sigmas.split(","))
    tail = SimulatedTail(source_sigma=source, task_sigma=task, episode_sigma=episode)
    return [synthetic(groups, options.group_size, seed, tail) for seed in range(options.seeds)], model


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("run", nargs="?", help="a recorded run; without it the workload is synthetic")
    parser.add_argument(
        "--policies", default="task,longest,shortest,oracle,task+2,task/drain", help="default: %(default)s"
    )
    parser.add_argument("--staleness", help="values of max_staleness (default: the run's; synthetic 0)")
    parser.add_argument("--measured", help="other recorded runs, to compare prediction and measurement")
    parser.add_argument(
        "--places", type=int, help="episodes at once, of all samplers (default: the most that were recorded; 64)"
    )
    parser.add_argument("--steps", type=int, help="optimizer steps (default: the run's; 10)")
    parser.add_argument("--groups_per_step", type=int, help="default: the run's; 16")
    parser.add_argument(
        "--group_size", type=int, default=8, help="episodes of a synthetic group (default: %(default)s)"
    )
    parser.add_argument("--engines", type=int, help="default: the run's; 1")
    parser.add_argument("--capacity", type=int, help="requests that an engine runs at once (default: the run's; 256)")
    parser.add_argument("--kv_tokens", type=int, default=0, help="an engine's KV cache in tokens; 0: no bound")
    parser.add_argument("--update_s", type=float, default=0.0, help="seconds for which loading weights stops an engine")
    parser.add_argument("--in_order", action="store_true", help="a step waits for older groups (stale_data: wait)")
    parser.add_argument("--policy", default=DEFAULT_POLICY, help="whose tasks (default: %(default)s)")
    parser.add_argument("--db_connection_string", help="default: the run's embedded server")
    parser.add_argument(
        "--sigmas",
        default="0.5,0.5,0.7",
        help="of the logarithm of synthetic lengths: between sources, tasks of one, episodes of one (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds", type=int, default=4, help="synthetic workloads, of which the means are shown (default: %(default)s)"
    )
    run_benchmark(parser, measure, steps=3, groups_per_step=4, staleness="0,1", places=16, seeds=1)
