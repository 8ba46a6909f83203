"""The gateway as a process of its own: serves agents that run elsewhere, instead of playing episodes itself.

    harness ─claim─▶ a slot, leased ─▶ requests with the attempt's key ─▶ finish ─▶ settled by this or any other process
                        any number of these processes, behind one address or many: each continues every attempt

It looks at engines and admission, beats, renews and settles as a sampler does. It holds nothing that the database does not
have: it may be stopped or killed at any time, and agents go on at another one, or at this one when it is back.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Mapping
from typing import Any

from sampler.core.episode.resources import Resources
from sampler.core.episode.unforeseen import fail_claim
from sampler.core.service.idle import agents_wait
from sampler.core.service.kinds import SamplerKinds
from sampler.core.service.loops import every
from sampler.core.service.process import ServiceProcess, service_process
from sampler.core.service.service import SamplerService
from sampler.core.settings.core_config import CoreConfig
from sampler.core.settlement.current_rules import CurrentRules
from sampler.gateway.app import build_app
from sampler.gateway.attempt import Attempt
from sampler.gateway.attempts import ENDED_LOOK_S, Attempts, offer_of
from sampler.gateway.config import AgentPlayConfig
from sampler.gateway.external_sampler import ExternalSampler
from sampler.gateway.harness_api import harness_routes
from shared.configuration.secrets import token_of
from shared.documents import Claim, Record, Task, task_of
from shared.documents.agent_sessions import SessionEnd
from shared.documents.states import RecordStatus
from shared.episodes.feedback import FeedbackGiven, give_feedback
from shared.errors import ConfigError, StoreRefused, StoreUnavailable
from shared.http.connections import ConnectionLimits
from shared.http.listening import listening_socket, reachable
from shared.http.server import HttpServer
from shared.names import is_loopback_host
from shared.processes.waits import Wait
from shared.tasks.sampler_names import EXTERNAL
from shared.unforeseen import bug_of, is_of_the_process

log = logging.getLogger(__name__)

LEAST_RENEWALS = 4  # of a lease, while a request runs
LAST_RENEWAL_S = 5.0


async def run_gateway(config: AgentPlayConfig) -> None:
    """Run until SIGTERM or SIGINT. Raises ConfigError, and ExceptionGroup when a loop fails."""
    token = token_of(config.gateway.gateway_token, config.gateway.gateway_token_file, "gateway_token_file")
    if not is_loopback_host(config.gateway.gateway_host) and token is None:
        raise ConfigError(
            f"gateway_host is {config.gateway.gateway_host!r} without a token, so every client there could claim tasks; expected "
            "gateway_token_file or TANDEM_SAMPLER_GATEWAY_TOKEN, or 127.0.0.1"
        )
    with listening_socket(
        config.gateway.gateway_host, config.gateway.gateway_port, "gateway_host and gateway_port"
    ) as listener:
        async with service_process(config, GatewayService.kind) as process:
            rules = CurrentRules(process.store, config, process.worker)
            await GatewayService(process, await rules.starting_config(), listener, token, rules).run()


class GatewayService(SamplerService):
    kind = "gateway"
    _plays_elsewhere = True

    def __init__(
        self,
        process: ServiceProcess,
        config: CoreConfig,
        listener: socket.socket,
        token: str | None,
        rules: CurrentRules | None = None,
    ) -> None:
        settings = config.part(AgentPlayConfig)
        self._settings, self._gives_answers = settings.gateway, settings.agents.agent_answers
        super().__init__(process, config, SamplerKinds(ExternalSampler, {EXTERNAL: ExternalSampler}), rules)
        port = listener.getsockname()[1]
        self._listener = listener
        self._token = token
        url = self._settings.gateway_url or f"http://{reachable(self._settings.gateway_host)}:{port}"
        self._url = url.rstrip("/")
        # until it is sure that the agent was told
        self._lease_s = min(config.queue.lease_s, self._settings.attempt_idle_s)
        self._renew_s = min(config.queue.renew_s, self._settings.attempt_idle_s / LEAST_RENEWALS)
        self._attempts = Attempts(self._resources, self._settings.attempt_idle_s, self._resources_of)
        self._claiming = 0

    # ------------------------------------------------------------------ what the routes ask for

    @property
    def is_draining(self) -> bool:
        return self._stop.is_set()

    @property
    def doing(self) -> str:
        return "draining" if self._stop.is_set() else str(self._view.state.doing)

    async def claim_attempt(self) -> Mapping[str, Any] | None:
        """A task with the key of its attempt; None: no task can be claimed now."""
        if self._stop.is_set() or self._attempts.places + self._claiming >= self._config.queue.max_concurrent_episodes:
            return None
        self._claiming += 1
        try:
            claims = await self._claim()
            return await self._offer(claims[0]) if claims else None
        finally:
            self._claiming -= 1

    async def _offer(self, claim: Claim) -> Mapping[str, Any] | None:
        """None: the task met a bug, which is counted."""
        try:
            opening = await ExternalSampler(self._ruled.of(claim.task), claim).agent_messages()
            attempt, key = await self._attempts.begin(claim)
        except BaseException as exc:  # also SystemExit and panics of foreign code; the process's own is raised again
            if is_of_the_process(exc):  # cancelled too: no agent knows of this slot, so it must be free at once
                await self._give_back(claim)
                raise
            await fail_claim(self._resources, claim, bug_of(exc))
            self._counts["failed"] += 1
            return None
        return offer_of(attempt, key, self._url, opening, answers=self._gives_answers)

    async def _resources_of(self, task: Task) -> Resources | None:
        return self._ruled.of(task) if await self._rules.plays(task) else None

    async def attempt_of(self, key: str) -> Attempt | None:
        return await self._attempts.of_key(key)

    async def end_attempt(self, attempt: Attempt, end: SessionEnd) -> Record:
        record = await attempt.end(end)
        self._attempts.forget(attempt)
        self._settling.complete(attempt.claim.task.id)
        played, attempt.played = attempt.played, None
        if played is None:  # it had ended before
            return record
        if record.status in (RecordStatus.FAILED, RecordStatus.ABANDONED):
            self._counts["failed" if record.status is RecordStatus.FAILED else "given_back"] += 1
        elif record.score is not None:
            self._counts["episodes"] += 1
            self._rewards.append(record.score)
            self._shares.scored(played, record.score)
        return record

    async def give_feedback(self, record: str, score: float, **how: Any) -> FeedbackGiven:
        """Raises FeedbackRefused."""
        given = await give_feedback(self._store, record, score, **how)
        self._settling.complete(task_of(record))
        return given

    # ------------------------------------------------------------------ the loops

    @property
    def _playing(self) -> int:
        return self._attempts.places

    async def _work(self, group: asyncio.TaskGroup) -> None:
        app = build_app(self.attempt_of, harness_routes(self, self._token))
        server = HttpServer(
            app,
            ConnectionLimits(per_address=self._settings.gateway_max_connections_per_address),
            log_config=None,
            timeout_graceful_shutdown=max(1, round(self._config.queue.grace_s)),
        )
        serving = group.create_task(server.serve([self._listener]), name="gateway")
        looking = group.create_task(every(self._attempts.cancel_ended, ENDED_LOOK_S), name="ended")
        sys.stdout.write(f"{self._listener.getsockname()[1]}\n")
        sys.stdout.flush()
        log.info("gateway listens url=%s", self._url)
        await self._stop.wait()
        server.should_exit = True
        await serving
        await self._renew_at_the_end()
        looking.cancel()
        await self._attempts.close()

    async def _doing(self) -> str | Wait:
        attempts, busy = self._attempts.places, len(self._attempts.busy)
        return await agents_wait(self._view.state, self._view.outlook, attempts, busy, self._settings.attempt_idle_s)

    async def _renew(self) -> None:
        await self._attempts.renew()

    async def _renew_at_the_end(self) -> None:
        """Agents that were told of their claims just now have `attempt_idle_s` for their first request, at another process."""
        try:
            async with asyncio.timeout(LAST_RENEWAL_S):
                await self._attempts.renew()
        except (TimeoutError, StoreUnavailable, StoreRefused) as exc:
            log.warning("leases not renewed at the end: %s", exc or type(exc).__name__)
