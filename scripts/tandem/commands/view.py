"""`tandem view`: a run's database as web pages."""

import asyncio
import contextlib
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

import typer

from shared.configuration.secrets import configured_secret
from shared.errors import ConfigError
from shared.http.listening import listening_socket
from shared.names import LOOPBACK_HOSTS, check_run_name, is_loopback_host
from shared.processes.signals import ending_signals
from shared.store import Store
from shared.store.connecting import connect, first_contact
from shared.store.primary import until_primary
from tandem.commands.connect import CONNECT_TIMEOUT_S, Connection, answer, connection_string, console

EXAMPLES = """Examples:

`tandem view demo`  then open the printed address

`tandem view`  every run of the server

`TANDEM_VIEW_TOKEN_FILE=token tandem view --host 0.0.0.0`  for other machines: any user name, and the token as password
"""

TOKEN_VARIABLE = "TANDEM_VIEW_TOKEN"
NEEDED = ("starlette", "uvicorn", "jinja2")
KEPT_OPEN_S = 5  # what is being answered at the end


def view(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Run to open. Default: the list of runs.")] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all.")] = LOOPBACK_HOSTS[0],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: a free one.")] = 8800,
    root_path: Annotated[
        str,
        typer.Option("--root_path", help="Path below which a reverse proxy serves it, such as /tandem. Default: none."),
    ] = "",
    db_connection_string: Connection = None,
) -> None:
    """Show runs in a browser: reward, groups, episodes, tokens, steps, processes. Only reads.

    Needs `pip install tandem-rl[view]`. On loopback only this machine may ask; for other machines set TANDEM_VIEW_TOKEN, or
    TANDEM_VIEW_TOKEN_FILE, and put TLS before it. A proxy may serve it below a path: it says so by the header X-Forwarded-Prefix,
    or `--root_path` does.
    """
    answer(_view(run, ViewPlace(host, port, root_path.rstrip("/")), db_connection_string))


@dataclass(frozen=True, slots=True)
class ViewPlace:
    host: str
    port: int
    root_path: str


async def _view(run: str | None, place: ViewPlace, given: str | None) -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"tandem view needs {', '.join(missing)}; pip install 'tandem-rl[view]'")
    token = configured_secret(TOKEN_VARIABLE)
    if not is_loopback_host(place.host) and not token:
        raise ConfigError(
            f"--host {place.host}: other machines may ask there, and every page shows the run's data; expected a token in "
            f"{TOKEN_VARIABLE}, or the name of a file with it in {TOKEN_VARIABLE}_FILE"
        )
    _require_path(place.root_path)
    uri = connection_string(given, run)
    if run is None:
        client = connect(uri, CONNECT_TIMEOUT_S)
        try:
            with first_contact(uri, "any", CONNECT_TIMEOUT_S):
                await until_primary(client, uri)
            await _serve(Store(client, "admin"), None, place, token)
        finally:
            await client.close()
        return
    async with Store.open(uri, check_run_name(run), timeout_s=CONNECT_TIMEOUT_S, read_only=True) as store:
        await _serve(store, run, place, token)


def _require_path(root_path: str) -> None:
    from tandem.viewer.sub_path import is_sub_path  # of the extra `view`

    if root_path and not is_sub_path(root_path):
        raise ConfigError(
            f"--root_path is {root_path[:200]!r}; expected a path such as /tandem, of letters, digits and ._~-"
        )


async def _serve(store: Store, run: str | None, place: ViewPlace, token: str | None) -> None:
    """Until a signal."""
    from shared.http.server import HttpServer  # of the extra `view`
    from tandem.viewer.app import make_app
    from tandem.viewer.page_request import in_url

    with contextlib.closing(listening_socket(place.host, place.port, "--host and --port")) as listener:
        app = make_app(store.client, token, place.root_path)
        server = HttpServer(
            app,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=KEPT_OPEN_S,
        )
        for signal_number in ending_signals():
            asyncio.get_running_loop().add_signal_handler(signal_number, server.handle_exit, signal_number, None)
        path = "/" if run is None else f"/runs/{in_url(run)}"
        console().print(f"http://{in_url(place.host)}:{listener.getsockname()[1]}{path}", soft_wrap=True, markup=False)
        await server.serve(sockets=[listener])
