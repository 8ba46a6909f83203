"""What a person writes in the viewer: notes on episodes, and saved views. All else of the viewer only reads.

A form is sent by POST, and answered by a redirection to the page that shows it. The guard refuses forms of other sites
(`scripts/tandem/viewer/guard.py`).
"""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from pymongo.errors import OperationFailure
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from shared.documents.notes import MAX_NAME_CHARS, MAX_NOTE_CHARS, MAX_PATH_CHARS, Note, SavedView
from shared.errors import StoreRefused
from shared.processes.mongod import UNAUTHORIZED
from tandem.viewer.page_request import BadQuestion, NotThere, PageRequest, in_url
from tandem.viewer.pages import answered, failure
from tandem.viewer.sub_path import root_of

MAX_FORM_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class NotesView:
    notes: list[Note]
    views: Sequence[SavedView]


async def notes_page(request: PageRequest) -> NotesView:
    return NotesView(await request.store.notes.newest(), await request.store.notes.views())


def note_routes(request_of: Callable[[Request], Awaitable[PageRequest]]) -> list[Route]:
    forms = {"/notes": add_note, "/notes/remove": remove_note, "/views": save_view, "/views/remove": remove_view}
    return [
        Route(f"/runs/{{run}}{path}", _endpoint(write, request_of), methods=["POST"]) for path, write in forms.items()
    ]


Form = dict[str, str]


def _endpoint(
    write: Callable[[PageRequest, Form], Awaitable[str]], request_of: Callable[[Request], Awaitable[PageRequest]]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        async def made() -> Response:
            page_request = await request_of(request)
            try:
                path = await write(page_request, await _form(request))
            except (OperationFailure, StoreRefused) as exc:
                cause = exc if isinstance(exc, OperationFailure) else exc.__cause__
                if not isinstance(cause, OperationFailure) or cause.code != UNAUTHORIZED:
                    raise
                message = (
                    "the viewer's database user may not write notes and saved views; expected the rights of `viewer` "
                    "of this version (`tandem database prepare` brings them)"
                )
                return failure(request, 403, message, False)
            return RedirectResponse(f"{root_of(page_request.request)}/runs/{in_url(page_request.run.name)}{path}", 303)

        return await answered(request, made, False)

    return endpoint


async def _form(request: Request) -> Form:
    """Raises BadQuestion."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            raise BadQuestion(f"the form has more than {MAX_FORM_BYTES:,} bytes")
    try:
        return dict(parse_qsl(body.decode("utf-8"), strict_parsing=True, errors="strict", max_num_fields=20))
    except ValueError as exc:
        raise BadQuestion("the form cannot be read; expected application/x-www-form-urlencoded in UTF-8") from exc


def _field(form: Form, name: str, most: int, *, needed: bool = True) -> str:
    """Raises BadQuestion."""
    text = form.get(name, "").strip()
    if needed and not text:
        raise BadQuestion(f"{name} is empty")
    if len(text) > most or "\0" in text:
        raise BadQuestion(f"{name} has {len(text):,} characters; expected {most:,} at most, without the character 0")
    return text


async def add_note(request: PageRequest, form: Form) -> str:
    record = _field(form, "record", MAX_PATH_CHARS)
    note = Note(
        id=_field(form, "id", MAX_NAME_CHARS, needed=False) or uuid.uuid4().hex,
        record=record,
        text=_field(form, "text", MAX_NOTE_CHARS),
        author=_field(form, "author", MAX_NAME_CHARS, needed=False),
    )
    if await request.store.records.get(record) is None:
        raise NotThere(f"run {request.run.name} has no episode {record[:200]!r}")
    await request.store.notes.add(note)
    return f"/rollouts/{in_url(record)}#notes"


async def remove_note(request: PageRequest, form: Form) -> str:
    record = _field(form, "record", MAX_PATH_CHARS)
    await request.store.notes.remove(_field(form, "id", MAX_NAME_CHARS))
    return f"/rollouts/{in_url(record)}#notes"


async def save_view(request: PageRequest, form: Form) -> str:
    """`path`: behind /runs/RUN, with parameters."""
    path = _field(form, "path", MAX_PATH_CHARS, needed=False)
    if path and (path[0] not in "/?" or path.startswith("//") or "\\" in path or not path.isprintable()):
        raise BadQuestion(f"path is {path[:80]!r}; expected a page of the run, such as /search?source=gsm8k")
    await request.store.notes.save_view(SavedView(id=_field(form, "name", MAX_NAME_CHARS), path=path))
    return "/notes#views"


async def remove_view(request: PageRequest, form: Form) -> str:
    await request.store.notes.remove_view(_field(form, "name", MAX_NAME_CHARS))
    return "/notes#views"
