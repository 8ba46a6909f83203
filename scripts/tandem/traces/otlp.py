"""Spans as OTLP's protobuf messages, and their sending over HTTP: https://opentelemetry.io/docs/specs/otlp/#otlphttp

spans ─▶ requests of bounded size ─gzip─▶ POST URL ─▶ accepted │ in part (told) │ again later │ refused (raises)
"""

import base64
import contextlib
import gzip
import http.client
import itertools
import json
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from shared.errors import ConfigError, TandemError
from shared.http.retry_after import retry_after_s
from shared.outgoing import opener_for, through_proxy
from shared.outside_text import clipped, text_of
from shared.redaction import shown, without
from tandem.traces.spans import Span, Value

TRACES_PATH = "/v1/traces"
PROTOBUF = "application/x-protobuf"
MAX_REQUEST_BYTES = 3_000_000  # before gzip; receivers take 4 MB and more
MAX_SPANS = 512  # in a request
TRIES = 6
TRY_S = 15.0  # for one whole answer
LONGEST_WAIT_S = 30.0  # a receiver that asks for more gets nothing more now
WHOLE_S = 120.0  # of all tries of one request
SHORTEST_SECRET = 4  # a header's value below it, such as the number of an experiment, hides nothing
AGAIN = {408, 429, 502, 503, 504}
MAX_ANSWER_BYTES = 65_536
MAX_QUOTED = 300


class NotReceived(TandemError):
    """The receiver refused the spans, or did not answer."""


@dataclass(slots=True)
class Sent:
    """What a receiver said. `rejected`: spans that it did not take, `message` why (the last one's)."""

    spans: int = 0
    requests: int = 0
    rejected: int = 0
    message: str = ""


class Exporter:
    """Sends spans to one receiver. Raises ConfigError for a URL that is none, and where the extra `traces` is not installed."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = endpoint(url)
        self._headers = {**headers, "Content-Type": PROTOBUF, "Content-Encoding": "gzip"}
        self._secrets = _secrets(headers.values())
        self._opener = opener_for(self._url, _NoRedirect())
        self._proto = _load()
        self._stop = threading.Event()
        self.sent = Sent()
        self.left_out: dict[str, str] = {}  # {record: why}

    def stop(self) -> None:
        """Of another thread: wait no longer for a receiver that is away."""
        self._stop.set()

    def send(self, run: str, spans: Iterable[Span]) -> None:
        """Raises NotReceived, after retries; ValueError for a value that OTLP cannot hold."""
        self._send(run, (encoded(self._proto, span) for span in spans))

    def send_episodes(self, run: str, episodes: Iterable[tuple[str, Iterable[Span]]]) -> None:
        """{record: its spans}: as `send`, but a record with a value that OTLP cannot hold is left out, whole, and named."""
        self._send(run, itertools.chain.from_iterable(self._whole(name, spans) for name, spans in episodes))

    def _whole(self, record: str, spans: Iterable[Span]) -> list[Any]:
        try:
            return [encoded(self._proto, span) for span in spans]
        except (ValueError, OverflowError, TypeError) as exc:  # a time before 1970, a number of more than 64 bits
            self.left_out[record] = clipped(f"{exc}", MAX_QUOTED)
            return []

    def _send(self, run: str, messages: Iterable[Any]) -> None:
        for body, number in self._requests(run, messages):
            self._post(body, number)

    def _requests(self, run: str, messages: Iterable[Any]) -> Iterator[tuple[bytes, int]]:
        """(body, its spans)."""
        request, number, size = self._new(run), 0, 0
        for message in messages:
            length = message.ByteSize()
            if number and (number == MAX_SPANS or size + length > MAX_REQUEST_BYTES):
                yield request.SerializeToString(), number
                request, number, size = self._new(run), 0, 0
            request.resource_spans[0].scope_spans[0].spans.append(message)
            number, size = number + 1, size + length
        if number:
            yield request.SerializeToString(), number

    def _new(self, run: str) -> Any:
        request = self._proto.ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        for name, value in {"service.name": "tandem", "service.namespace": run, "tandem.run": run}.items():
            _set(resource.resource.attributes.add(), name, value)
        resource.scope_spans.add().scope.name = "tandem"
        return request

    def _post(self, body: bytes, spans: int) -> None:
        data = gzip.compress(body, 5)
        end = time.monotonic() + WHOLE_S
        for attempt in range(TRIES):
            answer = self._answer_in_time(data)
            if answer.status == HTTPStatus.OK:
                self._accepted(answer.body, answer.kind, spans)
                return
            message = without(self._secrets, answer.message) + through_proxy(self._url)
            if answer.status is not None and answer.status not in AGAIN:
                raise NotReceived(f"{shown(self._url)} refused {spans} spans: {message}")
            wait_s = min(2.0**attempt, LONGEST_WAIT_S) if answer.retry_after_s is None else answer.retry_after_s
            if wait_s > LONGEST_WAIT_S:
                raise NotReceived(
                    f"{shown(self._url)} takes no spans for {wait_s:.0f} s ({message}); export again then"
                )
            if attempt + 1 == TRIES or time.monotonic() + wait_s > end or self._stop.wait(wait_s):
                break  # a wait is the receiver's own, or twice the last one
        raise NotReceived(
            f"{shown(self._url)} did not take {spans} spans in {attempt + 1} attempts; the last: {message}"
        )

    def _answer_in_time(self, data: bytes) -> "_Answer":
        """One try, within `TRY_S`, however slowly the receiver sends."""
        answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        threading.Thread(target=lambda: answers.put(self._one_try(data)), name="otlp", daemon=True).start()
        try:
            return answers.get(timeout=TRY_S)
        except queue.Empty:
            return _Answer(None, message=f"no whole answer within {TRY_S:g} s")

    def _one_try(self, data: bytes) -> "_Answer":
        request = urllib.request.Request(self._url, data, self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=TRY_S) as answer:
                return _Answer(HTTPStatus.OK, answer.read(MAX_ANSWER_BYTES), answer.headers.get("Content-Type", ""))
        except urllib.error.HTTPError as exc:
            with exc:
                retry_after = exc.headers.get("Retry-After")
                body = self._quoted(exc)
            wait_s = None if retry_after is None else retry_after_s({"retry-after": retry_after})
            return _Answer(exc.code, message=f"HTTP {exc.code}: {body}", retry_after_s=wait_s)
        except (OSError, http.client.HTTPException, ValueError) as exc:
            return _Answer(None, message=f"{type(exc).__name__}: {exc}")

    def _quoted(self, exc: urllib.error.HTTPError) -> str:
        """Redacted before it is cut: half of a secret would not be found."""
        try:
            body = text_of(exc.read(MAX_ANSWER_BYTES))
        except (OSError, http.client.HTTPException):
            return "no body"
        return clipped(without(self._secrets, body), MAX_QUOTED)

    def _accepted(self, body: bytes, kind: str, spans: int) -> None:
        self.sent.spans += spans
        self.sent.requests += 1
        response = self._proto.ExportTraceServiceResponse()
        try:
            if kind.partition(";")[0].strip() == "application/json":
                self._proto.Parse(body or b"{}", response, ignore_unknown_fields=True)
            else:
                response.ParseFromString(body)
        except (self._proto.DecodeError, self._proto.ParseError):
            return  # status 200 is what counts
        partial = response.partial_success
        if partial.rejected_spans or partial.error_message:
            self.sent.rejected += partial.rejected_spans
            self.sent.message = clipped(without(self._secrets, partial.error_message), MAX_QUOTED)


def endpoint(url: str) -> str:
    """The URL to send to: a base without a path gets OTLP's own."""
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # raises beyond 65535
    except ValueError:
        parts = urllib.parse.SplitResult("", "", "", "", "")
    if "@" in parts.netloc:
        raise ConfigError(f"--otlp {shown(url)}: a user and a password belong into a header (Authorization=Basic …)")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--otlp {shown(url)}: expected http://HOST:PORT or https://…, with a path or without")
    path = TRACES_PATH if parts.path in ("", "/") else parts.path
    return urllib.parse.urlunsplit(parts._replace(path=path))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET, and headers with keys at another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class _Answer:
    """`status` None: there was none."""

    status: int | None
    body: bytes = b""
    kind: str = ""
    message: str = ""
    retry_after_s: float | None = None


