"""A trainer in this process that broadcasts its published weights with its real sender, and a check of an engine's weights."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch
from safetensors.torch import load_file

from shared.documents.run import PolicyVersion
from shared.documents.states import OfferState
from shared.store import Store
from shared.weights.files import WEIGHTS_FILE, manifest_of
from tests.contract.engines import Engine
from tests.contract.flights import Until
from tests.contract.kept import POLICY, Wire
from trainer.publishing.broadcast import Broadcaster
from trainer.settings.publish import BroadcastSettings

UPDATE = "/update_weights_from_distributed"
SETTINGS = BroadcastSettings(
    "127.0.0.1", 0, "gloo", "cpu", join_s=60.0, limit_s=60.0, bucket_bytes=1 << 20
)  # the bundled model takes four buckets


class Trainer:
    """The publisher's steps for a written version: offer, announce, send in parallel."""

    def __init__(self, store: Store, engine: Engine, folder: Path, **settings: Any) -> None:
        self.broadcaster = Broadcaster(store, POLICY, replace(SETTINGS, **settings))
        self._store, self._engine, self._folder = store, engine, folder
        self.version = 0

    async def publish(self, *, offer: bool = True) -> None:
        self.version += 1
        path = self._folder / str(self.version)
        shutil.copytree(self._engine.weights(self.version), path)
        found = await self.broadcaster.offer() if offer else None
        assert offer == (found is not None)
        version = await self._store.versions.announce(POLICY, self.version, str(path), manifest_of(path), offer=found)
        assert version.version == self.version, "versions are numbered as models are chosen"
        if offer:
            await self.broadcaster.start(version)

    async def announced(self) -> PolicyVersion:
        return await self._store.versions.get(POLICY, self.version)

    async def ended(self, until: Until) -> PolicyVersion:
        async def over() -> bool:
            offer = (await self.announced()).offer
            return offer is not None and offer.state not in (OfferState.OPEN, OfferState.SENDING)

        await until(over)
        return await self.announced()


def senders() -> list[int]:
    """The pids of this process's senders."""
    return [child.pid for child in psutil.Process().children() if "trainer.publishing.send" in child.cmdline()]


@asynccontextmanager
async def training(store: Store, engine: Engine, folder: Path, **settings: Any) -> AsyncIterator[Trainer]:
    trainer = Trainer(store, engine, folder, **settings)
    try:
        await trainer.broadcaster.offer()  # starting the sender takes seconds
        yield trainer
    finally:
        await asyncio.wait_for(trainer.broadcaster.end(), 120)


class HeldSecond(Wire):
    """Delays the second request to `path` until released."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.reached, self.let_go = asyncio.Event(), asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == self.path and self.asked.count(self.path) == 1:
            self.reached.set()
            await asyncio.wait_for(self.let_go.wait(), 60)
        return await super().handle_async_request(request)


async def assert_holds(engine: Engine, version: int, every: int = 5) -> None:
    """Its weights bit for bit, or every so many tensors of them: of all buckets. SGLang and vLLM tell a checksum of all, which is
    held against that after they have loaded the same file from disk.
    """
    expected = load_file(engine.weights(version) / WEIGHTS_FILE)
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as http:
        if engine.kind != "local":
            found = (await http.post("/weights_checker", json={"action": "checksum"})).json()["per_engine_checksum"]
            body = {"model_path": str(engine.weights(version)), "weight_version": str(version)}
            assert (await http.post("/update_weights_from_disk", json=body)).is_success
            assert (
                found
                == (await http.post("/weights_checker", json={"action": "checksum"})).json()["per_engine_checksum"]
            )
            return
        for name, tensor in list(expected.items())[::every]:
            answer = await http.post("/get_weights_by_name", json={"name": name, "truncate_size": 1 << 20})
            held = torch.tensor(answer.json(), dtype=torch.float32)
            assert torch.equal(held.view(torch.int32), tensor.view(torch.int32)), name
