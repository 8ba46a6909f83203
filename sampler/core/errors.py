"""The tree of external errors. Each is an infrastructure failure, and never becomes a reward (docs/inside/whose_act.md).

TandemError
├── EngineError
│   ├── EngineUnavailable      no usable reply: transport, time-out, 5xx. Another service may answer
│   │   ├── NoEngineServes         none is up, or none serves the version that is asked for
│   │   ├── AdapterNotLoaded       the engine has the request's adapter no longer: it has another name by now
│   │   └── EngineContractBroken   the reply lacks what training needs. Another service may do better
│   └── EngineRefused          4xx: the request itself is wrong. Every service would refuse it
│       ├── KeyRefused         401 or 403: the API key is missing or wrong
│       ├── ContextTooLong     prompt plus new tokens exceed the model's context
│       └── CacheNotFlushed    new weights ARE live, but stale cache entries may be used: pause, then flush
├── ToolFailure                a tool server failed. A tool that *answers* with an error is not a failure
│   ├── ToolServerDied         the connection ended, or the server lost the session
│   ├── ToolTimeout            no answer in time
│   └── ToolServerUnavailable  the server is unavailable or busy: the slot is released, and no failure is counted
├── EnvironmentFailed      an environment, or the service that plays it, failed or lost the session
│   ├── EnvironmentWrong       a world returned what is no step: its code is wrong, so the slot fails at once
│   └── EnvironmentBusy        no service has room: the slot is released, and no failure is counted
├── AgentFailed                no model of a helper agent (browse, judge) gave a usable answer
├── AgentCrashed               the agent that plays an episode through the gateway crashed, and no reply of the model caused it
│   └── CommandNotStarted      the machine lacks what its command needs to start
├── VersionUnavailable         no engine serves the version that an actor is pinned to: the slot waits, no failure is counted
├── AttemptReleased            the harness of an agent stopped, through no fault of the episode
├── ScorerFailed               the scorer crashed, or returned something that is not a score
└── ConfigError
    ├── UnusableTask           the task's own data cannot be used, for any answer of the model
    └── ToolNotOffered         no server lists a tool that the settings or a task name; a server that starts later may
"""

from shared.documents.agent_use import AgentUse
from shared.errors import ConfigError, TandemError


class EngineError(TandemError):
    """An inference engine gave no usable reply. The message names the service."""


class EngineUnavailable(EngineError):
    """Transport error, time-out or 5xx. The same request may succeed elsewhere or later."""


class NoEngineServes(EngineUnavailable):
    """No engine is up, or none serves the version that is asked for."""


class EngineContractBroken(EngineUnavailable):
    """A reply that contradicts itself, or lacks what training needs (log-probs, integer weight versions)."""


class AdapterNotLoaded(EngineUnavailable):
    """The engine has not, or no longer, the adapter that the request names: a newer one replaced it, or the engine restarted."""


class EngineRefused(EngineError):
    """The engine rejects the request itself (4xx); retrying cannot help."""


class KeyRefused(EngineRefused):
    """The engine requires an API key, or rejects the one it received."""


class ContextTooLong(EngineRefused):
    """Prompt plus new tokens exceed the model's context length. `context`: that length, if the engine names it."""

    def __init__(self, message: str, context: int | None = None) -> None:
        super().__init__(message)
        self.context = context


class CacheNotFlushed(EngineRefused):
    """A weight update was applied although the answer was 400: the weights are live, the KV cache is stale."""


class ToolFailure(TandemError):
    """A tool server failed. The episode ends, and its slot is retried."""


class ToolServerDied(ToolFailure):
    """The connection to a tool server ended, could not be opened, or the server no longer knows the session.

    `ended`: how the session's own process ended, if that is the reason; `in_call`: during the call, not before it.
    """

    ended = ""
    in_call = True


class ToolTimeout(ToolFailure):
    """A tool server did not answer in time."""


class ToolServerUnavailable(ToolFailure):
    """No session or call is possible now, for reasons outside the episode: its slot waits without counting a failure."""


class EnvironmentFailed(TandemError):
    """An environment failed, its service did not answer, or lost the session. The episode ends, and its slot is retried."""


class EnvironmentWrong(EnvironmentFailed):
    """A world answered what is no step. The episode ends, and its slot is not retried: the same would happen again."""


class EnvironmentBusy(EnvironmentFailed):
    """No service has room for one more session: its slot waits without counting a failure. `retry_after_s`: as it asked."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class AgentFailed(TandemError):
    """Every model of a helper agent failed, or is paused after failures. `use` lists the outcome of each."""

    def __init__(self, message: str, use: AgentUse) -> None:
        super().__init__(message)
        self.use = use


class AgentCrashed(TandemError):
    """The agent that plays the episode (`sampler/gateway`) raised, or its command failed. Whether the model's reply caused it is
    judged by `sampler/gateway/crash.py`. `outside`: what else may have ended it; empty: nothing."""

    def __init__(self, message: str, outside: str = "") -> None:
        super().__init__(message)
        self.outside = outside


class CommandNotStarted(AgentCrashed):
    """An agent's command cannot be started now: the machine lacks memory, room on its disk, processes or open files."""


class ScorerFailed(TandemError):
    """A scorer crashed, timed out, or returned something that is not a finite number."""


class ToolNotOffered(ConfigError):
    """No server lists a tool that the settings or a task name. The list may grow: a manager's servers start one by one."""


class UnusableTask(ConfigError):
    """The task's own data cannot be used, whatever the model answers. No retry can help."""


class MessagesRepeat(ConfigError):
    """A list of new messages repeats what the thread was sent, or the model's own replies."""


class VersionUnavailable(TandemError):
    """No engine serves the version that an actor is pinned to. The slot waits for one, and no failure is counted."""


class AttemptReleased(TandemError):
    """The harness of an agent that runs elsewhere gave its attempt back: the slot is free again, and no failure is counted."""
