"""Tries gateways in containers, with agents on this machine: `python -m scripts.deploy_check.agents --help`.

    build ▸ MongoDB, engine, keeper, gateways behind one address ▸ agents play ▸ a gateway is killed ▸ one is stopped
          ▸ all are started again ▸ every task is played ▸ audit

Each agent streams its replies through OpenAI's SDK, which repeats what a dead gateway did not answer. Held-out tasks are played,
so that no trainer is needed.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import httpx
from openai import APIStatusError, AsyncOpenAI
from pydantic import Field

from scripts.deploy_check.compose import Compose, DeployCheckFailed, PrintedFigures, health_of, name_of, say
from scripts.deploy_check.settings import ContainersConfig, Count
from shared.errors import TandemError
from shared.names import RunName
from shared.processes.interrupt import run_command

PROFILES = ("cpu-engine", "keeper", "gateway")
SERVICES = ("mongo", "cpu-engine", "keeper", "gateway", "gateways")
TURNS = 3
CLAIM_WAIT_S = 5.0
REQUEST_TIMEOUT_S = 120.0
SDK_RETRIES = 10


class AgentsCheckConfig(ContainersConfig):
    """Brings up gateways in containers, plays tasks from this machine while gateways are killed, audits the run."""

    section: ClassVar[str] = "agents_check"
    program: ClassVar[str] = "python -m scripts.deploy_check.agents"

    project: str = Field("tandem-agents", description="Name of the Compose project, before its containers and volumes.")
    run: RunName = Field("agents", description="Name of the run.")
    gateways: Count = Field(2, description="Gateways behind the one address.")
    num_generations: Count = Field(
        4,
        description="Attempts of each of the 200 tasks; a fast machine has few ones left otherwise when a gateway is ended.",
    )
    at_once: Count = Field(16, description="Agents that play at the same time.")
    port: int = Field(9800, gt=0, lt=65536, description="Port of the gateways on this machine.")

    @property
    def url(self) -> str:
        """The address of the gateways for agents on this machine; localhost is a name in their certificate."""
        return f"https://localhost:{self.port}" if self.tls else f"http://127.0.0.1:{self.port}"


class HostAgents:
    """They play until no task is left. `open`: records of the attempts that are played now; `ended`: what /finish said."""

    def __init__(self, config: AgentsCheckConfig, token: str) -> None:
        self.open: set[str] = set()
        self.ended: dict[str, str] = {}
        self.lost = Counter[str]()  # requests that the agents' HTTP client had to repeat, or an SDK gave up
        self._config, self._token = config, token
        self._nothing_left = asyncio.Event()

    async def play(self) -> None:
        async with (
            httpx.AsyncClient(base_url=self._config.url, timeout=REQUEST_TIMEOUT_S) as http,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self._config.at_once):
                group.create_task(self._play_on(http))

    def all_are_played(self) -> None:
        self._nothing_left.set()

    async def _play_on(self, http: httpx.AsyncClient) -> None:
        while not self._nothing_left.is_set():
            claimed = await self._post(http, "/claim", {"wait_s": CLAIM_WAIT_S}, self._token)
            if claimed.status_code == 200:
                await self._play_one(http, claimed.json())
            else:  # at once, where no gateway is up or has room
                await asyncio.sleep(0.5)

    async def _play_one(self, http: httpx.AsyncClient, offer: dict[str, Any]) -> None:
        self.open.add(offer["record"])
        end: dict[str, Any] = {}
        try:
            async with AsyncOpenAI(
                base_url=offer["base_url"], api_key=offer["api_key"], max_retries=SDK_RETRIES
            ) as client:
                messages = list(offer["messages"])
                for _ in range(TURNS):
                    messages.append({"role": "assistant", "content": await self._streamed(client, offer, messages)})
                    messages.append({"role": "user", "content": "Go on."})
        except APIStatusError as exc:
            end = {"error": str(exc)}
        done = await self._post(http, "/finish", end, offer["api_key"])
        self.open.discard(offer["record"])
        self.ended[offer["record"]] = done.json()["status"] if done.status_code == 200 else str(done.status_code)

    async def _streamed(self, client: AsyncOpenAI, offer: dict[str, Any], messages: list[Any]) -> str:
        while True:
            try:
                stream = await client.chat.completions.create(model=offer["model"], messages=messages, stream=True)
                return "".join([part.choices[0].delta.content or "" async for part in stream if part.choices])
            except APIStatusError as exc:
                if exc.status_code not in (502, 503, 504):
                    raise
                self.lost["status"] += 1
            except Exception as exc:  # noqa: BLE001 - what an SDK raises of a stream that was cut depends on its transport
                self.lost[type(exc).__name__] += 1
            await asyncio.sleep(0.5)

    async def _post(self, http: httpx.AsyncClient, path: str, body: dict[str, Any], key: str) -> httpx.Response:
        while True:
            try:
                answer = await http.post(path, json=body, headers={"authorization": f"Bearer {key}"})
                if answer.status_code not in (502, 504) and (path == "/claim" or answer.status_code != 503):
                    return answer
                self.lost[f"{path} {answer.status_code}"] += 1
            except httpx.TransportError as exc:
                self.lost[f"{path} {type(exc).__name__}"] += 1
            await asyncio.sleep(0.5)


class AgentsTrial:
    """The steps in order."""

    def __init__(self, config: AgentsCheckConfig) -> None:
        self.config = config
        variables = {"RUN_NAME": config.run, "GATEWAY_URL": config.url, "GATEWAY_PORT": str(config.port)}
        self.compose = Compose(config.project, variables, PROFILES, tls=config.tls)
        self.figures = PrintedFigures()

    def run(self) -> None:
        if self.config.build:
            self.compose.run("build", "prepare", "cpu-engine", quiet=False)
        try:
            self._bring_up()
            asyncio.run(self._play())
            self._audit()
        finally:
            if not self.config.keep:
                self.compose.run("down", "--volumes", "--timeout", "20", check=False)

    def _bring_up(self) -> None:
        started = time.monotonic()
        self._up()
        imported = ("tasks", "import", self.config.run, "/tasks/eval.jsonl", "--split", "eval", "--at_version", "0")
        say(
            self.compose.tandem(*imported, "--num_generations", str(self.config.num_generations))
            .strip()
            .splitlines()[-1]
        )
        self.figures.add("healthy_s", time.monotonic() - started)

    def _up(self) -> None:
        self.compose.run("up", "-d", "--scale", f"gateway={self.config.gateways}", *SERVICES)

        def are_healthy() -> bool:
            states = [health_of(one) for name in SERVICES for one in self.compose.containers(name)]
            return len(states) == len(SERVICES) - 1 + self.config.gateways and set(states) == {"healthy"}

        self.compose.until("all to be healthy", are_healthy, self.config.step_timeout_s)

    async def _play(self) -> None:
        token = ("run", "--rm", "-T", "--no-deps", "--entrypoint", "cat", "gateway", "/run/gateway/token")
        if self.config.tls:
            self._trust_authority()
        agents = HostAgents(self.config, self.compose.run(*token).strip())
        playing = asyncio.create_task(agents.play())
        started = time.monotonic()
        try:
            await self._more(agents, self.config.at_once)
            for how in ("kill", "stop"):
                await self._end_one(agents, how)
                await asyncio.to_thread(self._up)
            await self._until("every task to be played", lambda: self._are_played())
        finally:
            agents.all_are_played()
            await asyncio.wait([playing], timeout=self.config.step_timeout_s)
        await playing
        self.figures.add("playing_s", time.monotonic() - started)
        self.figures.add("attempts", dict(Counter(agents.ended.values())))
        self.figures.add("asked_again_by_agents", dict(agents.lost))
        unscored = {record: end for record, end in agents.ended.items() if end != "scored"}
        if unscored:
            raise DeployCheckFailed(
                f"attempts without a score: {json.dumps(unscored)[:2000]}; expected all to be scored"
            )

    def _trust_authority(self) -> None:
        """Agents on this machine find the authority's certificate as docs/run/deploy.md says: by SSL_CERT_FILE."""
        file = Path(tempfile.mkdtemp(prefix="tandem-tls-")) / "ca.pem"
        certificate = ("run", "--rm", "-T", "--no-deps", "--entrypoint", "cat", "tandem", "/tls/public/ca.pem")
        file.write_text(self.compose.run(*certificate), encoding="utf-8")
        os.environ["SSL_CERT_FILE"] = str(file)

    async def _end_one(self, agents: HostAgents, how: str) -> None:
        """The attempts that are open then end at another gateway, or the same slot is played again."""
        container = self.compose.containers("gateway")[0]
        was_open = set(agents.open)
        if not was_open:
            raise DeployCheckFailed(f"no attempt was open when a gateway was to {how}; expected more tasks")
        await asyncio.to_thread(self.compose.docker, how, name_of(container))
        await self._until(f"attempts to end after {how}", lambda: not was_open & agents.open)
        ends = Counter(agents.ended[record] for record in was_open)
        self.figures.add(f"open_at_{how}", dict(ends))
        await self._more(agents, self.config.at_once)

    async def _more(self, agents: HostAgents, count: int) -> None:
        before = len(agents.ended)
        await self._until("more attempts", lambda: len(agents.ended) >= before + count or self._are_played())

    async def _until(self, what: str, is_so: Any) -> None:
        await asyncio.to_thread(self.compose.until, what, is_so, self.config.step_timeout_s)

    def _are_played(self) -> bool:
        tasks = self.compose.status(self.config.run)["tasks"]["eval"]
        return not any(count for status, count in tasks.items() if status not in ("settled", "abandoned", "skipped"))

    def _audit(self) -> None:
        status = self.compose.status(self.config.run)
        self.figures.add("records", {name: count for name, count in status["records"].items() if count})
        self.figures.add("workers", [f"{one['kind']} {one['doing']}" for one in status["workers"]])
        audit = self.compose.audit(self.config.run)
        self.figures.add("audit_ok", audit["ok"])
        if not audit["ok"]:
            raise DeployCheckFailed(f"tandem audit found violations: {json.dumps(audit)[:2000]}")


def main() -> None:
    try:
        AgentsTrial(AgentsCheckConfig.load_or_exit()).run()
    except TandemError as exc:
        sys.exit(f"{type(exc).__name__}: {exc}")


if __name__ == "__main__":
    run_command(main)
