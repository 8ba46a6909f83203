"""Folders that only this user can read, write or replace, even below a directory shared by all users of the machine."""

import os
import stat
import tempfile
from pathlib import Path

from shared.errors import ConfigError


def temporary_folder(*names: str) -> Path:
    """Return the user's private folder below the system's temporary one. Raises ConfigError if another user occupies its
    path."""
    folder = private_folder(Path(tempfile.gettempdir()).resolve() / f"tandem-{os.getuid()}")
    for name in names:
        folder = private_folder(folder / name)
    return folder


def make_private_folder(path: Path) -> None:
    """Create `path` with mode 0700 and its parents with 0755 or less, whatever the umask; one that exists is used as it is."""
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir(mode=0o755, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def private_folder(path: Path) -> Path:
    """Return `path`, created with mode 0700 if missing. Raises ConfigError for a link, another user's folder, or a wider mode."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as exc:
        raise ConfigError(
            f"{path}: cannot be created ({exc.strerror}); expected a private folder of this user"
        ) from exc
    require_own(path)
    mode = stat.S_IMODE(path.lstat().st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"{path}: its mode is {mode:04o}; expected 0700, so that no other user can read it: run chmod 700"
        )
    return path


def require_own(path: Path) -> None:
    """Raises ConfigError if `path` is not a directory, is a link, or belongs to another user."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "no folder"
        raise ConfigError(f"{path}: is {kind}; expected a folder of this user: remove it, or choose another one")
    if status.st_uid != os.getuid():
        raise ConfigError(
            f"{path}: belongs to user {status.st_uid}; expected one of user {os.getuid()}: choose another one"
        )


def open_own(path: Path) -> int:
    """Open the file `path`, created if missing; never follows a link, never truncates. Raises ConfigError."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise ConfigError(
            f"{path}: cannot be opened ({exc.strerror}); expected a file of this user, not a link"
        ) from exc
