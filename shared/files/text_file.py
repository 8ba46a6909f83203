"""Users' text files."""

from pathlib import Path

from shared.errors import ConfigError


def read_text_file(path: Path, expected: str) -> str:
    """Read the file as UTF-8. Raises ConfigError, which contains `expected`, if it cannot be read.

    The message about a relative path names the folder in which it was looked for, which is not always the user's own.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ConfigError(f"{path}: cannot be read{where} ({exc.strerror}); expected {expected}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: byte {exc.start} is not UTF-8; expected {expected}") from exc
    except ValueError as exc:  # a NUL in the path
        raise ConfigError(f"{str(path)!r}: cannot be read ({exc}); expected {expected}") from exc
