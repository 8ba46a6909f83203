"""Serves the published versions' files to keepers on machines that do not see the trainer's disk (`weight_transport: peers`).

    publish ─▶ files on disk ─▶ named to the server, a child process ─▶ announced with its URL (`source`)
                                  └ reads them for the digests of their chunks, while keepers wait

Keepers pull chunks from here and from each other (`shared.weights.pulling`). A server that exited is started again with the next
version; the URL of older versions is corrected.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from shared.documents.run import FileEntry, InferenceService, VersionKind
from shared.errors import DataError
from shared.http.listening import in_url
from shared.processes.waits import Wait, waiting
from shared.store import Store
from shared.weights.adapters import ADAPTER_FOLDER
from shared.weights.files import DELTA_FILE
from trainer.publishing.child_program import ChildFailed, ChildProgram
from trainer.settings.publish import TransportSettings

log = logging.getLogger(__name__)

ANSWER_S = 30.0
END_POLL_S = 0.2


class HasFiles(Protocol):
    """A version, announced or not."""

    @property
    def path(self) -> str | Path: ...
    @property
    def kind(self) -> VersionKind: ...
    @property
    def files(self) -> Mapping[str, FileEntry]: ...
    @property
    def delta(self) -> FileEntry | None: ...
    @property
    def adapter(self) -> Mapping[str, FileEntry] | None: ...


class WeightsServer:
    """Its coroutines run on the store's loop."""

    def __init__(self, store: Store, policy: str, transport: TransportSettings) -> None:
        self._store, self._policy = store, policy
        self._limit_s = transport.broadcast_limit_s
        self._address, self._port = transport.address, transport.broadcast_port
        self._child = ChildProgram("trainer.publishing.serve_weights")
        self._url: str | None = None

    async def serve(self, versions: Iterable[HasFiles]) -> str:
        """Serve the files of `versions`, and of no others; returns the URL. Raises DataError if the server does not start."""
        files = {entry["sha256"]: str(path) for version in versions for path, entry in files_of(version)}
        try:
            if not self._child.runs:
                question = {"do": "open", "address": self._address, "port": self._port}
                port = int((await self._child.call(question, ANSWER_S))["port"])
                self._url = f"http://{in_url(self._address)}:{port}"
            await self._child.call({"do": "serve", "files": files}, ANSWER_S)
        except ChildFailed as exc:
            raise DataError(
                f"weight_transport peers: the server of weights at {self._address}:{self._port} does not run: {exc}; expected "
                "broadcast_address and broadcast_port to be free and of this machine"
            ) from exc
        assert self._url is not None, "set with the port"
        await self._store.versions.set_source(self._policy, self._url)
        return self._url

    async def end(self, version: int) -> None:
        """Wait until the keepers that pull have `version`, the last one, for `limit_s` at most; end the server."""
        limit_s, waited = self._limit_s, asyncio.get_running_loop().time()
        with waiting(
            Wait(f"keepers that pull version {version}", "", f"all have it, for {limit_s:g} s at most"), inside=True
        ) as wait:
            while missing := [one.url for one in await self._store.services.live(self._policy) if lacks(one, version)]:
                if asyncio.get_running_loop().time() > waited + limit_s:
                    log.warning("keepers without the last version=%d: %s", version, ", ".join(missing))
                    break
                wait.set(
                    Wait(
                        f"keepers that pull version {version}",
                        ", ".join(missing),
                        f"all have it, for {limit_s:g} s at most",
                    )
                )
                await asyncio.sleep(END_POLL_S)
        await self._child.kill()


def lacks(service: InferenceService, version: int) -> bool:
    """Whether its keeper still wants files from here. One that lags on purpose, or serves one version, does not."""
    pulls = service.weights_url is not None and service.serve_version is None and service.follow_every == 1
    return pulls and service.version < version


def files_of(version: HasFiles) -> Iterator[tuple[Path, FileEntry]]:
    """The files that lie in the version's folder."""
    folder = Path(version.path)
    if version.kind == "full":
        yield from ((folder / name, entry) for name, entry in version.files.items())
    if version.delta is not None:
        yield folder / DELTA_FILE, version.delta
    for name, entry in (version.adapter or {}).items():
        yield folder / ADAPTER_FOLDER / name, entry
