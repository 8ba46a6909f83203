"""A process serves its own figures, by the format of Prometheus, to whom asks rightly."""

import re
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from shared.documents.run import Worker
from shared.errors import ConfigError
from shared.http import metrics_page
from shared.http.metrics_page import Figure, as_page, host_and_port, of_worker, serving
from shared.store import Store

WORKER = Worker(
    id='w"1\n',
    kind="sampler",
    host="h",
    pid=1,
    alarms=["too slow"],
    stats={
        "tokens": 7,
        "reward_mean": None,
        "parents": {"bridge": 3, "why": "text"},
        "reward/mean": 0.5,
        "inf": float("inf"),
    },
)
LINE = re.compile(r'[a-z_:][a-zA-Z0-9_:]*\{([a-z]+="([^"\\\n]|\\["\\n])*",?)*\} (-?[0-9.e+-]+|NaN|[+-]?Inf)')


def test_every_line_is_of_the_format_and_names_stand_together() -> None:
    page = as_page("r", [*of_worker(WORKER), Figure("sampler_tokens", 8, {"worker": "w2"})]).decode()
    lines = page.splitlines()
    assert [line for line in lines if not line.startswith("#") and not LINE.fullmatch(line)] == []
    assert 'tandem_sampler_tokens{run="r",worker="w\\"1\\n"} 7' in lines
    assert 'tandem_sampler_parents{run="r",worker="w\\"1\\n",of="bridge"} 3' in lines
    assert 'tandem_sampler_reward_mean{run="r",worker="w\\"1\\n"} 0.5' in lines
    assert 'tandem_worker_alarms{run="r",kind="sampler",worker="w\\"1\\n"} 1' in lines
    assert [line.split()[2] for line in lines if line.startswith("# TYPE")].count("tandem_sampler_tokens") == 1


async def test_a_page_says_what_the_last_heartbeat_said(store: Store) -> None:
    with serving("127.0.0.1:0", store.run, lambda: of_worker(store.workers.last)) as url:
        assert url is not None

        def page(path: str = "/metrics") -> str:
            with urllib.request.urlopen(url.replace("/metrics", path), timeout=30) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                return str(answer.read().decode())

        assert "tandem_sampler_tokens" not in page()
        await store.workers.heartbeat(WORKER)
        assert 'tandem_sampler_tokens{run="' in page()
        assert re.search(r"^tandem_process_cpu_seconds\{.*\} [0-9.]+$", page(), re.MULTILINE)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            page("/secrets")


def test_a_client_that_sends_a_byte_at_a_time_keeps_no_process_from_its_end() -> None:
    done = threading.Event()

    def send_slowly(port: int) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
            for _ in range(400):
                if not done.wait(0.2):
                    client.sendall(b"G")

    with serving("127.0.0.1:0", "r", list) as url:
        assert url is not None
        sender = threading.Thread(target=send_slowly, args=[urlsplit(url).port], daemon=True)
        sender.start()
        time.sleep(1)  # until its connection is served
        began = time.monotonic()
    took_s = time.monotonic() - began
    assert not done.is_set()
    sender.join(60)  # hung up on, so it ends by itself
    assert not sender.is_alive()
    done.set()
    assert took_s < 60


def test_a_client_that_sends_a_byte_at_a_time_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "TIME_LIMIT_S", 1.0)
    with serving("127.0.0.1:0", "r", list) as url:
        assert url is not None
        with socket.create_connection(("127.0.0.1", urlsplit(url).port)) as client:
            sent = 0
            with suppress(ConnectionError):
                while sent < 600:
                    client.sendall(b"G")
                    sent += 1
                    time.sleep(0.1)
            assert sent < 600


def test_an_address_that_is_taken_or_is_none_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="cannot listen"), serving(address, "r", list):
            pass
    with pytest.raises(ConfigError, match="cannot listen"), serving("a" * 70 + ".org:0", "r", list):
        pass
    for wrong in ("9465", "host", "h:99999", "h:port"):
        with pytest.raises(ConfigError, match="expected HOST:PORT"):
            host_and_port(wrong)
    assert host_and_port("[::1]:9465") == ("::1", 9465)
    assert host_and_port(":9465") == ("0.0.0.0", 9465)
