"""Every command of `tandem`, each in a file of its own."""

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from tandem.commands import (
    audit,
    check_model,
    data,
    database,
    evaluation,
    export,
    feedback,
    fork,
    health,
    league,
    metrics,
    note,
    pausing,
    programs,
    rules,
    runs,
    server,
    show,
    status,
    tail,
    tasks,
    trace,
    trace_export,
    view,
    what_if,
)

app = typer.Typer(
    name="tandem",
    help="Manage runs of Tandem. Every RUN is one MongoDB database, which each command reads or fills.",
    epilog="Start here:  `tandem mongod`,  then  `tandem tasks import demo train.jsonl`,  then  `tandem status demo`.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(tasks.app, name="tasks")
app.add_typer(data.app, name="data")
app.add_typer(database.app, name="database")
app.command("status", epilog=status.EXAMPLES)(status.status)
app.command("runs", epilog=runs.EXAMPLES)(runs.runs)
app.command("tail", epilog=tail.EXAMPLES)(tail.tail)
app.command("gc", epilog=runs.GC_EXAMPLES)(runs.gc)
app.command("pause", epilog=pausing.EXAMPLES)(pausing.pause)
app.command("resume", epilog=pausing.EXAMPLES)(pausing.resume)
app.command("note", epilog=note.EXAMPLES)(note.note)
app.command("rules", epilog=rules.EXAMPLES)(rules.rules)
app.command("feedback", epilog=feedback.EXAMPLES)(feedback.feedback)
app.command("show", epilog=show.EXAMPLES)(show.show)
app.command("eval", epilog=evaluation.EXAMPLES)(evaluation.evaluation)
app.command("league", epilog=league.EXAMPLES)(league.league)
app.command("audit", epilog=audit.EXAMPLES)(audit.audit_run)
app.command("replay", epilog=what_if.REPLAY_EXAMPLES)(what_if.replay)
app.command("resettle", epilog=what_if.RESETTLE_EXAMPLES)(what_if.resettle)
app.command("bisect", epilog=what_if.BISECT_EXAMPLES)(what_if.bisect)
app.command("fork", epilog=fork.EXAMPLES)(fork.fork)
app.command("export-model", epilog=export.EXAMPLES)(export.export_model)
app.command("check-model", epilog=check_model.EXAMPLES)(check_model.check_model)
app.command("health", epilog=health.EXAMPLE)(health.health)
app.command("metrics", epilog=metrics.EXAMPLES)(metrics.metrics)
app.command("view", epilog=view.EXAMPLES)(view.view)
app.command("mongod", epilog=server.EXAMPLES)(server.mongod)
traces = typer.Typer(
    cls=trace.TraceGroup, rich_markup_mode="markdown", help="Trace a step or a record, or export traces."
)
traces.command(trace.CHAIN, epilog=trace.EXAMPLES)(trace.trace)
traces.command(trace.EXPORT, epilog=trace_export.EXAMPLES)(trace_export.export)
app.add_typer(traces, name="trace")
programs.add_to(app)


def _print_version(requested: bool) -> None:
    if requested:
        try:
            typer.echo(f"tandem {version('tandem-rl')}")
        except PackageNotFoundError:
            typer.echo("tandem, of sources that are not installed")
        raise typer.Exit


@app.callback()
def of_all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Manage runs of Tandem. Every RUN is one MongoDB database, which each command reads or fills."""
