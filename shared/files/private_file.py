"""Files that only this user can read: created with mode 0600, whatever the umask, so that there is no moment in which another
user can open them. For everything with a secret, a conversation or an answer in it: logs, exports, tasks, passwords.

A file that exists keeps the mode that its owner gave it.
"""

import os
from pathlib import Path
from typing import BinaryIO

MODE = 0o600
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


def append_private(path: Path) -> BinaryIO:
    """Open `path` to append bytes."""
    return os.fdopen(os.open(path, _FLAGS | os.O_APPEND, MODE), "ab")


def write_private(path: Path, text: str) -> None:
    """Create or empty `path`, and write `text`. Not atomic: `written_whole` is. Never follows a link."""
    with os.fdopen(os.open(path, _FLAGS | os.O_TRUNC | os.O_NOFOLLOW, MODE), "w", encoding="utf-8") as file:
        file.write(text)
