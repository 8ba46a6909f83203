"""`tandem audit`: check a run's database against the invariants."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import Progress

from shared.outside_console import OutsideConsole
from shared.store import Store
from tandem.audit.position import AuditPosition
from tandem.audit.processes import Processes, collect_rarely
from tandem.audit.run import AuditOptions, AuditReport, audit
from tandem.audit.since import audit_since
from tandem.commands.connect import (
    OK,
    PROBLEM,
    AsJson,
    Connection,
    RunName,
    connection_string,
    console,
    table,
    warn,
    with_store,
)

EXAMPLES = """Examples:

`tandem audit demo`  after a run has ended

`tandem audit demo --running`  while it runs: slots may still be open

`tandem audit demo --running --since demo.audit`  again and again while it runs: what is new

`tandem audit demo --json | jq .counts`  for programs
"""


# 7 parameters: options of a command
def audit_run(
    run: RunName,
    running: Annotated[
        bool, typer.Option("--running", help="The run is active: open and leased slots are no violation.")
    ] = False,
    since: Annotated[
        Path | None,
        typer.Option(
            "--since",
            metavar="FILE",
            help="Examine what is new since the audit that wrote FILE; if there is no FILE, the whole run. Then write FILE. What "
            "was deleted or changed by hand after its examination is only found without this option.",
        ),
    ] = None,
    max_trained_count: Annotated[
        int | None,
        typer.Option("--max_trained_count", min=1, help="Default: the trainer's setting, else 1."),
    ] = None,
    newest_step: Annotated[
        int | None,
        typer.Option("--newest_step", min=0, help="Last valid step. Default: that of the newest weights."),
    ] = None,
    as_json: AsJson = False,
    db_connection_string: Connection = None,
) -> None:
    """Check every invariant on a whole run: no task lost, no slot counted twice, tokens in = tokens out.

    Read-only. Exit code 0: no violation; 1: violations, with their first examples in the table.
    """

    async def work(store: Store) -> AuditReport:
        processes = Processes.of_machine(connection_string(db_connection_string, run))
        collect_rarely()
        err = OutsideConsole(stderr=True)
        with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
            bar = progress.add_task("groups", total=None)
            options = AuditOptions(running, max_trained_count, newest_step, processes, partial(progress.advance, bar))
            position = None if since is None else AuditPosition.read(since)
            if position is None and err.is_terminal:
                progress.update(bar, total=await store.stored.count_opened())
            if since is None:
                return await audit(store, options)
            report, reached = await audit_since(store, position, options)
        if reached is None:
            warn(f"{since} is not written: the run has violations, and the next audit examines the whole run again")
        else:
            reached.write(since)
        return report

    report = with_store(db_connection_string, run, work, read_only=True)
    if as_json:
        typer.echo(json.dumps(report.to_json(), ensure_ascii=False))
    else:
        _print(report)
    raise typer.Exit(OK if report.ok else PROBLEM)


def _print(report: AuditReport) -> None:
    if not any(result.examined for result in report.results.values()):
        warn(f"run {report.run}: there was nothing to examine")
    rows = table("", "check", "examined #", "violations #", title=f"audit of run {escape(report.run)}")
    for check, result in report.results.items():
        mark = "[red]✗[/red]" if result.violations else "[dim]–[/dim]" if result.examined == 0 else "[green]✓[/green]"
        text = check.value + (f" [dim]({result.note})[/dim]" if result.note else "")
        rows.add_row(mark, text, f"{result.examined:,}", f"{result.violations:,}")
    out = console()
    out.print(rows)
    for check, result in report.results.items():
        for example in result.examples:
            out.print(f"[red]✗[/red] {check.value}: {escape(example)}", soft_wrap=True)
    for name, n in report.counts.items():
        out.print(f"{n:>14,}  {name}")
    for status, reasons in report.set_aside.items():
        for reason, n in sorted(reasons.items(), key=lambda item: -item[1]):
            out.print(f"{n:>14,}  {status}: {escape(reason)}")
