"""The exporter and its receivers: requests in bounds, URLs, times, keys."""

import contextlib
import json
import math
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import pytest

from shared.documents import TaskPayload
from shared.errors import ConfigError
from shared.outgoing import loopback_goes_direct
from tandem.traces import otlp
from tandem.traces.messages import MAX_TEXT_CHARS
from tandem.traces.otlp import Exporter, NotReceived, endpoint
from tandem.traces.spans import Episode, spans_of
from tests.shared.builders import make_task
from tests.shared.episodes import RECORD, an_episode, make_dispatches
from tests.tandem.traces.receiver import Receiver, attributes, receiver


@pytest.fixture
def received() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def test_a_receiver_that_stays_away_ends_the_export_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = Exporter("http://127.0.0.1:9", {})
    exporter.stop()  # as Ctrl-C: no more waiting
    with pytest.raises(NotReceived, match="did not take 5 spans in 1 attempts"):
        exporter.send("r", spans_of("r", an_episode()))


def test_requests_are_bounded_in_spans_and_bytes(received: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [span for _ in range(130) for span in spans_of("r", an_episode())]
    Exporter(received.url, {}).send("r", many)
    assert [len(one.resource_spans[0].scope_spans[0].spans) for one in received.requests] == [512, 138]
    received.requests.clear()
    monkeypatch.setattr(otlp, "MAX_REQUEST_BYTES", 5_000)
    Exporter(received.url, {}).send("r", many[:20])
    assert len(received.spans) == 20
    assert max(one.ByteSize() for one in received.requests) < 6_000


def test_megabytes_nul_and_values_that_are_no_numbers_are_sent_in_bounds(received: Receiver) -> None:
    big = "a" * 5_000_000
    dispatches = make_dispatches(RECORD)
    messages = [{"role": "tool", "content": f"\x00{big}", "tool_call_id": "c"}] * 200
    call = dispatches[0].tool_calls[0].model_copy(update={"result": big, "is_error": True, "duration_s": math.nan})
    dispatches[0] = dispatches[0].model_copy(update={"messages": messages, "tool_calls": [call]})
    whole = an_episode(score=math.nan, reward_details={"reason": big, "of": {1: math.inf}}, answer=big)
    task = make_task(0).model_copy(update={"payload": TaskPayload(query=big)})
    Exporter(received.url, {}).send("r", spans_of("r", Episode(whole.record, task, dispatches, list(range(9_000)), {})))
    assert sum(one.ByteSize() for one in received.requests) < 60 * MAX_TEXT_CHARS
    root, chat, tool = received.spans[0], received.spans[1], received.spans[2]
    assert "tandem.reward" not in attributes(root)
    assert attributes(root)["tandem.trained_steps"] == list(range(8_900, 9_000))
    parts = json.loads(attributes(chat)["gen_ai.input.messages"])
    assert "\x00" not in str(parts)
    assert (tool.status.code, tool.end_time_unix_nano) == (2, tool.start_time_unix_nano)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("https://h/", "https://h/v1/traces"),
        ("http://h/api/otlp?x=1", "http://h/api/otlp?x=1"),
    ],
)
def test_a_url_without_a_path_gets_otlps_own(given: str, used: str) -> None:
    assert endpoint(given) == used


@pytest.mark.parametrize(
    "given", ["http://[::1", "http://h:99999", "h:4318", "ftp://h", "file:///etc/passwd", "http://"]
)
def test_what_is_no_receivers_url_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="expected http"):
        endpoint(given)


def test_no_receiver_takes_more_time_than_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that accepts and never answers, and one that sends a byte from time to time."""
    monkeypatch.setattr(otlp, "TRY_S", 0.3)
    monkeypatch.setattr(otlp, "WHOLE_S", 1.0)
    for drip in (False, True):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            ended = threading.Event()
            threading.Thread(target=_drip, args=(silent, drip, ended), daemon=True).start()
            exporter = Exporter(f"http://127.0.0.1:{silent.getsockname()[1]}", {})
            with pytest.raises(
                NotReceived, match=r"did not take 5 spans in \d attempts; the last: .*(no whole answer|timed out)"
            ):
                exporter.send("r", spans_of("r", an_episode()))
            ended.set()


def _drip(silent: socket.socket, drip: bool, ended: threading.Event) -> None:
    accepted = []
    silent.settimeout(0.05)
    while not ended.is_set():
        try:
            accepted.append(silent.accept()[0])
        except OSError:
            for one in accepted if drip else ():
                with contextlib.suppress(OSError):
                    one.send(b"H")
    for one in accepted:
        one.close()


KEY = "s3cr3t-key-of-a-receiver"


@pytest.mark.parametrize(
    "header",
    [
        f"Authorization=Bearer {KEY}",
        f"Authorization=Basic {b64encode(f'u:{KEY}'.encode()).decode()}",
        f"x-api-key={KEY}",
    ],
)
def test_a_receiver_that_echoes_a_header_shows_no_key(header: str) -> None:
    name, _, value = header.partition("=")
    echoed = [value, KEY, quote(value), json.dumps({"got": value}), "y" * 290 + value]
    for text in echoed:

        class Echo(BaseHTTPRequestHandler):
            def do_POST(self, text: str = text) -> None:
                self.send_response(401)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args: object) -> None:
                """Says nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with pytest.raises(NotReceived) as caught:
                Exporter(f"http://127.0.0.1:{server.server_address[1]}", {name: value}).send(
                    "r", spans_of("r", an_episode())
                )
            server.shutdown()
        assert not any(secret in str(caught.value) for secret in (KEY, KEY[:12], value.split()[-1][:12])), caught.value


def test_every_client_of_a_program_reaches_loopback_directly() -> None:
    for given, then in (("", "localhost,127.0.0.1,::1"), ("db", "db,localhost,127.0.0.1,::1"), ("*", "*")):
        environment = {"HTTPS_PROXY": "http://p:1", "NO_PROXY": given}
        loopback_goes_direct(environment)
        assert environment["no_proxy"] == environment["NO_PROXY"] == then
    untouched: dict[str, str] = {}
    loopback_goes_direct(untouched)
    assert untouched == {}
