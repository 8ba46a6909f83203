"""Isolated processes of one MCP session.

    start ──▶ warden (a guard: shared.processes.guard) ──▶ [bwrap | docker run] ──▶ the command
                └─ watch: total time, memory, processes, folder      └─ confinement: user, limits, seccomp, Landlock

A session has a folder (`new_folder` … `discard`), and in it any number of processes (`start` … `stop`). Names are loaded when
they are first used: a warden imports this package too, and has to begin quickly.
"""

from typing import TYPE_CHECKING

from shared.lazy_names import lazy_names

if TYPE_CHECKING:
    from shared.sandbox.folders import (
        StaleState,
        discard,
        new_folder,
        own_state_folder,
        reap_left_over,
        release_state_folder,
    )
    from shared.sandbox.launch import ContainerOptions, IsolationLevel, Launch, Limits
    from shared.sandbox.levels import available_levels, chosen_level
    from shared.sandbox.processes import SandboxedProcess, start

__all__ = [
    "ContainerOptions",
    "IsolationLevel",
    "Launch",
    "Limits",
    "SandboxedProcess",
    "StaleState",
    "available_levels",
    "chosen_level",
    "discard",
    "new_folder",
    "own_state_folder",
    "reap_left_over",
    "release_state_folder",
    "start",
]
__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(
            ("StaleState", "discard", "new_folder", "own_state_folder", "reap_left_over", "release_state_folder"),
            f"{__name__}.folders",
        ),
        **dict.fromkeys(("ContainerOptions", "IsolationLevel", "Launch", "Limits"), f"{__name__}.launch"),
        **dict.fromkeys(("available_levels", "chosen_level"), f"{__name__}.levels"),
        **dict.fromkeys(("SandboxedProcess", "start"), f"{__name__}.processes"),
    },
)
