"""Spans as OTLP's protobuf messages, and their sending over HTTP: https://opentelemetry.io/docs/specs/otlp/#otlphttp

spans ─▶ requests of bounded size ─gzip─▶ POST URL ─▶ accepted │ in part (told) │ again later │ refused (raises)
"""

import gzip
import http.client
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import ConfigError, TandemError
from shared.outside_text import clipped, text_of
from shared.redaction import shown
from shared.traces.spans import Span, Value

TRACES_PATH = "/v1/traces"
PROTOBUF = "application/x-protobuf"
MAX_REQUEST_BYTES = 3_000_000  # before gzip; receivers take 4 MB and more
MAX_SPANS = 512  # in a request
TRIES = 6
TIME_LIMIT_S = 30.0
LONGEST_WAIT_S = 30.0
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
        self._opener = urllib.request.build_opener(_NoRedirect())
        self._proto = _load()
        self._stop = threading.Event()
        self.sent = Sent()

    def stop(self) -> None:
        """Of another thread: wait no longer for a receiver that is away."""
        self._stop.set()

    def send(self, run: str, spans: Iterable[Span]) -> None:
        """Raises NotReceived, after retries."""
        for body, number in self._requests(run, spans):
            self._post(body, number)

    def _requests(self, run: str, spans: Iterable[Span]) -> Iterator[tuple[bytes, int]]:
        """(body, its spans)."""
        request, number, size = self._new(run), 0, 0
        for span in spans:
            message = encoded(self._proto, span)
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
        for attempt in range(TRIES):
            wait_s = min(2.0**attempt, LONGEST_WAIT_S)
            request = urllib.request.Request(self._url, data, self._headers, method="POST")
            try:
                with self._opener.open(request, timeout=TIME_LIMIT_S) as answer:
                    self._accepted(answer.read(MAX_ANSWER_BYTES), answer.headers.get("Content-Type", ""), spans)
                    return
            except urllib.error.HTTPError as exc:
                with exc:
                    said = f"HTTP {exc.code}: {clipped(text_of(exc.read(MAX_ANSWER_BYTES)), MAX_QUOTED)}"
                    wait_s = _retry_after(exc.headers.get("Retry-After"), wait_s)
                if exc.code not in AGAIN:
                    raise NotReceived(f"{shown(self._url)} refused {spans} spans: {said}") from exc
            except (OSError, http.client.HTTPException) as exc:
                said = f"{type(exc).__name__}: {exc}"
            if attempt + 1 == TRIES or self._stop.wait(wait_s):  # the receiver's own wait, or twice the last one
                break
        raise NotReceived(f"{shown(self._url)} did not take {spans} spans in {attempt + 1} attempts; the last: {said}")

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
            self.sent.message = clipped(partial.error_message, MAX_QUOTED)


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


def _retry_after(told: str | None, otherwise: float) -> float:
    return min(float(told), LONGEST_WAIT_S) if told and told.isdigit() else otherwise


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
