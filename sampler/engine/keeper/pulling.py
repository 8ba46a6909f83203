"""Files of versions for a keeper that does not see the trainer's disk (`weight_transport: auto` or `peers`).

    CACHE/pulled/v000012-…/model.safetensors, …   pulled in chunks from the trainer's machine and from keepers of the same policy
    http://HOST:PORT                              where this keeper serves what it has pulled, and what it is pulling

The address is `engine_host`; it listens from the first pull on. A folder is deleted when two newer versions are here that need it
no longer.
"""

import asyncio
import hashlib
import logging
import shutil
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sampler.engine.keeper.config import KeeperConfig
from shared.documents.run import FIRST_VERSION, FileEntry, PolicyVersion
from shared.errors import DataError
from shared.http.listening import listening_socket, reachable
from shared.processes.waits import Wait, waiting
from shared.store import Store
from shared.weights.adapters import ADAPTER_FOLDER
from shared.weights.assembly import Assembly
from shared.weights.files import DELTA_FILE
from shared.weights.pulling.chunked_file import Shelf
from shared.weights.pulling.client import Pulled, pull
from shared.weights.pulling.server import WeightsApp, serving_weights

log = logging.getLogger(__name__)

KEPT = 2  # versions whose files stay, for keepers that are later


class NotPulled(DataError):
    """The files of a version are not here yet: it is tried again."""


@dataclass(frozen=True, slots=True)
class Local:
    """A version and all published ones, with paths of this machine; what pulling took."""

    target: PolicyVersion
    published: list[PolicyVersion]
    seconds: float
    bytes: int


class PulledVersions:
    """`folder`: of this keeper alone. `url`: where others pull from it; None: it has pulled nothing."""

    def __init__(self, store: Store, config: KeeperConfig, folder: Path) -> None:
        self._store, self._config, self._folder = store, config, folder
        self._shelf = Shelf()
        self._server = AsyncExitStack()
        self._is_ending = False
        self.url: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_ending = True
        await self._server.aclose()

    def is_needed(self, target: PolicyVersion) -> bool:
        """Whether it is pulled and not read from the trainer's disk."""
        if self._config.weight_transport != "auto":
            return self._config.weight_transport == "peers"
        return target.source is not None and not all(map(_is_here, _files_of(target)))

    async def fetch(self, target: PolicyVersion, published: Sequence[PolicyVersion], assembly: Assembly) -> Local:
        """Pull what the cheapest route to `target` needs. Raises NotPulled."""
        here = {version.version: self._moved(version) for version in published}
        routes = assembly.routes(here[target.version], list(here.values()))
        needed: list[tuple[Path, FileEntry]] = []
        if routes:
            best = routes[0]
            if not best.cached and best.folder == Path(best.start.path) and best.start.version != FIRST_VERSION:
                needed += [(best.folder / name, entry) for name, entry in best.start.files.items()]
            for step in best.steps:
                needed += changes_of(step)
        local = await self._pull(target, needed)
        return Local(here[target.version], list(here.values()), local.seconds, local.bytes)

    async def fetch_adapter(self, target: PolicyVersion) -> PolicyVersion:
        """For an engine that loads adapters itself. Raises NotPulled."""
        moved = self._moved(target)
        await self._pull(target, changes_of(moved))
        return moved

    def _moved(self, version: PolicyVersion) -> PolicyVersion:
        """With its folder on this machine."""
        first = self._config.model_name_or_path.resolve()
        path = first if version.version == FIRST_VERSION else self._folder / _folder_of(version)
        return version.model_copy(update={"path": str(path)})

    async def _pull(self, target: PolicyVersion, needed: Sequence[tuple[Path, FileEntry]]) -> Pulled:
        await self._serve()
        started, total = time.monotonic(), Pulled()
        missing = [(path, entry) for path, entry in needed if not path.is_file()]
        sources = await self._sources(target) if missing else []
        wait = Wait(f"the files of version {target.version}", f"pulled from {', '.join(sources)}", "all are here")
        with waiting(wait) if missing else nullcontext():
            await self._pull_all(target, missing, sources, total)
        total.seconds = time.monotonic() - started
        if missing:
            await asyncio.to_thread(self._delete_old, [path for path, _ in needed])
            log.info("pulled version=%d seconds=%.2f bytes=%s", target.version, total.seconds, total.bytes_from)
        return total

    async def _serve(self) -> None:
        if self.url is None:
            host = self._config.engine_host
            listener = listening_socket(host, 0, "engine_host")
            await self._server.enter_async_context(serving_weights(WeightsApp(self._shelf), listener))
            self.url = f"http://{reachable(host)}:{listener.getsockname()[1]}"

    async def _pull_all(
        self, target: PolicyVersion, missing: Sequence[tuple[Path, FileEntry]], sources: Sequence[str], total: Pulled
    ) -> None:
        for path, entry in missing:
            try:
                pulled = await asyncio.to_thread(
                    pull,
                    path,
                    entry["sha256"],
                    entry["bytes"],
                    sources,
                    shelf=self._shelf,
                    is_stopped=lambda: self._is_ending,
                )
            except (DataError, OSError) as exc:
                raise NotPulled(f"version {target.version} is not pulled: {exc}") from exc
            except asyncio.CancelledError:
                self._is_ending = True  # the thread ends with its next chunk
                raise
            for url, count in pulled.bytes_from.items():
                total.bytes_from[url] = total.bytes_from.get(url, 0) + count

    async def _sources(self, target: PolicyVersion) -> list[str]:
        """The trainer's machine first. Raises NotPulled."""
        live = await self._store.services.live(self._config.policy)
        peers = [one.weights_url for one in live if one.weights_url not in (None, self.url)]
        sources = [url for url in dict.fromkeys([target.source, *peers]) if url is not None]
        if not sources:
            raise NotPulled(
                f"version {target.version} has no source: expected a trainer with weight_transport peers, or weight_transport "
                "disk here if this machine sees the trainer's disk"
            )
        return sources

    def _delete_old(self, needed: Sequence[Path]) -> None:
        for folder in sorted(self._folder.glob("v[0-9]*"))[:-KEPT]:
            if not any(path.is_relative_to(folder) for path in needed):
                shutil.rmtree(folder, ignore_errors=True)
        self._shelf.drop_deleted()


def _folder_of(version: PolicyVersion) -> str:
    """By number and contents: a cache may be left of another run."""
    entries = [*version.files.values(), *([version.delta] if version.delta else []), *(version.adapter or {}).values()]
    contents = hashlib.sha256("".join(entry["sha256"] for entry in entries).encode()).hexdigest()
    return f"v{version.version:06d}-{contents[:12]}"


def _files_of(version: PolicyVersion) -> list[tuple[Path, FileEntry]]:
    whole = [(Path(version.path) / name, entry) for name, entry in version.files.items()]
    return whole + changes_of(version)


def _is_here(named: tuple[Path, FileEntry]) -> bool:
    path, entry = named
    return path.is_file() and path.stat().st_size == entry["bytes"]


def changes_of(version: PolicyVersion) -> list[tuple[Path, FileEntry]]:
    """The files that turn its base into it."""
    folder = Path(version.path)
    delta = [(folder / DELTA_FILE, version.delta)] if version.delta is not None else []
    return delta + [(folder / ADAPTER_FOLDER / name, entry) for name, entry in (version.adapter or {}).items()]
