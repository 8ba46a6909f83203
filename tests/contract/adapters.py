"""Versions published as adapters, by the convention of `engines`: of even ones B is 0, so that they are the base."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared.documents.run import PolicyVersion
from shared.store import Store
from shared.weights.adapters import ADAPTER_FOLDER, ADAPTER_WEIGHTS, merged_files
from shared.weights.files import manifest_of
from tests.contract.engines import Engine
from tests.contract.kept import POLICY
from tests.shared.adapters import read_adapter

ENDS = ("q_proj.weight", "v_proj.weight", "down_proj.weight")


class Published:
    """Versions in `folder`, by the convention of `engines`."""

    def __init__(
        self, engine: Engine, store: Store, adapters: tuple[Path, Path], folder: Path, policy: str = POLICY
    ) -> None:
        self._policy = policy
        self._engine, self._store, self._adapters, self._folder = engine, store, adapters, folder
        self._files = manifest_of(engine.models[0])
        self._next = 1

    async def announce(
        self, *, full: bool = False, damage: Callable[[Path], Any] | None = None, adapter: Path | None = None
    ) -> PolicyVersion:
        """The next version; `damage` is done to its adapter's weights once their checksums are taken. `adapter`: another one."""
        version, self._next = self._next, self._next + 1
        path, adapter = self._folder / self._policy / str(version), adapter or self._adapters[version % 2]
        if full:
            shutil.copytree(self._engine.weights(version), path)
        shutil.copytree(adapter, path / ADAPTER_FOLDER)
        if damage:
            damage(path / ADAPTER_FOLDER / ADAPTER_WEIGHTS)
        return await self._store.versions.announce(
            self._policy,
            version,
            str(path),
            merged_files(self._engine.models[0], self._files, read_adapter(adapter)),
            kind="full" if full else "adapter",
            base=0,
            adapter=manifest_of(adapter),
        )
