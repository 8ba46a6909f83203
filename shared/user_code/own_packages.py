"""A user's project may have packages named `shared`, `sampler` or `trainer`, as ours are. Its code gets its own, we get ours.

    my_project/scorers.py     from sampler.scorers import register_scorer      ours: the project's `sampler` has no `scorers`
                              from shared.metrics import f1                    my_project/shared/metrics.py

In `sys.modules` the project's package has another name (`own_1a2b3c4d_shared`), and the modules of the project resolve `import`
by a function of their own. Where the project has the name, its package comes first; what it does not have is ours.
Nothing of this happens in a project without such a package. Needs Python's library alone: workers of environments use it.
"""

import builtins
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from shared.processes.run_module import PACKAGES, ROOT, use_ours

PREFIX = "own_"


class OwnProject:
    """Finds and loads the modules in `folder`; an entry of `sys.meta_path`. `names`: its packages that are named as ours."""

    def __init__(self, folder: str, names: "frozenset[str]") -> None:
        self._folder, self.names = folder, names
        digest = hashlib.sha256(folder.encode()).hexdigest()[:8]
        self._aliases = {name: f"{PREFIX}{digest}_{name}" for name in names}
        self._builtins = {**vars(builtins), "__import__": self._import}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """None: not of this project."""
        finder = importlib.machinery.PathFinder
        own = next((own for own, alias in self._aliases.items() if alias == name), None)
        if own is not None:
            spec = finder.find_spec(own, [self._folder], target)
            location = None if spec is None else spec.submodule_search_locations
            if spec is None or location is None:
                return None
            init = os.path.join(self._folder, own, "__init__.py")
            loader = self._loader(name, init) if os.path.exists(init) else None
            return importlib.util.spec_from_file_location(
                name, init, loader=loader, submodule_search_locations=list(location)
            )
        if name in PACKAGES:
            return None
        spec = finder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader) or spec.origin is None:
            return None
        if not os.path.abspath(spec.origin).startswith(self._folder + os.sep) or _is_installed(spec.origin):
            return None
        spec.loader = self._loader(name, spec.origin)
        return spec

    def _loader(self, name: str, file: str) -> "_Loader":
        return _Loader(name, file, self._builtins)

    def module(self, name: str) -> ModuleType:
        """The module that an option names."""
        imported: ModuleType = self._import(name, names=("__name__",))
        return imported

    def prepare(self, module: ModuleType) -> None:
        """Let `module`, which is loaded from a file by its name, import as those of the project."""
        module.__dict__["__builtins__"] = self._builtins

    def _import(self, name: str, of: Any = None, there: Any = None, names: Any = (), level: int = 0) -> Any:
        """`__import__` of the project's modules."""
        first, _, rest = name.partition(".")
        if level == 0 and first in self._aliases:
            module = self._of_project(first, rest, names or ())
            if module is not None:
                return module
        return builtins.__import__(name, of, there, names, level)

    def _of_project(self, first: str, rest: str, names: Any) -> Any:
        """None: the project's package does not have it."""
        alias = self._aliases[first]
        whole = f"{alias}.{rest}" if rest else alias
        try:
            module = importlib.import_module(whole)
            for name in names:
                if name != "*" and not hasattr(module, name):
                    importlib.import_module(f"{whole}.{name}")
        except ModuleNotFoundError as exc:
            if exc.name is not None and (exc.name == alias or exc.name.startswith(alias + ".")):
                return None
            raise
        return module if names else sys.modules[alias]


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, file: str, its_builtins: Any) -> None:
        super().__init__(name, file)
        self._builtins = its_builtins

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._builtins
        super().exec_module(module)


def project_of(file: "str | None" = None) -> "OwnProject | None":
    """The project of the file, or of the working directory, if it has a package named as one of ours."""
    folders = [os.path.dirname(os.path.abspath(file))] if file else []
    for folder in [*folders, os.getcwd()]:
        folder = os.path.realpath(folder)
        names = frozenset(name for name in PACKAGES if _has(folder, name))
        if names and folder != os.path.realpath(ROOT):
            return _installed(folder, names)
    return None


def _has(folder: str, name: str) -> bool:
    package = os.path.join(folder, name)
    if not os.path.isdir(package):
        return False
    return any(entry.endswith(".py") for entry in os.listdir(package))


def _installed(folder: str, names: "frozenset[str]") -> OwnProject:
    for entry in sys.meta_path:
        if isinstance(entry, OwnProject) and entry._folder == folder:
            return entry
    use_ours()
    project = OwnProject(folder, names)
    sys.meta_path.insert(0, project)
    return project


def _is_installed(file: str) -> bool:
    return f"{os.sep}site-packages{os.sep}" in file or f"{os.sep}dist-packages{os.sep}" in file
