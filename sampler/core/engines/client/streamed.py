"""Reads a streamed reply of `/generate`: events that each hold everything so far, the last of which is the whole reply.

Only the newest event that arrived is read, so that the cost of a long reply does not grow with the number of its events; and of
that only the ids, not their log-probs. A fast engine is asked for one event in `PERIOD_S`: each wakes the process, and then its
client. What is heard on the way is for people to read; what is trained comes from the last event, which is not heard, and is
checked like a reply that was not streamed.
"""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from sampler.core.engines.client.fields import MAX_INT32, shown
from sampler.core.engines.client.refusals import refusal
from sampler.core.engines.client.transport import MAX_BODY_BYTES
from sampler.core.errors import EngineContractBroken
from shared.outside_text import text_of

OnIds = Callable[[Sequence[int]], None]
PERIOD_S = 0.2  # between two events of a fast engine
_LEAST_S = 0.1  # between two events that are read: below the period, since events come early and late
PAUSES = 20  # between two events that are read, as a multiple of what that took: at most 5 % of a core for each reply
MAX_EVENTS = 128  # of one reply: each repeats all tokens before it, and wakes the process
_FEW_EVENTS, _MOST_TOKENS = 32, 32  # so many events are enough, as long as no more tokens lie between two
_DATA, _END, _DONE = b"data: ", b"\n\n", b"[DONE]"
_IDS = re.compile(rb'"output_ids": ?(\[[0-9, ]*\])')  # in no text of an event, where quotes are escaped
_FINISHED = re.compile(rb'"finish_reason": ?[{"]')  # likewise; null in all events but the last


def interval_of(max_new_tokens: int | None, tokens_per_s: float = 0.0) -> int:
    """Tokens from one event to the next: 1 for replies of up to 32 tokens, 16 for 500, 32 for 1,024 to 4,096, 256 for 32,768.
    More where more come in `PERIOD_S`."""
    most = max_new_tokens or 0
    read = int(tokens_per_s * PERIOD_S)
    return max(1, -(-most // MAX_EVENTS), min(_MOST_TOKENS, -(-most // _FEW_EVENTS)), read)


class StreamedAnswer:
    """`on_ids` hears the ids that have been sampled so far, of this request alone."""

    def __init__(self, on_ids: OnIds) -> None:
        self._on_ids = on_ids
        self._rest = bytearray()
        self._newest = b""
        self._hear_at = 0.0

    def feed(self, part: bytes) -> None:
        """Raises ValueError for an event without an end."""
        before = len(self._rest)
        self._rest += part
        end = self._rest.rfind(_END, max(0, before - len(_END) + 1))
        if end < 0:
            if len(self._rest) > MAX_BODY_BYTES:
                raise ValueError(f"an event without an end within {MAX_BODY_BYTES} bytes")
            return
        whole = bytes(self._rest[:end])
        del self._rest[: end + len(_END)]
        while whole:
            whole, _, event = whole.rpartition(_END)
            if event.startswith(_DATA) and (body := event[len(_DATA) :]) != _DONE:
                self._newest = body
                self._hear()
                return

    def whole(self, where: str, response: httpx.Response) -> dict[str, Any]:
        """The last event. Raises EngineContractBroken, and the engine's refusal if that is what the stream says."""
        if not self._newest:  # a transport that gives whole bodies
            self.feed(response.content + _END)
        answer = _parsed(self._newest or response.content)
        if answer is None:
            raise EngineContractBroken(f"{where}: its stream ends with {shown(text_of(self._newest))}; expected JSON")
        error = answer.get("error")
        if isinstance(error, dict):
            status = error.get("code")
            raise refusal(where, httpx.Response(status if isinstance(status, int) else 500, content=self._newest))
        _require_whole(where, answer)
        return answer

    def _hear(self) -> None:
        began = time.monotonic()
        if began < self._hear_at or _FINISHED.search(self._newest):
            return
        ids = _ids_of(self._newest)
        if ids is not None and all(token <= MAX_INT32 for token in ids):
            self._on_ids(ids)
        now = time.monotonic()
        self._hear_at = now + max(_LEAST_S, PAUSES * (now - began))


def _ids_of(event: bytes) -> list[int] | None:
    """The first list of ids, which is ten times smaller than the event."""
    match = _IDS.search(event)
    try:
        ids: list[int] | None = json.loads(match[1]) if match else None
    except ValueError:
        return None
    return ids


def _parsed(body: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _require_whole(where: str, answer: Mapping[str, Any]) -> None:
    """An engine that sends only what is new in each event would lose all tokens but the last."""
    meta, ids = answer.get("meta_info"), answer.get("output_ids")
    counted = meta.get("completion_tokens") if isinstance(meta, Mapping) else None
    if isinstance(counted, int) and isinstance(ids, list) and counted != len(ids):
        raise EngineContractBroken(
            f"{where}: its last event has {len(ids)} of {counted} tokens; start the engine without "
            "--incremental-streaming-output"
        )
