"""How many files a process may have open."""

import resource

from shared.errors import ConfigError

_UNLIMITED = 1 << 20
FEWEST = 512  # of a service: each episode takes five to ten
FEWEST_OF_DATABASE = 1024  # MongoDB keeps a file open for each collection and index: with 400, three runs end it


def require_files(fewest: int = FEWEST) -> None:
    """Raise ConfigError, at once, where this user may open fewer files."""
    most = allow_many_files()
    if most < fewest:
        raise ConfigError(
            f"this process may open {most} files; expected at least {fewest} (the limit is `ulimit -Hn` of the shell, "
            "LimitNOFILE of systemd, ulimits of a container)"
        )


def allow_many_files() -> int:
    """As many as its user may; how many. The usual soft limit of 1024 is that of programs that call `select`. Its children
    inherit it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _UNLIMITED if hard == resource.RLIM_INFINITY else hard
