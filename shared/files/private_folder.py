"""Folders that only this user can read, fill or replace, also below a directory that all users of the machine share."""

import os
import stat
import tempfile
from pathlib import Path

from shared.errors import ConfigError


def temporary_folder(*names: str) -> Path:
    """The user's own folder of these names below the system's temporary one. Raises ConfigError where another user put
    something in its place."""
    folder = private_folder(Path(tempfile.gettempdir()).resolve() / f"tandem-{os.getuid()}")
    for name in names:
        folder = private_folder(folder / name)
    return folder


def private_folder(path: Path) -> Path:
    """`path`, made with mode 0700 where it is missing. Raises ConfigError for a link, another user's, one open to others."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be made ({exc.strerror}); expected a private folder of this user") from exc
    require_own(path)
    if (mode := stat.S_IMODE(path.lstat().st_mode)) & 0o077:
        raise ConfigError(
            f"{path}: its mode is {mode:04o}; expected 0700, so that no other user can look into it: chmod 700 it"
        )
    return path


def require_own(path: Path) -> None:
    """Raises ConfigError where `path` is no directory, a link to one, or another user's."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        kind = "a link" if stat.S_ISLNK(found.st_mode) else "no folder"
        raise ConfigError(f"{path}: is {kind}; expected a folder of this user: remove it, or name another one")
    if found.st_uid != os.getuid():
        raise ConfigError(
            f"{path}: belongs to user {found.st_uid}; expected one of user {os.getuid()}: name another one"
        )


def open_own(path: Path) -> int:
    """A descriptor of the file `path`, made where it is not there, never through a link, and never cut. Raises ConfigError."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise ConfigError(
            f"{path}: cannot be opened ({exc.strerror}); expected a file of this user, and no link"
        ) from exc
