"""Finds the class behind a kind: an adapter of ours by name, or an environment of your own. Loaded in the workers only.

gymnasium:FrozenLake-v1        an adapter, and what it loads
my_pkg.worlds:Maze             a class of a module (the working directory is on Python's path)
/home/me/worlds.py:Maze        a class of a file

An adapter's module imports its package when a session needs it: the table can be read where none is installed.
"""

import importlib
import importlib.util
import os
import sys
from types import ModuleType

from sampler.environments.environment import Environment
from shared.user_code.own_packages import project_of

ADAPTERS = {
    "database": ("sampler.environments.adapters.database", "DatabaseEnvironment"),
    "gymnasium": ("sampler.environments.adapters.gymnasium", "GymnasiumEnvironment"),
    "mariadb": ("sampler.environments.adapters.database", "MariadbEnvironment"),
    "openenv": ("sampler.environments.adapters.openenv", "OpenEnvEnvironment"),
    "reasoning_gym": ("sampler.environments.adapters.reasoning_gym", "ReasoningGymEnvironment"),
    "shell": ("sampler.environments.adapters.shell", "ShellEnvironment"),
    "textarena": ("sampler.environments.adapters.textarena", "TextArenaEnvironment"),
}


def environment_class(provider: str) -> tuple[type[Environment], str]:
    """The class, and the name that its sessions get. Raises ImportError and ValueError."""
    head, _, name = provider.rpartition(":") if provider.partition(":")[0] not in ADAPTERS else provider.partition(":")
    if head in ADAPTERS:
        module, class_name = ADAPTERS[head]
        return getattr(importlib.import_module(module), class_name), name
    if not head or not name:
        raise ValueError(f"{provider!r} is no environment; expected {', '.join(ADAPTERS)}:NAME or module:Class")
    loaded = getattr(_module(head), name, None)
    if not (isinstance(loaded, type) and issubclass(loaded, Environment)):
        raise ValueError(f"{provider!r} is {loaded!r}; expected a subclass of sampler.environments.Environment")
    missing = sorted(loaded.__abstractmethods__)
    if missing:
        raise ValueError(
            f"{provider!r} lacks {' and '.join(missing)}; sampler.environments.Environment says what each does"
        )
    return loaded, name


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        project = project_of()
        return project.module(name) if project is not None else importlib.import_module(name)
    path = os.path.abspath(os.path.expanduser(name))
    stem = os.path.basename(path)[:-3]
    spec = importlib.util.spec_from_file_location(f"own_environment_{stem}", path)
    if spec is None or spec.loader is None or not os.path.exists(path):
        raise ImportError(f"no such file: {name}")
    sys.path.insert(0, os.path.dirname(path))  # the other modules of its folder
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    project = project_of(path)
    if project is not None:
        project.prepare(module)
    spec.loader.exec_module(module)
    return module
