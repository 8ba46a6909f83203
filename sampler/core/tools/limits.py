"""Bounds of tool use, with per-tool values where configured."""

from dataclasses import dataclass

from shared.mcp.limits import TransportLimits


@dataclass(frozen=True, slots=True)
class ToolLimits(TransportLimits):
    """Seconds, tokens, characters, bytes, counts. `max_result_tokens=None`: results are bounded by characters only."""

    call_s: float = 120.0  # without progress; each progress report restarts it
    max_result_tokens: int | None = None
    max_result_chars: int = 64_000  # a cheap bound before tokens are counted
    max_raw_chars: int = 16_000
    max_retries: int = 2  # of an idempotent call whose transport failed
    retry_delay_s: float = 0.5  # doubles with every retry
    max_restarts: int = 0  # of a server whose own process an episode's calls ended; beyond, and at 0, that is a failure
