"""JSON-RPC messages from a tool server: bounded before they fill the memory, repaired before they are parsed.

    bytes, in pieces ─▶ MessageLines ─▶ lines of at most `max_bytes` ─▶ repaired ─▶ the SDK's parser

Promises
  * Time is linear in the number of bytes, and at most `max_bytes` of one message are held in memory.
  * A message that is too long becomes an error response to its request (`TOO_LONG`), which advises the model to ask for less.
  * Half of a surrogate pair (`\\ud83d`, as Node writes a text that was cut inside an emoji) and bytes that are not UTF-8
    become U+FFFD.
"""

import json
import logging
import re

from pydantic import ValidationError

log = logging.getLogger(__name__)

# Outside JSON-RPC's reserved codes: an answer of the tool, not a transport error.
TOO_LONG = 413
_KEPT_BYTES = 1024  # kept of both ends of an over-long message: one of them contains its id

_ID = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,64}")'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID_AT_HEAD = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*[,}]")
_ID_AT_TAIL = re.compile(_ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*$")
_METHOD = re.compile(rb"\s*\{\s*(?:(?:" + _VERSION + rb"|" + _ID + rb')\s*,\s*)*"method"\s*:')

# Half of a surrogate pair, or an escaped backslash that looks like one: `_ESCAPE` distinguishes them.
_MAYBE_HALF = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


class MessageTooLong(ValueError):
    """A message above the bound that names no request: the session cannot continue."""


class MessageLines:
    """Splits a byte stream into lines. A line above `max_bytes` is replaced by an error for its request, and skipped."""

    def __init__(self, max_bytes: int, prefix: bytes = b"", request: int | str | None = None) -> None:
        """`prefix`: of lines with messages (`data: ` in an event stream). `request`: the request they answer, if known."""
        self._max_bytes = max_bytes
        self._prefix = prefix
        self._request = request
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._head = b""
        self._tail = b""
        self._answered = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines completed by `piece`, without line breaks. Raises MessageTooLong."""
        lines: list[bytes] = []
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._add(end, lines)
            self._end(lines)
        self._add(rest, lines)
        return lines

    def _add(self, part: bytes, lines: list[bytes]) -> None:
        was_too_long = self._num_bytes > self._max_bytes
        self._num_bytes += len(part)
        if self._num_bytes <= self._max_bytes:
            self._parts.append(part)
            return
        if not was_too_long:
            self._parts.append(part)
            self._head = b"".join(self._parts)[:_KEPT_BYTES].removeprefix(self._prefix.strip())
            self._parts = []
            if is_call(self._head):  # a notification or request of the server, which nothing waits for
                log.warning("tool server sent a message above %d bytes: dropped", self._max_bytes)
                self._answered = True
            elif (request := self._answered_by(self._head, b"")) is not None:  # answer at once: the rest may never end
                self._answer(request, lines)
                self._answered = True
        self._tail = (self._tail + part)[-_KEPT_BYTES:]

    def _end(self, lines: list[bytes]) -> None:
        if self._num_bytes <= self._max_bytes:
            lines.append(b"".join(self._parts))
        elif not self._answered:
            request = self._answered_by(self._head, self._tail)
            if request is None:
                raise MessageTooLong(f"a message of {self._num_bytes} bytes; expected at most {self._max_bytes}")
            self._answer(request, lines)
        self._parts, self._num_bytes, self._head, self._tail, self._answered = [], 0, b"", b"", False

    def _answered_by(self, head: bytes, tail: bytes) -> int | str | None:
        request = answered_request(head, tail)
        return self._request if request is None and not is_call(head) else request

    def _answer(self, request: int | str, lines: list[bytes]) -> None:
        lines.append(self._prefix + too_long_answer(request, self._max_bytes))
        if self._prefix:  # an empty line ends an event
            lines.append(b"")


def mended(message: bytes) -> bytes:
    """The message with U+FFFD in place of invalid characters."""
    if not message.isascii():
        try:
            message.decode()
        except UnicodeDecodeError:
            message = message.decode("utf-8", "replace").encode()
    if _MAYBE_HALF.search(message) is not None:
        message = _ESCAPE.sub(lambda escape: b"\\ufffd" if escape[1] else escape[0], message)
    return message


def fault_of(exc: ValidationError) -> str:
    """The first error, on one line, and the number of others."""
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    others = f" (and {exc.error_count() - 1} more)" if exc.error_count() > 1 else ""
    return f"{place}: {first['msg']}{others}"


def answered_request(head: bytes, tail: bytes) -> int | str | None:
    """The id of the request that a message answers, read from the two ends of its text; None if not found."""
    if is_call(head):
        return None
    id_match = _ID_AT_HEAD.match(head) or (_ID_AT_TAIL.search(tail) if head.lstrip()[:1] == b"{" else None)
    if id_match is None:
        return None
    try:
        request: int | str = json.loads(id_match[1])
    except ValueError:
        return None
    return request


def is_call(head: bytes) -> bool:
    """True for a request or a notification from the server."""
    return _METHOD.match(head) is not None


def too_long_answer(request: int | str, max_bytes: int) -> bytes:
    """An error response to `request` that replaces an over-long message."""
    why = f"the tool's answer has more than {max_bytes} bytes and was not read; ask for less"
    return json.dumps({"jsonrpc": "2.0", "id": request, "error": {"code": TOO_LONG, "message": why}}).encode()
