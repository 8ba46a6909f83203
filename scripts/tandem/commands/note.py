"""`tandem note`: write a note on an episode, for people; list and remove notes."""

import uuid
from typing import Annotated

import typer

from shared.documents.notes import MAX_NAME_CHARS, MAX_NOTE_CHARS, Note
from shared.errors import ConfigError
from shared.store import Store
from tandem.commands.connect import Connection, RunName, complain, console, print_text, with_store

EXAMPLES = """Examples:

`tandem note demo`  the newest notes of the run

`tandem note demo main:eval:0:arith-00017:3:1 "the tool is called twice" --author Ada`

`tandem note demo --remove 5f0c…`  the id stands in the list
"""


def note(
    run: RunName,
    record: Annotated[str | None, typer.Argument(metavar="[RECORD]", help="A record's id.")] = None,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="The note. Without it, notes are listed.")
    ] = None,
    author: Annotated[str, typer.Option("--author", help="Who writes it; for people, not checked.")] = "",
    remove: Annotated[str | None, typer.Option("--remove", metavar="ID", help="Remove this note.")] = None,
    db_connection_string: Connection = None,
) -> None:
    """Write a note on an episode. The viewer and `tandem show` print it; training never reads it."""
    if remove is not None and record is not None:
        complain("expected RUN --remove ID, or RUN RECORD TEXT, or RUN RECORD, or RUN")
        raise typer.Exit(2)
    for name, value, most in (("TEXT", text or "", MAX_NOTE_CHARS), ("--author", author, MAX_NAME_CHARS)):
        if len(value) > most or "\0" in value:
            complain(f"{name} has {len(value):,} characters; expected {most:,} at most, without the character 0")
            raise typer.Exit(2)

    async def work(store: Store) -> None:
        if remove is not None:
            if not await store.notes.remove(remove):
                raise ConfigError(f"run {store.run} has no note {remove[:80]!r}; `tandem note {store.run}` lists them")
            console().print("removed")
        elif record is not None and text is not None and text.strip():
            if await store.records.get(record) is None:
                raise ConfigError(
                    f"run {store.run} has no record {record[:200]!r}; `tandem show {store.run}` lists some"
                )
            await store.notes.add(Note(id=uuid.uuid4().hex, record=record, text=text.strip(), author=author))
            console().print("written")
        else:
            print_notes(await (store.notes.newest() if record is None else store.notes.of(record)))

    with_store(db_connection_string, run, work, read_only=True)  # the rights of `viewer` are enough


def print_notes(notes: list[Note]) -> None:
    out = console()
    if not notes:
        out.print("no note")
    for one in notes:
        print_text(out, "note", f"{note_title(one)}, on {one.record} (id {one.id})")
        print_text(out, "", one.text)


def note_title(one: Note) -> str:
    when = "" if one.created_at is None else f", {one.created_at:%Y-%m-%d %H:%M:%S}"
    return (one.author or "without a name") + when
