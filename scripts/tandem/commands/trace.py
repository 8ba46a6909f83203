"""`tandem trace`: trace an optimizer step to its records, dispatches, weight versions and tool calls."""

import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from shared.documents.run import PolicyVersion
from shared.errors import ConfigError
from shared.store import Store
from shared.store.questions import chain_pipeline
from tandem.commands import trace_export
from tandem.commands.connect import (
    PROBLEM,
    AsJson,
    Connection,
    RunName,
    answer,
    complain,
    console,
    print_records,
    table,
    with_store,
)

Document = dict[str, Any]
Metrics = dict[str, dict[str, float | None]]  # by policy
HEADLINE = ("reward/mean", "loss/loss", "learner/grad_norm", "data/staleness_mean", "loss/mismatch_mean_nats")

CHAIN, EXPORT = "chain", "export"


class TraceGroup(TyperGroup):
    """`tandem trace RUN …` is `tandem trace chain RUN …`; only `export` has its own name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = args[:1] and args[0] in (CHAIN, EXPORT)
        return super().parse_args(ctx, args if own else [CHAIN, *args])


EXAMPLES = """Examples:

`tandem trace demo --step 12`  the training data of the 12th optimizer step

`tandem trace demo --record main:eval:0:arith-00017:3:1`  the steps that one episode was used in

`tandem trace export demo --otlp http://localhost:5000`  episodes as OpenTelemetry spans; `tandem trace export --help`

`tandem trace chain export --step 12`  of a run that is called "export"
"""


def trace(
    run: RunName,
    step: Annotated[int | None, typer.Option("--step", min=1, help="An optimizer step; the first is 1.")] = None,
    record: Annotated[str | None, typer.Option("--record", metavar="R", help="A record's id.")] = None,
    as_json: AsJson = False,
    db_connection_string: Connection = None,
) -> None:
    """Trace a step or a record through the whole chain; also print the equivalent query for Compass.

    Exit code 1 if the step used no data, or the record gave no training data.
    """
    if (step is None) == (record is None):
        answer(_refuse())
    where: Document = {"record": record} if record is not None else {"trained_steps": step}

    async def work(store: Store) -> tuple[list[Document], list[PolicyVersion], Metrics]:
        rows = await store.questions.chain(where)
        policies = sorted({row["policy"] for row in rows})
        metrics = {} if step is None else {policy: await _metrics(store, policy, step) for policy in policies}
        return rows, [v for policy in policies for v in await store.versions.all(policy)], metrics

    rows, versions, metrics = with_store(db_connection_string, run, work, read_only=True)
    if as_json:
        content = {"query": chain_pipeline(where), "rows": rows, "metrics": metrics}
        typer.echo(json.dumps(content, ensure_ascii=False))
    elif rows:
        _print(run, rows, versions)
        _print_metrics(metrics)
    if not as_json:
        console().print("\nIn Compass, collection [bold]record_data[/bold], tab Aggregations, “{} text”:")
        console().print(json.dumps(chain_pipeline(where)), soft_wrap=True, markup=False)
    if not rows:
        what = f"step {step} used no record" if record is None else f"record {record} gave no training data"
        complain(f"run {run}: {what}; see `tandem status {run}`")
        raise typer.Exit(PROBLEM)


async def _metrics(store: Store, policy: str, step: int) -> dict[str, float | None]:
    run = await store.runs.read()
    return await store.steps.metrics_of(policy, step, run.starts.get(policy, []))


def _print_metrics(metrics: Metrics) -> None:
    for policy, logged in metrics.items():
        if logged:
            chosen = [f"{name} {logged[name]:.4g}" for name in HEADLINE if logged.get(name) is not None]
            shown = ", ".join([*chosen, f"{len(logged)} metrics in total (--json)"])
            console().print(f"logged of policy {policy}: {shown}", soft_wrap=True, markup=False)


async def _refuse() -> None:
    raise ConfigError("give either --step N or --record R")


def _print(run: str, rows: list[Document], versions: list[PolicyVersion]) -> None:
    names = ("record", "turn #", "policy", "weights", "advantage #", "reward #", "steps", "tool calls")
    chain = table(*names, title=f"run {escape(run)}")
    seen: set[tuple[str, ...]] = set()
    for row in rows:
        record, data = (row["record"],), (row["record"], row["policy"])
        chain.add_row(
            escape(row["record"]) if record not in seen else "",
            str(row["turn"]) if row["thread"] is None else escape(f"{row['turn']} {row['thread']}"),
            escape(row["policy"]),
            " ".join(f"v{version}×{n}" for version, n in row["weight_versions"]),
            "–" if row["advantage"] is None else f"{row['advantage']:+.4f}",
            f"{row['reward']:g}" if data not in seen else "",
            ", ".join(map(str, row["trained_steps"])) or "none yet" if data not in seen else "",
            escape("; ".join(_call(call) for call in row["tool_calls"])),
        )
        seen |= {record, data}
    out = console()
    print_records(out, chain)
    records, tasks = {row["record"] for row in rows}, {row["task"] for row in rows}
    out.print(f"{len(records)} records of {len(tasks)} tasks, {len(rows)} dispatches")
    for policy, step in sorted({(row["policy"], step) for row in rows for step in row["trained_steps"]}):
        of_policy = [version for version in versions if version.policy == policy]
        out.print(f"step {step} of policy {policy}: {_published(step, of_policy)}", soft_wrap=True, markup=False)


def _call(call: Document) -> str:
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return f"{call['name']}({arguments}){' ✗' if call['is_error'] else ''} {call['duration_s']:.2f} s"


def _published(step: int, versions: list[PolicyVersion]) -> str:
    """The first weights of the surviving history that include a step."""
    holding = [v for v in versions if v.withdrawn_to is None and v.step >= step]
    if not holding:
        return "not in any announced weights yet"
    first = min(holding, key=lambda v: v.version)
    return f"first in {first.id}, the weights after step {first.step} ({first.path})"


traces = typer.Typer(cls=TraceGroup, rich_markup_mode="markdown", help="Trace a step or a record, or export traces.")
traces.command(CHAIN, epilog=EXAMPLES)(trace)
traces.command(EXPORT, epilog=trace_export.EXAMPLES)(trace_export.export)
