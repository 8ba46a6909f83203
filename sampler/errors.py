"""What can go wrong outside the sampler, as one tree. Every member is an infrastructure failure: never a reward.

TandemError
├── EngineError
│   ├── EngineUnavailable      no usable answer: transport, time-out, 5xx. Another service may answer
│   │   └── EngineContractBroken   it answered, but not with what training needs. Another service may do better
│   └── EngineRefused          4xx: the request itself is wrong. No service will take it
│       ├── KeyRefused         401 or 403: the engine demands a key, or another one
│       ├── ContextTooLong     prompt plus new tokens exceed the model's context
│       └── CacheNotFlushed    new weights ARE live, but stale cache entries may be used: pause, then flush
├── ToolFailure                a tool server failed. A tool that *answers* with an error is no failure
│   ├── ToolServerDied         the connection ended, or the server lost the session
│   ├── ToolTimeout            it did not answer in time
│   └── ToolServerUnavailable  it is away or busy: the slot is given back, and no attempt is lost
├── AgentFailed                no model of a helper agent (browse, judge) gave a usable answer
├── ScorerFailed               the scorer crashed, or gave something that is no score
└── ConfigError
    └── ToolNotOffered         the settings or a task name a tool that no server has in its list: it may come with one
"""

from shared.documents.agent_use import AgentUse
from shared.errors import ConfigError, TandemError


class EngineError(TandemError):
    """An inference engine gave no usable answer. The message names the service."""


class EngineUnavailable(EngineError):
    """Transport error, time-out or 5xx. The same request may succeed elsewhere or later."""


class EngineContractBroken(EngineUnavailable):
    """An answer that contradicts itself, or lacks what training needs (log-probs, integer weight versions)."""


class EngineRefused(EngineError):
    """The engine calls the request itself wrong (4xx); sending it again cannot help."""


class KeyRefused(EngineRefused):
    """The engine demands a key, or another one than it was shown."""


class ContextTooLong(EngineRefused):
    """Prompt plus new tokens exceed the model's context length."""


class CacheNotFlushed(EngineRefused):
    """A weight update was applied although the answer was 400: the weights are live, the KV cache is stale."""


class ToolFailure(TandemError):
    """A tool server failed; the episode cannot go on, and its slot is retried."""


class ToolServerDied(ToolFailure):
    """The connection to a tool server ended, could not be opened, or the server no longer knows the session."""


class ToolTimeout(ToolFailure):
    """A tool server did not answer in time."""


class ToolServerUnavailable(ToolFailure):
    """No session, or no call, with a tool server now, for reasons that lie outside the episode: its slot waits without blame."""


class AgentFailed(TandemError):
    """Every model of a helper agent failed or is left alone after failures. `use` says what each of them did."""

    def __init__(self, message: str, use: AgentUse) -> None:
        super().__init__(message)
        self.use = use


class ScorerFailed(TandemError):
    """A scorer crashed, ran out of time, or returned something that is no finite number."""


class ToolNotOffered(ConfigError):
    """A tool that the settings or a task name is in no server's list, which may change: a manager's servers start one by one."""
