"""The environment of a child that is no program of ours, or that needs nothing but to run: no variable of it can be a secret."""

import os
import re

# By these a process finds its programs, libraries, folders, language and time; `TANDEM_CHILD_OF`: the launcher its leftovers.
PLAIN = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TZDIR|TERM|TMPDIR|LD_LIBRARY_PATH|LD_PRELOAD|GLIBC_TUNABLES"
    r"|VIRTUAL_ENV|PYTHON(UNBUFFERED|UTF8|IOENCODING|PATH|HOME|DONTWRITEBYTECODE|WARNINGS)|SSL_CERT_(FILE|DIR)"
    r"|OMP_NUM_THREADS|MKL_NUM_THREADS|TOKENIZERS_PARALLELISM|TANDEM_CHILD_OF"
)


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if PLAIN.fullmatch(name)}


MINIMAL = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")


def minimal_environment() -> dict[str, str]:
    """What MCP's SDK lets a stdio server inherit: by these a command finds its programs, its files and its user."""
    return {name: os.environ[name] for name in MINIMAL if name in os.environ}
