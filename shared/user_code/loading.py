"""Loads users' modules, classes and functions named by options. Any error in them stops the start with a message.

my_pkg.scorers            a module on Python's path (the working directory is on it)
/home/me/scorers.py       a file; it can import the other modules of its folder
my_pkg.samplers:Walker    a class or function of a module, or of a file: samplers.py:Walker
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from shared.errors import ConfigError
from shared.user_code.frames import FILE_MODULE, told
from shared.user_code.own_packages import project_of

T = TypeVar("T")


def import_own(option: str, name: str) -> ModuleType:
    """Import a module. Raises ConfigError."""
    try:
        return _import_file(Path(name).expanduser()) if name.endswith(".py") else _import_module(name)
    except (Exception, SystemExit) as exc:  # user code: any exception stops the start
        raise ConfigError(
            f"{option}: {name!r} cannot be imported: {told(exc)}; expected a module on Python's path "
            "(the working directory is on it), or a file FILE.py"
        ) from exc


def load_class(option: str, path: str, base: type[T]) -> type[T]:
    """Load the subclass of `base` that `package.module:Class` or `FILE.py:Class` names. Raises ConfigError."""
    module_name, loaded = _named(option, path, "Class")
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        base_name = f"{base.__module__}.{base.__qualname__}"
        raise ConfigError(f"{option} is {path!r}: {module_name} {_seen(loaded)}; expected a subclass of {base_name}")
    return loaded


def load_function(option: str, path: str) -> Callable[..., Any]:
    """Load what `package.module:function` or `FILE.py:function` names. Raises ConfigError."""
    module_name, loaded = _named(option, path, "function")
    if not callable(loaded):
        raise ConfigError(f"{option} is {path!r}: {module_name} {_seen(loaded)}; expected a function")
    return cast(Callable[..., Any], loaded)


def _named(option: str, path: str, what: str) -> tuple[str, Any]:
    module_name, _, name = path.rpartition(":")
    if not module_name or not name:
        raise ConfigError(f"{option} is {path!r}; expected package.module:{what}, or FILE.py:{what}")
    return module_name, getattr(import_own(option, module_name), name, None)


def _seen(value: Any) -> str:
    return "has no such name" if value is None else f"has {value!r} there"


def _import_module(name: str) -> ModuleType:
    project = project_of()
    return project.module(name) if project is not None else importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    """Import a file as a single module, also when it is imported by several paths or names."""
    path = path.resolve()
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file")
    known = [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == str(path)]
    if known:
        return known[0]
    name = f"{FILE_MODULE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a file that ends in .py"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    project = project_of(str(path))
    if project is not None:
        project.prepare(module)
    sys.modules[name] = module  # its classes look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:  # Ctrl-C too: a partly executed module must not stay importable
        del sys.modules[name]
        raise
    return module
