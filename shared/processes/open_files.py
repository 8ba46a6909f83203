"""How many files a process may have open."""

import resource


def allow_many_files() -> None:
    """As many as its user may: the usual soft limit of 1024 is that of programs that call `select`. Its children inherit it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
