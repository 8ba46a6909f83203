"""`tandem audit`: check a run's database against the invariants."""

import json
from typing import Annotated

import typer
from rich.markup import escape

from tandem.audit.run import AuditReport, audit
from tandem.commands.connect import OK, PROBLEM, AsJson, Connection, RunName, console, table, warn, with_store

EXAMPLES = """Examples:

`tandem audit demo`  after a run has ended

`tandem audit demo --running`  while it runs: slots may still be open

`tandem audit demo --json | jq .counts`  for programs
"""


def audit_run(
    run: RunName,
    running: Annotated[
        bool, typer.Option("--running", help="The run is active: open and leased slots are no violation.")
    ] = False,
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
    report = with_store(
        db_connection_string,
        run,
        lambda store: audit(store, running=running, max_trained_count=max_trained_count, newest_step=newest_step),
        read_only=True,
    )
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
