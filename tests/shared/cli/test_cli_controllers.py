"""`tandem tasks import --from agentrl://…`: the tasks that a real service of environments lists."""

import json
from collections.abc import Iterator

import pytest

from tests.sampler.environments.services import Service, service
from tests.shared.cli.commands import Command


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
