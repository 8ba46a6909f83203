"""A headless Chromium by its DevTools protocol: opens pages, runs scripts in them, takes pictures. For pictures and tests.

async with browser() as page:
    await page.open("http://127.0.0.1:8800/")
    title = await page.run("document.title")
"""

import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from shared.processes.environment import plain_environment
from shared.processes.guarded import ChildCommand, end_process, start_process

NAMES = ("chromium", "chromium-browser", "google-chrome")
LIMIT_S = 120.0  # of a start, a page, a wait
MESSAGES = "messages.txt"
SHORT_FOLDER = "/tmp"  # Chromium makes a socket in TMPDIR: above 107 bytes of path it ends at its start
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # containers and root have none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--force-prefers-reduced-motion",
    "--remote-debugging-port=0",
)


def chromium_path() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class PageOfChromium:
    """One tab. `problems`: what the page wrote to the console as an error, and what it could not load."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self._loaded = asyncio.Event()
        self.problems: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            event = json.loads(message)
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
            elif event["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif event["method"] == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(event["params"])[:500])
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                self.problems.append(event["params"]["entry"]["text"])

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        async with asyncio.timeout(LIMIT_S):
            reply = await answer
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']}")
        value: dict[str, Any] = reply["result"]
        return value

    async def open(self, url: str) -> None:
        self._loaded.clear()
        await self.ask("Page.navigate", url=url)
        async with asyncio.timeout(LIMIT_S):
            await self._loaded.wait()

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        reply = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(json.dumps(reply["exceptionDetails"])[:1000])
        return reply["result"].get("value")

    async def until(self, script: str) -> Any:
        """Ask until the expression is true. A page that is being left answers later."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    value = await self.run(script)
                    if value:
                        return value
                except RuntimeError:
                    value = None  # asked again below
                await asyncio.sleep(0.1)  # a browser tells no one that an expression has become true

    async def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            await self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    async def press(self, key: str) -> None:
        """One key of the keyboard, by its name: `Enter`, `ArrowLeft`, `j`."""
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            await self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **typed)

    async def set_view(self, *, dark: bool = False, width: int = 1360, height: int = 900) -> None:
        """Colours and size of what follows."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[feature])
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def picture(self, highest: int = 2000) -> bytes:
        """The whole page as PNG, of at most `highest` pixels."""
        size = await self.run("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], highest), "scale": 1}
        reply = await self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(reply["data"])

    async def screenshot(self) -> bytes:
        """What the view shows, as PNG: half of the processor time of `picture`."""
        reply = await self.ask("Page.captureScreenshot", format="png", optimizeForSpeed=True)
        return base64.b64decode(reply["data"])


@asynccontextmanager
async def browser() -> AsyncIterator[PageOfChromium]:
    """One tab of a new browser with an empty profile. Raises RuntimeError where there is no Chromium."""
    program = chromium_path()
    if program is None:
        raise RuntimeError(
            f"no {' or '.join(NAMES)} on the PATH; expected Chromium, such as `apt-get install chromium`"
        )
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        arguments = (*FLAGS, f"--user-data-dir={folder}", "about:blank")
        messages = Path(folder, MESSAGES)
        words = ("/bin/sh", "-c", 'exec "$@" >"$0" 2>&1', str(messages), program, *arguments)
        command = ChildCommand(words, plain_environment() | {"TMPDIR": SHORT_FOLDER})
        started = await start_process(command)  # its guard ends it with this process, if that is killed too
        try:
            async with connect(await _address(Path(folder), started.process), max_size=None) as socket:
                page = PageOfChromium(socket)
                listening = asyncio.create_task(page.listen(), name="chromium")
                for domain in ("Page", "Runtime", "Log"):
                    await page.ask(f"{domain}.enable")
                await page.set_view()
                try:
                    yield page
                finally:
                    listening.cancel()
                    await asyncio.gather(listening, return_exceptions=True)
        finally:
            with suppress(ProcessLookupError):
                started.process.terminate()
            await end_process(started)


async def _address(folder: Path, started: asyncio.subprocess.Process) -> str:
    """Of the first tab's DevTools socket. Raises RuntimeError, with what Chromium wrote, if it ends."""
    port_file = folder / "DevToolsActivePort"
    async with asyncio.timeout(LIMIT_S), httpx.AsyncClient() as client:
        while True:
            if started.returncode is not None:
                wrote = (folder / MESSAGES).read_text(errors="replace")[-2000:]
                raise RuntimeError(
                    f"Chromium ended with status {started.returncode} before it listened; it wrote: {wrote}"
                )
            written = port_file.read_text().split() if port_file.exists() else []
            tabs = (await client.get(f"http://127.0.0.1:{written[0]}/json")).json() if written else []
            for tab in tabs:
                if tab["type"] == "page":
                    address: str = tab["webSocketDebuggerUrl"]
                    return address
            await asyncio.sleep(0.1)  # Chromium has no signal for an open port, nor for an open tab
