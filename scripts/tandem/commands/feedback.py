"""`tandem feedback`: score episodes whose score comes later, and list those that wait for it."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from shared.documents.states import SlotStatus
from shared.episodes.feedback import FeedbackGiven, give_feedback
from shared.errors import ConfigError, FeedbackRefused
from shared.files.json_file import load_json
from shared.files.text_file import read_text_file
from shared.store import Store
from shared.store.feedback import WaitingEpisode
from tandem.commands.connect import AsJson, Connection, RunName, complain, console, print_records, table, with_store

FIELDS = ("record", "score", "turn", "comment", "source")
EXPECTED = '{"record": "main:train:0:t0:0:1", "score": 1.0}, and if wanted "turn", "comment", "source"'

EXAMPLES = """Examples:

`tandem feedback demo --list`  the episodes that wait, with their deadlines

`tandem feedback demo RECORD 1 --comment "solved it"`  the episode's score

`tandem feedback demo RECORD 0.25 --turn 0`  a part of it that turn 0 earned; the episode goes on waiting

`tandem feedback demo RECORD -- -1`  a score below 0

`tandem feedback demo --file feedback.jsonl`  many: one object on a line, with `record`, `score`, `turn`, `comment`, `source`
"""


def feedback(
    run: RunName,
    record: Annotated[str | None, typer.Argument(metavar="RECORD", help="A record's id.")] = None,
    score: Annotated[float | None, typer.Argument(metavar="SCORE", help="A finite number.")] = None,
    turn: Annotated[
        int | None, typer.Option("--turn", help="Number of the turn that earned the score; without it, the episode's.")
    ] = None,
    comment: Annotated[str | None, typer.Option("--comment", help="Kept with the record, for people.")] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Who gives the feedback; kept with the record.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="JSONL file with feedback for many episodes.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the episodes that wait for feedback.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Number of episodes to list.")] = 100,
    as_json: AsJson = False,
    db_connection_string: Connection = None,
) -> None:
    """Give an episode that waits for feedback its score. The same feedback may be given again; another score is refused.

    An episode waits if its sampler has `feedback_deadline_s`, or says that its score comes later. Its group is trained when
    none of its episodes waits any more.
    """
    given = {"record": record, "score": score, "turn": turn, "comment": comment, "source": source}
    one = record is not None and score is not None
    if [one, file is not None, listed].count(True) != 1 or (not one and any(v is not None for v in given.values())):
        complain("expected RUN RECORD SCORE, or RUN --file FILE, or RUN --list")
        raise typer.Exit(2)

    async def work(store: Store) -> bool:
        if listed:
            _print_waiting(store, await store.feedback.waiting(limit), await store.questions.server_time(), as_json)
            return True
        lines = [("", given)] if file is None else _lines(file)
        return await _give_all(store, lines, as_json)

    if not with_store(db_connection_string, run, work, read_only=listed):
        raise typer.Exit(1)


async def _give_all(store: Store, lines: list[tuple[str, dict[str, Any]]], as_json: bool) -> bool:
    """Give every line's feedback, also if others are refused. Returns whether none was. Raises FeedbackRefused for a lone one."""
    refused = 0
    for where, fields in lines:
        try:
            done = await give_feedback(store, fields.pop("record"), fields.pop("score"), **fields)
        except FeedbackRefused as exc:
            if not where:
                raise
            complain(f"{where}: {exc}")
            refused += 1
        else:
            typer.echo(_json(done) if as_json else _result_text(done))
    if refused:
        complain(f"{refused} of {len(lines)} were refused; the others are stored")
    return not refused


def _result_text(done: FeedbackGiven) -> str:
    what = f"{done.record}: score {done.score:g}" + ("" if done.turn is None else f" of turn {done.turn}")
    missing = sum(
        n for status, n in done.episodes.items() if status in (SlotStatus.WAITING, SlotStatus.OPEN, SlotStatus.LEASED)
    )
    group = (
        f"{missing} of {sum(done.episodes.values())} episodes of its group are left"
        if missing
        else "its group is complete"
    )
    return f"{what}{' (given before)' if done.again else ''}; {group}"


def _json(done: FeedbackGiven) -> str:
    values = {"record": done.record, "turn": done.turn, "score": done.score, "again": done.again}
    return json.dumps({**values, "episodes": done.episodes})


def _print_waiting(store: Store, waiting: list[WaitingEpisode], now: Any, as_json: bool) -> None:
    if as_json:
        for episode in waiting:
            fields = {"record": episode.record, "deadline": f"{episode.deadline.isoformat()}Z"}
            typer.echo(
                json.dumps({**fields, "score_without": episode.score_without, "turns_scored": len(episode.feedback)})
            )
        return
    if not waiting:
        console().print("no episode waits for feedback")
        return
    rows = table("record", "deadline (UTC)", "left", "without feedback", "turns scored #")
    for episode in waiting:
        remaining_s = (episode.deadline - now).total_seconds()
        without = "set aside" if episode.score_without is None else f"{episode.score_without:g}"
        cells = (f"{episode.deadline:%Y-%m-%d %H:%M:%S}", _span(remaining_s), without, str(len(episode.feedback)))
        rows.add_row(escape(episode.record), *cells)
    print_records(console(), rows)
    console().print(f"`tandem feedback {store.run} RECORD SCORE` scores one", markup=False)


def _span(seconds: float) -> str:
    if seconds <= 0:
        return "over"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Read and check the whole file before anything is given. Raises ConfigError with the first wrong line."""
    parsed = []
    for number, line in enumerate(read_text_file(path, f"JSONL: {EXPECTED}").split("\n"), start=1):
        if line.strip():
            parsed.append((f"{path}:{number}", _fields(f"{path}:{number}", line)))
    if not parsed:
        raise ConfigError(f"{path}: no feedback in it; expected JSONL: {EXPECTED}")
    return parsed


def _fields(where: str, line: str) -> dict[str, Any]:
    try:
        fields = load_json(line)
    except ValueError as exc:
        raise ConfigError(f"{where}: {exc}; expected {EXPECTED}") from exc
    if not isinstance(fields, dict) or not isinstance(fields.get("record"), str) or "score" not in fields:
        raise ConfigError(f"{where}: found {line.strip()[:100]}; expected {EXPECTED}")
    unknown = fields.keys() - set(FIELDS)
    if unknown:
        raise ConfigError(f'{where}: "{min(unknown)}" is unknown; expected {", ".join(FIELDS)}')
    return dict(fields)
