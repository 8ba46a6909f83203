"""A user's own code, which an option names: modules and classes. Whatever is wrong with it ends the start, with a message."""

import importlib
from types import ModuleType
from typing import TypeVar

from shared.errors import ConfigError

T = TypeVar("T")


def import_own(option: str, name: str) -> ModuleType:
    """The module. Raises ConfigError."""
    try:
        return importlib.import_module(name)
    except Exception as exc:  # a module is the user's code: whatever it raises, the start is over
        raise ConfigError(
            f"{option}: {name!r} cannot be imported: {type(exc).__name__}: {exc}; expected a module on Python's path "
            "(the working directory is on it)"
        ) from exc


def load_class(option: str, path: str, base: type[T]) -> type[T]:
    """The class that `package.module:Class` names, a subclass of `base`. Raises ConfigError."""
    module_name, _, class_name = path.partition(":")
    if not module_name or not class_name:
        raise ConfigError(f"{option} is {path!r}; expected package.module:Class")
    module = import_own(option, module_name)
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        seen = "has no such name" if found is None else f"has {found!r} there"
        wanted = f"{base.__module__}.{base.__qualname__}"
        raise ConfigError(f"{option} is {path!r}: {module_name} {seen}; expected a subclass of {wanted}")
    return found
