"""Pages that are about several runs: the list of a server's, and the comparison of two."""

from collections.abc import Awaitable, Callable
from typing import Any

from pymongo import AsyncMongoClient
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shared.store.server_runs import MOST_RUNS, run_names
from shared.store.views.runs import list_runs
from tandem.viewer.compare_runs import RunComparison, comparison
from tandem.viewer.page_request import TWIN, PageRequest
from tandem.viewer.pages import POLL_LIST_S, answered, plain, unless_known
from tandem.viewer.rendering import render

RequestOf = Callable[[Request, str], Awaitable[PageRequest]]  # for the run of this name


def server_routes(client: AsyncMongoClient[dict[str, Any]], request_of: RequestOf) -> list[Route]:
    async def runs(request: Request) -> Response:
        as_json = request.url.path.endswith(TWIN)

        async def made() -> Response:
            listed = await list_runs(client)
            if as_json:
                return JSONResponse(plain(listed))
            page = render("runs.html", view=listed, request=request, section="runs", live_s=POLL_LIST_S)
            return unless_known(request, page)

        return await answered(request, made, as_json)

    async def compare(request: Request) -> Response:
        as_json = request.url.path.endswith(TWIN)

        async def made() -> Response:
            names, given = (
                (await run_names(client))[:MOST_RUNS],
                [request.query_params.get(name, "") for name in ("a", "b")],
            )
            view = RunComparison(names, given[0], given[1], [], [])
            if all(given):
                view = await comparison(names, await request_of(request, given[0]), await request_of(request, given[1]))
            return (
                JSONResponse(plain(view)) if as_json else render("compare.html", view=view, request=request, section="")
            )

        return await answered(request, made, as_json)

    pages = {"/": runs, "/runs.json": runs, "/compare": compare, "/compare.json": compare}
    return [Route(path, page) for path, page in pages.items()]
