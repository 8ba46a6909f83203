"""How pages are served: each is a function from `PageRequest` to plain values, a template, and the same values as JSON.

    RUN_PAGES = (Page("/steps", "steps.html", steps_page), ...)      at /runs/RUN/steps and /runs/RUN/steps.json

A function returns a frozen dataclass, a pydantic model or a dict; its template reads it as `view`. Every query of a page ends
within `PAGE_LIMIT_S`: the server is told so with each command (`maxTimeMS`).
"""

import asyncio
import hashlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any

import pymongo
from pydantic import BaseModel
from pymongo.errors import PyMongoError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shared.documents.states import RunState
from shared.errors import ConfigError, MalformedDocument, TandemError
from shared.redaction import redacted
from shared.store.views.query import Query, note_what_is_read
from tandem.viewer.page_request import TWIN, BadQuestion, NotThere, PageRequest
from tandem.viewer.rendering import render
from tandem.viewer.unreadable import UnreadableDocument, of_malformed, unreadable

log = logging.getLogger(__name__)

PAGE_LIMIT_S = 10.0
POLL_LIST_S = 15  # how often an open page of a run that goes on asks again; `Page.live_s`
POLL_SUM_S = 60  # a page that sums up many documents

View = Callable[[PageRequest], Awaitable[Any]]
Opener = Callable[[str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Page:
    """`path` behind /runs/RUN; `template`: a file of `templates/`; `view`: returns plain values, or a Response of its own
    (a download). `section`: which entry of the navigation is marked. `live_s`: how often the open page of a run that has not
    ended asks for itself again; 0: never."""

    path: str
    template: str
    view: View
    section: str = ""
    live_s: int = 0


def run_routes(pages: Iterable[Page], request_of: Callable[[Request], Awaitable[PageRequest]]) -> list[Route]:
    """HTML and JSON routes of a run's pages, in the order in which they are tried."""
    listed = []
    for page in pages:
        for twin in (TWIN, ""):
            listed.append(Route(f"/runs/{{run}}{page.path}{twin}", _endpoint(page, request_of, bool(twin))))
    return listed


def _endpoint(
    page: Page, request_of: Callable[[Request], Awaitable[PageRequest]], as_json: bool
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        async def made() -> Response:
            page_request = await request_of(request)
            return await _page(page, page_request, as_json)

        return await answered(request, made, as_json)

    return endpoint


async def _page(page: Page, page_request: PageRequest, as_json: bool) -> Response:
    note_what_is_read()
    try:
        view = await page.view(page_request)
        if isinstance(view, Response):
            return view
        if as_json:
            return JSONResponse(plain(view))
        live_s = 0 if page_request.run.state is RunState.ENDED else page.live_s
        values: dict[str, Any] = {
            "view": view,
            "request": page_request.request,
            "section": page.section,
            "live_s": live_s,
        }
        return unless_known(page_request.request, render(page.template, run=page_request.run, **values))
    except (TandemError, PyMongoError, TimeoutError):
        raise
    except Exception as exc:  # of a document that no model forbids: the reader is told which, the terminal where
        log.exception("page %s", redacted(page_request.request.url.path[:300]))
        raise await unreadable(page_request, exc) from exc


def unless_known(request: Request, response: Response) -> Response:
    """The response with its tag (ETag), or status 304 where the browser has the same page already."""
    tag = f'W/"{hashlib.sha256(response.body).hexdigest()[:20]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    response.headers["etag"] = tag
    return response


async def answered(request: Request, made: Callable[[], Awaitable[Response]], as_json: bool) -> Response:
    """What `made` returns within the time limit, or a page that says what is wrong."""
    try:
        async with limited():
            return await made()
    except NotThere as exc:
        return failure(request, 404, str(exc), as_json)
    except (BadQuestion, ConfigError) as exc:
        return failure(request, 400, str(exc), as_json)
    except MalformedDocument as exc:
        malformed = of_malformed(exc)
        return failure(request, 500, redacted(str(malformed)), as_json, malformed.query)
    except UnreadableDocument as exc:
        return failure(request, 500, redacted(str(exc)), as_json, exc.query)
    except TimeoutError:
        return failure(
            request, 503, f"the database took longer than {PAGE_LIMIT_S:g} s; try a narrower filter", as_json
        )
    except (TandemError, PyMongoError) as exc:
        message = str(exc)
        if isinstance(exc, PyMongoError) and exc.timeout:
            message = f"the database took longer than {PAGE_LIMIT_S:g} s; try a narrower filter"
        return failure(request, 503, redacted(message), as_json)
    except Exception as exc:  # of a page of several runs, or of reading the run itself: never a bare 500
        log.exception("page %s", redacted(request.url.path[:300]))
        return failure(request, 500, redacted(f"{type(exc).__name__}: {str(exc)[:300]}"), as_json)


@asynccontextmanager
async def limited() -> AsyncIterator[None]:
    """Every command inside has a `maxTimeMS` of what is left of the page's time."""
    with pymongo.timeout(PAGE_LIMIT_S):
        async with asyncio.timeout(PAGE_LIMIT_S + 1):
            yield


def failure(request: Request, status: int, message: str, as_json: bool, query: Query | None = None) -> Response:
    """`query`: finds the document that is meant."""
    if as_json:
        return JSONResponse({"error": message, **({"query": query.to_json()} if query else {})}, status)
    values: dict[str, Any] = {"message": message, "query_of_it": query, "request": request, "section": ""}
    return render("failure.html", status=status, **values)


def plain(value: Any) -> Any:
    """Values that JSON has: times in ISO 8601 (UTC), and null for a number that is not finite."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump(mode="python"))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return value
