"""A real service of environments in a child process, and what tests ask of it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.sampler.boxes import PATIENCE_S

WORLDS = Path(__file__).parent / "worlds.py"


class Service:
    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}/api"
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False)

    def start(self, name: str, index: int = 0, **custom: Any) -> tuple[dict[str, str], dict[str, Any]]:
        """The session's header, and the first step."""
        answer = self.http.post("/start_sample", json={"name": name, "index": index, "custom_task": custom or None})
        assert answer.status_code == 200, answer.text
        return {"session_id": answer.headers["session_id"]}, answer.json()

    def say(self, session: dict[str, str], text: str) -> httpx.Response:
        return self.http.post("/interact", json={"messages": [{"role": "assistant", "content": text}]}, headers=session)

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(self.url.removesuffix("/api") + "/health").json()
        return found

    async def workers(self) -> list[int]:
        return pids_of(self.health())

    async def until(self, **wanted: Any) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while not wanted.items() <= (found := self.health()).items():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
        return found

    def end(self) -> int:
        """SIGTERM, and its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@contextmanager
def service(
    *flags: str, worlds: str = "Guess,Changing,Called,Silent,Forgetful", **environment: str
) -> Iterator[Service]:
    kinds = ",".join(f"{name.lower()}={WORLDS}:{name}" for name in worlds.split(","))
    served = [] if "--environments" in flags else ["--environments", kinds]
    command = [sys.executable, "-m", "sampler.environments", *served, "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.strip().isdigit():
        process.stdout.close()
        raise AssertionError(f"it ended with status {process.wait()}")
    found = Service(process, int(line))
    try:
        yield found
    finally:
        found.http.close()
        process.kill()
        process.wait()
        process.stdout.close()


def pids_of(found: dict[str, Any]) -> list[int]:
    return [int(pid) for pid in found["workers"]]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it ends before or while it is read
        return False