def _secrets(values: Iterable[str]) -> list[str]:
    """The values of headers that a receiver may echo, in the forms in which it may: the longest first."""
    secrets: set[str] = set()
    for value in values:
        for part in (value, *value.split()):
            secrets |= {part, urllib.parse.quote(part), json.dumps(part)[1:-1]}
            with contextlib.suppress(ValueError):  # of `Basic`: user and password
                decoded = base64.b64decode(part, validate=True).decode("ascii")
                secrets |= {decoded, decoded.partition(":")[2]}
    schemes = {"bearer", "basic", "digest"}
    return sorted(
        (one for one in secrets if len(one) >= SHORTEST_SECRET and one.lower() not in schemes), key=len, reverse=True
    )


@dataclass(frozen=True)
class _Proto:
    """The classes of the extra `traces`."""

    Span: Any
    ExportTraceServiceRequest: Any
    ExportTraceServiceResponse: Any
    Parse: Any
    DecodeError: type[Exception]
    ParseError: type[Exception]


def _load() -> _Proto:
    try:
        from google.protobuf.json_format import Parse, ParseError
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
        from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
    except ImportError as exc:
        raise ConfigError("OTLP needs opentelemetry-proto: pip install 'tandem-rl[traces]'") from exc
    return _Proto(
        ProtoSpan,
        service.ExportTraceServiceRequest,
        service.ExportTraceServiceResponse,
        Parse,
        DecodeError,
        ParseError,
    )


def encoded(proto: _Proto, span: Span) -> Any:
    """The span as OTLP's message."""
    kind = proto.Span.SPAN_KIND_CLIENT if span.to_engine else proto.Span.SPAN_KIND_INTERNAL
    message = proto.Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_id,
        name=span.name,
        kind=kind,
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
    )
    for name, value in span.attributes.items():
        _set(message.attributes.add(), name, value)
    if span.error is not None:
        message.status.code = 2  # STATUS_CODE_ERROR
        message.status.message = clipped(span.error, 1_000).replace("\x00", "\ufffd")
    return message


def _set(pair: Any, name: str, value: Value) -> None:
    pair.key = name
    _put(pair.value, value)


def _put(place: Any, value: Value) -> None:
    if isinstance(value, bool):
        place.bool_value = value
    elif isinstance(value, int):
        place.int_value = value
    elif isinstance(value, float):
        place.double_value = value
    elif isinstance(value, str):
        place.string_value = value
    else:
        place.array_value.SetInParent()
        for one in value:
            _put(place.array_value.values.add(), one)
