"""`tandem database prepare`: users, passwords and connection strings of a MongoDB server of your own.

    FOLDER/ROLE/password               made at the first call, kept afterwards; a file that is there is used
    FOLDER/ROLE/db_connection_string   DB_CONNECTION_STRING_FILE of the services with this role
    FOLDER/ROLE/compass                the same from the machine of the server, for Compass
    FOLDER/ROLE/runs/RUN/...           the same of a service's user who may open RUN alone (--run)
    FOLDER/ROLE/password.new           the administrator's next one, while it is being changed

Each role has a folder of its own, so that a container gets its own secrets alone.
"""

import contextlib
import os
import secrets
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from shared.configuration.secrets import DATABASE
from shared.errors import ConfigError, DataError, TandemError
from shared.files.private_folder import make_private_folder
from shared.logs import begin_logging
from shared.names import check_run_name
from shared.store.first_start import LocalServer, prepare_server
from shared.store.users import ADMIN, Account, accounts
from tandem.commands.connect import PROBLEM, USAGE, complain

app = typer.Typer(help="A MongoDB server with users and passwords.", no_args_is_help=True)

PASSWORD = "password"
NEXT_PASSWORD = "password.new"
COMPASS = "compass"
RUNS = "runs"
BYTES = 24
EXAMPLE = "Example:  `tandem database prepare --folder credentials --member db.example.com:27017`"


@app.callback()
def database() -> None:
    """Keeps `prepare` a command of its own: typer would run a single command without its name."""


@app.command(epilog=EXAMPLE)
def prepare(
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the passwords and connection strings.")],
    member: Annotated[
        str, typer.Option("--member", help="HOST:PORT by which services reach the server, as a member of its set.")
    ] = "mongo:27017",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Its port on this machine.")] = 27017,
    outside_port: Annotated[
        int, typer.Option("--outside_port", min=1, max=65535, help="Its port for Compass on the machine of the server.")
    ] = 27017,
    replica_set: Annotated[str, typer.Option("--replica_set", help="Name of its replica set.")] = "rs0",
    timeout_s: Annotated[float, typer.Option("--timeout_s", min=1, help="Time limit of the whole call.")] = 120.0,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            help="Make the services' users (sampler, keeper, trainer) for this run alone. Default: for every run.",
        ),
    ] = None,
    tls_ca_file: Annotated[
        Path | None,
        typer.Option(
            "--tls_ca_file", help="The server requires TLS: certificate of its authority, where the services have it."
        ),
    ] = None,
    new_admin_password: Annotated[
        bool,
        typer.Option("--new_admin_password", help="Replace the password of the administrator, root, with a new one."),
    ] = False,
) -> None:
    """Prepare a server that was started on this machine with --replSet and --keyFile: initiate its replica set, create its users.

    Repeatable: passwords stay, roles become what this version of the program needs. A call that was killed is continued by the
    next one, also while it changed the administrator's password.
    """
    begin_logging("INFO")
    tls = "" if tls_ca_file is None else f"&tls=true&tlsCAFile={quote(str(tls_ca_file), safe='')}"
    try:
        users = accounts(None if run is None else check_run_name(run))
        admin_password = _password(folder / ADMIN)
        passwords = {user: _password(_folder_of(folder, user)) for user in users}
        upcoming = folder / ADMIN / NEXT_PASSWORD
        following = _password(folder / ADMIN, NEXT_PASSWORD) if new_admin_password or upcoming.exists() else None
        prepare_server(
            LocalServer(port, tls_ca_file), replica_set, member, admin_password, passwords, timeout_s, following
        )
        if following is not None:
            _rename(upcoming, folder / ADMIN / PASSWORD)
            admin_password = following
        logins = {folder / ADMIN: (ADMIN, admin_password)}
        logins |= {_folder_of(folder, user): (user.name, password) for user, password in passwords.items()}
        for place, (name, password) in logins.items():
            login = f"mongodb://{quote(name, safe='')}:{quote(password, safe='')}@"
            _write(place / DATABASE, f"{login}{member}/?replicaSet={quote(replica_set)}&authSource=admin{tls}")
            outside = f"{login}127.0.0.1:{outside_port}/?directConnection=true&authSource=admin{tls}"
            _write(place / COMPASS, outside)
    except ConfigError as exc:
        complain(str(exc))
        raise typer.Exit(USAGE) from exc
    except TandemError as exc:
        complain(str(exc))
        raise typer.Exit(PROBLEM) from exc
    typer.echo(
        f"MongoDB is prepared; connection strings of {', '.join(name for name, _ in logins.values())} in {folder}"
    )


def _folder_of(folder: Path, user: Account) -> Path:
    own = folder / user.role.name
    return own if user.run is None else own / RUNS / user.run


def _password(folder: Path, name: str = PASSWORD) -> str:
    """The password in `folder`; a new one, on disk before the server gets it, if there is none."""
    path = folder / name
    if not path.exists():
        _write(path, secrets.token_urlsafe(BYTES), only_first=True)
    password = path.read_text(encoding="utf-8").strip()
    if not password:
        raise ConfigError(f"{path} is empty; expected a password, or no file")
    return password


def _rename(path: Path, to: Path) -> None:
    """Raises DataError."""
    try:
        path.replace(to)
    except OSError as exc:
        raise DataError(f"{path} could not be renamed to {to.name}: {exc}; repeat the call") from exc


def _write(path: Path, text: str, *, only_first: bool = False) -> None:
    """Atomically, readable by this user alone. `only_first`: a file that another call has written meanwhile stays. Raises
    DataError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        for parent in reversed(path.parents[:4]):  # of FOLDER/ROLE/runs/RUN
            make_private_folder(parent)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if only_first:
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(temporary)
            temporary.unlink()
        else:
            temporary.replace(path)
    except OSError as exc:
        raise DataError(f"{path} could not be written: {exc}") from exc
