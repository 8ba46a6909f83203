"""The viewer's application: its pages, and the runs of one server.

To add a page of a run:
1. a query in `shared/store/views/NAME.py`: bounded by a limit, and by an index;
2. a function `async def NAME_page(asked: PageRequest) -> <frozen dataclass>` in `scripts/tandem/viewer/NAME.py` (`asked.store`,
   `asked.run`, `asked.id("gid")`, `asked.text("source")`, `asked.number("page", 0, most=…)`; raise NotThere or BadQuestion);
3. a template `templates/NAME.html`, which begins with {% extends "base.html" %} and reads the function's result as `view`;
4. a line in `RUN_PAGES`. The JSON at the same URL + `.json` follows by itself.

Of use in templates: {{ id | in_url }} for ids in links (`/runs/{{ run.name | in_url }}/groups/{{ gid | in_url }}`),
{{ time | when }}, {{ x | number }}, {{ s | duration }}, {{ query(source=…, page=…) }}, and the macros of `parts.html`. The policy
of content allows no `style="…"` and no inline script: colours are classes (`style.css`), scripts are files of `static/`.
"""

from typing import Any

from pymongo import AsyncMongoClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from shared.errors import DataError
from shared.names import check_run_name
from shared.store import Store
from tandem.viewer.dashboard import POLL_LIVE_S, dashboard_page, state_page
from tandem.viewer.episode_pages import EPISODE_PAGES
from tandem.viewer.guard import Guard
from tandem.viewer.notes import note_routes
from tandem.viewer.page_request import TWIN, NotThere, PageRequest
from tandem.viewer.pages import POLL_LIST_S, Page, failure, run_routes
from tandem.viewer.polling import curves_answer
from tandem.viewer.rendering import FOLDER
from tandem.viewer.server_pages import server_routes
from tandem.viewer.sub_path import BelowSubPath, root_of
from tandem.viewer.timeline import timeline_page

# In the order in which they are tried: a path that ends in an id stands behind those that begin with it.
RUN_PAGES = (
    Page("", "dashboard.html", dashboard_page, "dashboard", POLL_LIVE_S),
    Page("/state", "state.html", state_page, "dashboard", POLL_LIVE_S),
    Page("/curves", "", curves_answer),
    Page("/timeline", "timeline.html", timeline_page, "timeline", POLL_LIST_S),
    *EPISODE_PAGES,
)


Client = AsyncMongoClient[dict[str, Any]]


def make_app(client: Client, token: str | None = None, root_path: str = "") -> ASGIApp:
    """`root_path`: below which a proxy serves the viewer; its header `X-Forwarded-Prefix` says so too.

    `client`: of the server; the rights of `viewer` do. `token`: what every request needs; None: only this machine may ask."""

    async def page_request_of(request: Request, run: str | None = None) -> PageRequest:
        name = check_run_name(run or request.path_params["run"])
        store = Store(client, name)
        try:
            return PageRequest(request, store, await store.runs.read())
        except DataError as exc:
            raise NotThere(str(exc)) from exc

    async def unknown(request: Request, exc: Exception) -> Response:
        as_json = request.url.path.endswith(TWIN)
        return failure(request, 404, f"there is no page {request.url.path[:200]!r}", as_json)

    async def icon(request: Request) -> Response:
        return RedirectResponse(f"{root_of(request)}/static/icon.svg", 301)

    routes = [
        *server_routes(client, page_request_of),
        Route("/favicon.ico", icon),
        *note_routes(page_request_of),
        *run_routes(RUN_PAGES, page_request_of),
        Mount("/static", StaticFiles(directory=FOLDER / "static")),
    ]
    return BelowSubPath(Guard(Starlette(routes=routes, exception_handlers={404: unknown}), token), root_path)
