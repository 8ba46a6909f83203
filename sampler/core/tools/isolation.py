"""Runs stdio tool servers, and agents' commands, as another user or isolated from other processes, by a wrapper around them.

A tool with the sampler's user cannot read this process (`shared.processes.concealment`), but it can read the user's files, end
the user's processes, and, as root, read everything. `tool_user` needs a sampler that may change users (root, or CAP_SETUID and
CAP_SETGID). `bubblewrap` gives a tool its own process ids, /proc and /dev, and no capabilities; files and network stay
accessible.
"""

import logging
import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

from shared.errors import ConfigError
from shared.mcp.servers import ToolServer
from shared.processes.guarded import ChildCommand

log = logging.getLogger(__name__)

Sandbox = Literal["off", "bubblewrap"]
_PROBE_S = 60.0
_BUBBLEWRAP = (
    *("bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    *("--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL", "--die-with-parent", "--"),
)


def isolated(servers: Sequence[ToolServer], user: str | None, sandbox: Sandbox) -> list[ToolServer]:
    """`servers`, with the wrapper around stdio ones. Raises ConfigError if it does not work on this machine."""
    if not any(server.url is None for server in servers):
        return list(servers)
    if user is None and sandbox == "off" and os.geteuid() == 0:
        log.warning(
            "tools over stdio run as root, and can read this process and every file; "
            "set tool_user, or tool_sandbox to bubblewrap, unless each of them is trusted"
        )
    wrapper = _wrapper(user, sandbox)
    return [server if server.url is not None else _server_in(server, wrapper, user) for server in servers]


def wrapped(command: ChildCommand, user: str | None, sandbox: Sandbox) -> ChildCommand:
    """One command with the wrapper around it, which is tried at the first call. Raises ConfigError if it does not work."""
    return _wrapped(command, _tried_once(user, sandbox), user)


def _wrapper(user: str | None, sandbox: Sandbox) -> tuple[str, ...]:
    wrapper = (*_as_user(user), *(_BUBBLEWRAP if sandbox == "bubblewrap" else ()))
    if wrapper:
        _try(wrapper)
    return wrapper


_tried_once = cache(_wrapper)


def _server_in(server: ToolServer, wrapper: Sequence[str], user: str | None) -> ToolServer:
    command = _wrapped(server.child_command, wrapper, user)
    return replace(server, command=command.words[0], args=command.words[1:], env=command.env)


def _wrapped(command: ChildCommand, wrapper: Sequence[str], user: str | None) -> ChildCommand:
    if not wrapper:
        return command
    home = {}
    if user is not None:
        home = {"HOME": pwd.getpwnam(user).pw_dir, "USER": user, "LOGNAME": user}
    return replace(command, words=(*wrapper, *command.words), env={**home, **command.env})


def _as_user(user: str | None) -> list[str]:
    if user is None:
        return []
    try:
        account = pwd.getpwnam(user)
    except KeyError as exc:
        raise ConfigError(
            f"tool_user: there is no user {user!r} on this machine; expected one of its users' names"
        ) from exc
    ids = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups"]
    return ["setpriv", *ids, "--inh-caps=-all", "--no-new-privs", "--"]


def _try(wrapper: Sequence[str]) -> None:
    """Run the wrapper with an empty command, so that missing privileges are reported at the start, not by every episode."""
    if shutil.which(wrapper[0]) is None:
        package = {"bwrap": "bubblewrap", "setpriv": "util-linux"}[wrapper[0]]
        raise ConfigError(f"tool_user, tool_sandbox: {wrapper[0]} is not on the PATH; install {package}")
    try:
        tried = subprocess.run(
            [*wrapper, "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise ConfigError(
            f"tool_user, tool_sandbox: `{' '.join(wrapper)} true` did not end within {_PROBE_S:g} s"
        ) from exc
    if tried.returncode != 0:
        raise ConfigError(
            f"tool_user, tool_sandbox: `{' '.join(wrapper)} true` ended with status {tried.returncode}: {tried.stderr.strip()}; "
            "changing users needs root, and bubblewrap needs root or user namespaces"
        )
