"""The bounds of tool use, and which of them a tool has of its own."""

from dataclasses import dataclass

SHOWN_CHARS = 300  # of what a server sent instead of a message


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Seconds, tokens, characters, bytes, counts. `max_result_tokens=None`: results are bounded by characters alone."""

    open_s: float = 30.0
    call_s: float = 120.0  # of silence: a call that reports progress is alive
    max_call_s: float = 1800.0  # of one call, also one that reports progress
    close_s: float = 8.0  # a stdio server gets 2 s to leave, then SIGTERM, then SIGKILL
    max_result_tokens: int | None = None
    max_result_chars: int = 64_000  # a cheap guard before tokens are counted
    max_raw_chars: int = 16_000
    max_message_bytes: int = 16 * 1024 * 1024  # of one message of a server, decompressed: more is not read
    max_parallel_calls: int = 8
    max_retries: int = 2  # of an idempotent call whose transport failed
    retry_delay_s: float = 0.5  # doubled with every retry
