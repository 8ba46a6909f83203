"""`tandem tasks import --from agentrl://…`: the tasks that a real service of environments lists."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from shared.tasks.controllers import write_listed_tasks
from tests.sampler.environments.services import Service, service
from tests.tandem.commands.commands import Command


@pytest.fixture(scope="module")
def listing() -> Iterator[Service]:
    with service("--workers", "1", worlds="Guess,Silent") as found:
        yield found


def test_what_a_controller_lists_is_imported_once(tandem: Command, listing: Service) -> None:
    address = listing.url.removeprefix("http://").removesuffix("/api")
    first = tandem("tasks", "import", "listed", "--from", f"agentrl://{address}/guess", "--num_generations", "2")
    assert "run listed, split train: 1000 inserted, 0 unchanged" in first.stdout, first.output
    again = tandem("tasks", "import", "listed", "--from", f"agentrl://{address}/guess", "--split", "eval")
    assert "1000 inserted, 0 unchanged" in again.stdout
    third = tandem("tasks", "import", "listed", "--from", f"agentrl://{address}/guess")
    assert "0 inserted, 1000 unchanged" in third.stdout
    shown = json.loads(tandem("status", "listed", "--json").stdout)
    assert shown["tasks"]["train"]["created"] == 1000


def test_the_token_of_a_service_is_sent(tandem: Command, tmp_path: Path) -> None:
    (token := tmp_path / "token").write_text("s3cret\n")
    with service("--workers", "1", "--token_file", str(token), worlds="Guess") as guarded:
        source = "agentrl://" + guarded.url.removeprefix("http://").removesuffix("/api") + "/guess"
        refused = tandem("tasks", "import", "guarded", "--from", source)
        assert refused.exit_code != 0
        assert "HTTP 401" in refused.output
        taken = tandem("tasks", "import", "guarded", "--from", source, "--token_file", str(token))
    assert "1000 inserted" in taken.stdout, taken.output


def test_a_token_is_not_sent_on_to_another_address(tmp_path: Path) -> None:
    heard: list[tuple[str, str | None]] = []

    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append((self.path.partition("?")[0], self.headers.get("authorization")))
            self.send_response(200 if self.path == "/elsewhere" else 302)
            self.send_header("location", f"http://localhost:{self.server.server_port}/elsewhere")  # type: ignore[attr-defined]  # an HTTPServer
            self.end_headers()
            self.wfile.write(b"[1, 2]" if self.path == "/elsewhere" else b"")

    with HTTPServer(("127.0.0.1", 0), Redirecting) as server:
        (serving := threading.Thread(target=server.serve_forever)).start()
        try:
            write_listed_tasks(f"agentrl://127.0.0.1:{server.server_port}/guess", tmp_path, "s3cret")
        finally:
            server.shutdown()
            serving.join()
    assert heard == [("/api/get_indices", "Bearer s3cret"), ("/elsewhere", None)]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("http://host/guess", "expected agentrl://HOST:PORT/TASK"),
        ("agentrl://host:1", "expected agentrl://HOST:PORT/TASK"),
        ("agentrl://127.0.0.1:9/guess", "expected a controller, or python -m sampler.environments, there"),
        ("agentrl://{address}/chess", "this service has: guess, silent"),
    ],
)
def test_what_is_no_list_is_an_error_before_anything_is_written(
    tandem: Command, listing: Service, source: str, said: str
) -> None:
    address = listing.url.removeprefix("http://").removesuffix("/api")
    refused = tandem("tasks", "import", "refused", "--from", source.format(address=address))
    assert refused.exit_code != 0
    assert said in " ".join(refused.output.split())
