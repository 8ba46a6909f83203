"""Bounds of a transport to a tool server."""

from dataclasses import dataclass

SHOWN_CHARS = 300  # quoted from invalid server output


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Seconds, bytes and counts of one connection."""

    open_s: float = 30.0
    max_call_s: float = 1800.0  # one call in total, even with progress
    close_s: float = 8.0  # a stdio server gets 2 s to exit, then SIGTERM, then SIGKILL
    max_message_bytes: int = 16 * 1024 * 1024  # one decompressed message of a server; longer ones are not read
    max_parallel_calls: int = 8
