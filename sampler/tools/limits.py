"""Bounds of tool use, with per-tool values where configured."""

from dataclasses import dataclass

SHOWN_CHARS = 300  # quoted from invalid server output


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Seconds, tokens, characters, bytes, counts. `max_result_tokens=None`: results are bounded by characters only."""

    open_s: float = 30.0
    call_s: float = 120.0  # without progress; each progress report restarts it
    max_call_s: float = 1800.0  # one call in total, even with progress
    close_s: float = 8.0  # a stdio server gets 2 s to exit, then SIGTERM, then SIGKILL
    max_result_tokens: int | None = None
    max_result_chars: int = 64_000  # a cheap bound before tokens are counted
    max_raw_chars: int = 16_000
    max_message_bytes: int = 16 * 1024 * 1024  # one decompressed message of a server; longer ones are not read
    max_parallel_calls: int = 8
    max_retries: int = 2  # of an idempotent call whose transport failed
    retry_delay_s: float = 0.5  # doubles with every retry
    max_restarts: int = 0  # of a server whose own process an episode's calls ended; beyond, and at 0, that is a failure
