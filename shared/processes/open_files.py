"""How many files a process may have open."""

import resource

_UNLIMITED = 1 << 20


def allow_many_files() -> int:
    """As many as its user may; how many. The usual soft limit of 1024 is that of programs that call `select`. Its children
    inherit it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _UNLIMITED if hard == resource.RLIM_INFINITY else hard
