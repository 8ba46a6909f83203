"""The MCP server of the recipe: a headless Chromium whose screenshots the model sees.

python -m assets.recipes.web.server FILE     writes its URL to FILE, and ends with the process that started it

It serves the site too, on another free port of the loopback address. An episode is a session of MCP, and keeps the address of its
page; one tab shows the pages of all episodes, one action at a time.
"""

import asyncio
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from assets.recipes.web.site import Site
from assets.vision.drawing import EDGE
from assets.vision.serving import end_with_parent, episode_of, listener, serve
from scripts.chromium import PageOfChromium, browser

MOST_EPISODES = 10_000  # whose pages are remembered


class Browser:
    """The tab, and the page of each episode."""

    def __init__(self, tab: PageOfChromium, site: str) -> None:
        self._tab = tab
        self._site = site
        self._shown = ""
        self._pages: OrderedDict[str, str] = OrderedDict()
        self._lock = asyncio.Lock()

    async def open(self, episode: str, page: int) -> list[Any]:
        async with self._lock:
            await self._show(f"/page/{page}")
            return await self._screenshot(episode)

    async def click(self, episode: str, x: int, y: int) -> list[Any]:
        """A link's page, or the same one."""
        if episode not in self._pages:
            return ["no page is open"]
        if not (0 <= x < EDGE and 0 <= y < EDGE):
            return [f"the page has {EDGE} x {EDGE} pixels"]
        async with self._lock:
            await self._show(self._pages[episode])
            await self._tab.click(x, y)
            await self._tab.run("showing")  # of the link's page, if a link is there
            self._shown = await self._tab.run("location.pathname")
            return await self._screenshot(episode)

    async def _show(self, page: str) -> None:
        if not self._shown:
            await self._tab.open(f"{self._site}{page}")
        elif self._shown != page:
            await self._tab.run(f"show('{page}')")
        self._shown = page

    async def _screenshot(self, episode: str) -> list[Any]:
        self._pages[episode] = self._shown
        self._pages.move_to_end(episode)
        if len(self._pages) > MOST_EPISODES:
            self._pages.popitem(last=False)
        return [Image(data=await self._tab.screenshot(), format="png"), await self._tab.run("document.title")]


def tools_of(browser_of_all: Browser) -> MCPServer:
    server = MCPServer("web", log_level="WARNING")

    @server.tool(name="open", structured_output=False)
    async def open_page(page: int, ctx: Context) -> list[Any]:
        """Opens a page, by its number."""
        return await browser_of_all.open(episode_of(ctx), page)

    @server.tool(structured_output=False)
    async def click(x: int, y: int, ctx: Context) -> list[Any]:
        """Clicks at a place of the page, in pixels from its left upper corner."""
        return await browser_of_all.click(episode_of(ctx), x, y)

    return server


async def page(request: Request) -> Response:
    path = str(request.path_params.get("path", "")).split("/")
    return HTMLResponse(Site(int(request.path_params["number"])).html([part for part in path if part]))


SITE = Starlette(routes=[Route("/page/{number:int}", page), Route("/page/{number:int}/{path:path}", page)])


async def main() -> None:
    socket_of_site, url = listener()
    async with browser() as tab:
        await tab.set_view(width=EDGE, height=EDGE)
        await serve(tools_of(Browser(tab, url)), Path(sys.argv[1]), [(SITE, socket_of_site)])


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(main())
