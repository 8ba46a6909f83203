"""Plays an episode by running an agent that knows nothing of Tandem: a function or a command that talks to the gateway.

    gateway opens ─▶ the agent runs, with a base URL and the attempt's key ─▶ gateway closes ─▶ score
                        └── every request of it is a turn of this episode, in the thread that it continues

An agent that crashes after a limit of the episode (turns, context) ended by that limit. Otherwise `crash` judges whose act it
was: the model's, whose reply the agent failed on, is scored; any other is an infrastructure failure and never a reward.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sampler.core.errors import AgentCrashed
from sampler.core.rendering.reply_message import Message
from sampler.core.settings.core_config import CoreConfig
from sampler.core.time_limits import queued
from sampler.gateway.agent_episode import AgentEpisode
from sampler.gateway.agent_sandbox import PERHAPS, AgentSandbox
from sampler.gateway.attempts import visible_payload
from sampler.gateway.child import run_command
from sampler.gateway.config import AgentPlayConfig, AgentSettings, CommandSettings
from sampler.gateway.crash import MachineWatch, outside_cause
from sampler.gateway.preload import PreloadedInterpreter
from sampler.gateway.server import GatewayServer, OpenAttempt
from sampler.gateway.session import AttemptSession
from shared.documents import TaskPayload
from shared.documents.states import Termination
from shared.errors import ConfigError, OwnCodeFailed, TandemError
from shared.processes.waits import Wait
from shared.user_code.frames import definition_of, name_of, told
from shared.user_code.loading import load_function


@dataclass(frozen=True, slots=True)
class AgentTask:
    """What an agent's function is given. `base_url`: for OpenAI's clients; `url`: without `/v1`, for Anthropic's.

    `model`: the policy that owns the task. `messages`: the system prompt, with the answer's form, and the query, with images in
    data: URLs.
    """

    base_url: str
    url: str
    api_key: str
    model: str
    query: str
    messages: list[Message]
    payload: TaskPayload


Agent = Callable[[AgentTask], Awaitable[str | float | None]]


class AgentSampler(AgentEpisode):
    """`agent` or `agent_command` of the settings plays the episodes."""

    @classmethod
    def lacks(cls, config: CoreConfig) -> str | None:
        settings = config.part(AgentPlayConfig).agents
        is_set = settings.agent is not None or settings.command is not None
        return None if is_set else "one of agent (a function) and agent_command (a command)"

    @property
    def settings(self) -> AgentSettings:
        return self.config.part(AgentPlayConfig).agents

    async def run(self) -> Termination:
        settings, missing = self.settings, self.lacks(self.config)
        if missing is not None:
            raise ConfigError(f"AgentSampler needs {missing}")
        from sampler.gateway.app import build_app  # Starlette, which samplers without an agent do not need

        session = AttemptSession(
            self, settings.agent_parameters, settings.agent_head_lines, settings.agent_output_format
        )
        host = self.config.part(AgentPlayConfig).gateway.gateway_host
        self.begin(session)
        try:
            async with self.resources.opened.of(GatewayServer).open(session, build_app, host) as attempt:
                self.returned = await self._played(attempt)
        except (OwnCodeFailed, AgentCrashed) as exc:
            if session.failure is not None:
                raise session.failure from exc
            if isinstance(exc, OwnCodeFailed):
                raise
            if session.limit is None:
                return self.crashed(exc)
        finally:
            self.count()
        return self.termination()

    async def _played(self, attempt: OpenAttempt) -> object:
        task = AgentTask(
            base_url=f"{attempt.url}/v1",
            url=attempt.url,
            api_key=attempt.key,
            model=self.task.policy,
            query=self.task.payload.query,
            messages=await self.agent_messages(),
            payload=self.task.payload,
        )
        if self.settings.command is not None:
            await self._commanded(self.settings.command, attempt, task.messages)
            return None
        assert self.settings.agent is not None, "checked by run"
        return await _called(load_function("agent", self.settings.agent), task)

    async def _commanded(self, command: CommandSettings, attempt: OpenAttempt, messages: Sequence[Message]) -> None:
        isolated = None if command.isolation is None else self.resources.opened.of(AgentSandbox)
        if isolated is not None:
            async with queued(Wait("the agents' sandbox", "it is opened once for all", "it is open")):
                await isolated.open()
        watch = MachineWatch()
        ended = await run_command(
            command.agent_command,
            attempt,
            model=self.task.policy,
            messages=messages,
            payload=visible_payload(self.task.payload, answers=self.settings.agent_answers),
            user=self.config.tools.tool_user,
            sandbox=self.config.tools.tool_sandbox,
            kept=None if command.agent_folder is None else command.agent_folder / self.claim.record_id,
            started=partial(self._preloaded, command.agent_preload) if command.agent_preload else None,
            isolated=isolated,
            uncounted=self._clock.stopped,
        )
        if ended.exceeded:
            raise AgentCrashed(
                f"the agent's command was ended by a limit of agent_limits, {ended.exceeded}; "
                f"status {ended.status}: {ended.output}",
                ended.exceeded if ended.exceeded.startswith(PERHAPS) else "",
            )
        if ended.status != 0:
            outside = watch.outside(ended.status, ended.output)
            raise AgentCrashed(f"the agent's command ended with status {ended.status}: {ended.output}", outside)

    async def _preloaded(self, modules: Sequence[str], command: list[str]) -> list[str]:
        wait = Wait("agent_preload", "a process loads the modules once for all", "they are loaded")
        async with queued(wait):
            return await self.resources.opened.of(PreloadedInterpreter).command(
                command, modules, self.config.tools.tool_user
            )


async def _called(agent: Callable[..., Any], task: AgentTask) -> object:
    """What the agent returned. Raises AgentCrashed for any exception of the agent, and OwnCodeFailed for what is no agent."""
    try:
        answer = agent(task)
        if not inspect.isawaitable(answer):
            raise OwnCodeFailed(f"{name_of(agent)} is not an async function: write async def{definition_of(agent)}")
        result = await answer
    except TandemError:
        raise
    except (Exception, SystemExit) as exc:  # the agent's code, or that of its framework
        raise AgentCrashed(f"{name_of(agent)}: {told(exc, agent)}", outside_cause(exc)) from exc
    return result
