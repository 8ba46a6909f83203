"""Files pulled in chunks, over real HTTP: from several machines, damaged ones, dead ones, and after an interruption."""

import asyncio
import hashlib
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.errors import DataError
from shared.weights.pulling.chunked_file import ChunkedFile, Chunking, Shelf, digest_of
from shared.weights.pulling.client import pull
from shared.weights.pulling.server import WeightsApp, serving_weights

CHUNK = 4096
DATA = random.Random(0).randbytes(10 * CHUNK + 100)
SHA256 = hashlib.sha256(DATA).hexdigest()


def written(folder: Path, data: bytes = DATA) -> Path:
    path = folder / "published" / "model.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


@asynccontextmanager
async def machine(app: Any) -> AsyncIterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    async with serving_weights(app, listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def shelf_with(path: Path) -> Shelf:
    shelf = Shelf()
    shelf.put(SHA256, ChunkedFile.whole(path, chunk_bytes=CHUNK))
    return shelf


@asynccontextmanager
async def trainer(tmp_path: Path) -> AsyncIterator[tuple[str, WeightsApp]]:
    app = WeightsApp(shelf_with(written(tmp_path)))
    async with machine(app) as url:
        yield url, app


async def test_a_file_arrives_whole_and_is_served_on_while_it_grows(tmp_path: Path) -> None:
    async with trainer(tmp_path) as (url, _):
        shelf = Shelf()
        target = tmp_path / "a" / "model.safetensors"
        result = await asyncio.to_thread(pull, target, SHA256, len(DATA), [url], shelf=shelf)
        assert target.read_bytes() == DATA
        assert (result.bytes_from, result.resumed, result.problems) == ({url: len(DATA)}, 0, [])
        assert [path.name for path in target.parent.iterdir()] == ["model.safetensors"]
        async with machine(WeightsApp(shelf)) as peer:
            again = await asyncio.to_thread(pull, tmp_path / "b" / "x", SHA256, len(DATA), [peer])
            assert again.bytes_from == {peer: len(DATA)}


async def test_engines_that_pull_at_once_pull_from_each_other(tmp_path: Path) -> None:
    app = WeightsApp(shelf_with(written(tmp_path)))

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        async with uplink:
            await asyncio.sleep(0.1)  # its network sends one chunk at a time
            await app(scope, receive, send)

    uplink = asyncio.Lock()
    async with machine(slow) as url, AsyncExitStack() as stack:
        shelves = [Shelf() for _ in range(4)]
        peers = [await stack.enter_async_context(machine(WeightsApp(shelf))) for shelf in shelves]
        results = await asyncio.gather(
            *(
                asyncio.to_thread(
                    pull,
                    tmp_path / str(k) / "x",
                    SHA256,
                    len(DATA),
                    [url, *(p for p in peers if p != own)],
                    shelf=shelf,
                )
                for k, (own, shelf) in enumerate(zip(peers, shelves, strict=True))
            )
        )
        assert all((tmp_path / str(k) / "x").read_bytes() == DATA for k in range(4))
        assert all(result.bytes == len(DATA) for result in results)
        assert len(DATA) <= app.bytes_sent < 3 * len(DATA)


async def test_chunks_of_an_interrupted_attempt_are_used_if_their_digests_match(tmp_path: Path) -> None:
    async with trainer(tmp_path) as (url, app):
        target = tmp_path / "a" / "x"
        left = bytearray(DATA[: 5 * CHUNK])
        left[CHUNK + 7] ^= 1
        target.parent.mkdir()
        target.with_name("x.part").write_bytes(left)
        result = await asyncio.to_thread(pull, target, SHA256, len(DATA), [url])
        assert target.read_bytes() == DATA
        assert result.resumed == 4 * CHUNK
        assert app.bytes_sent == len(DATA) - 4 * CHUNK


async def test_a_stopped_attempt_says_what_is_missing_and_leaves_its_chunks(tmp_path: Path) -> None:
    async with trainer(tmp_path) as (url, app):
        target = tmp_path / "a" / "x"
        calls = iter(range(1000))
        with pytest.raises(DataError, match=r"x: [1-9][0-9]* of 11 chunks are missing: stopped"):
            await asyncio.to_thread(
                pull, target, SHA256, len(DATA), [url], is_stopped=lambda: app.bytes_sent > 3 * CHUNK or next(calls) < 0
            )
        result = await asyncio.to_thread(pull, target, SHA256, len(DATA), [url])
        assert result.resumed > 0
        assert target.read_bytes() == DATA


class Damaged:
    """Sends chunks of another file under the same description."""

    def __init__(self, inner: WeightsApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def changed(event: Any) -> None:
            if event["type"] == "http.response.body" and scope["path"].rsplit("/", 1)[-1].isdigit():
                event = {**event, "body": b"\0" * len(event["body"])}
            await send(event)

        await self._inner(scope, receive, changed)


async def test_damaged_chunks_of_one_source_come_from_another(tmp_path: Path) -> None:
    async with trainer(tmp_path) as (url, app), machine(Damaged(app)) as damaged:
        target = tmp_path / "a" / "x"
        result = await asyncio.to_thread(pull, target, SHA256, len(DATA), [damaged, url])
        assert target.read_bytes() == DATA
        assert result.bytes_from == {url: len(DATA)}
        assert any("another digest" in problem for problem in result.problems)
        with pytest.raises(DataError, match=r"11 of 11 chunks are missing: .* another digest"):
            await asyncio.to_thread(pull, tmp_path / "b" / "x", SHA256, len(DATA), [damaged])


async def test_a_dead_source_is_skipped(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
    async with trainer(tmp_path) as (url, _):
        target = tmp_path / "a" / "x"
        result = await asyncio.to_thread(pull, target, SHA256, len(DATA), [dead, url])
        assert target.read_bytes() == DATA
        assert any("ConnectionRefused" in problem for problem in result.problems)
    with pytest.raises(DataError, match=f"no source has file {SHA256}: {dead}: ConnectionRefusedError"):
        await asyncio.to_thread(pull, tmp_path / "b" / "x", SHA256, len(DATA), [dead])


async def test_a_source_with_digests_of_another_file_is_an_error(tmp_path: Path) -> None:
    other = bytes(reversed(DATA))
    shelf = Shelf()
    shelf.put(SHA256, ChunkedFile.whole(written(tmp_path, other), chunk_bytes=CHUNK))
    target = tmp_path / "a" / "x"
    async with machine(WeightsApp(shelf)) as url:
        with pytest.raises(DataError, match=f"expected {SHA256}: a source described another file"):
            await asyncio.to_thread(pull, target, SHA256, len(DATA), [url])
        with pytest.raises(DataError, match="expected 5"):
            await asyncio.to_thread(pull, target, SHA256, 5, [url])
    assert list(target.parent.iterdir()) == []


async def test_a_source_that_is_still_reading_its_file_is_waited_for(tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.expect(SHA256)
    target = tmp_path / "a" / "x"
    async with machine(WeightsApp(shelf)) as url:
        pulling = asyncio.create_task(asyncio.to_thread(pull, target, SHA256, len(DATA), [url]))
        await asyncio.sleep(0.3)  # the client meets a source that is not ready
        assert not pulling.done()
        shelf.put(SHA256, ChunkedFile.whole(written(tmp_path), chunk_bytes=CHUNK))
        await pulling
    assert target.read_bytes() == DATA


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/weights/../../etc/passwd",
        f"/weights/{SHA256}/11",
        f"/weights/{SHA256}/12345678",
        f"/weights/{SHA256}/-1",
        f"/weights/{SHA256.upper()}",
        f"/weights/{'0' * 64}",
        f"/weights/{SHA256}/held/1",
    ],
)
async def test_nothing_but_the_files_is_served(tmp_path: Path, path: str) -> None:
    async with trainer(tmp_path) as (url, app), httpx.AsyncClient(base_url=url) as client:
        assert (await client.get(path)).status_code == 404
        assert (await client.post(f"/weights/{SHA256}")).status_code == 404
        assert app.bytes_sent == 0


async def test_a_deleted_file_is_not_here_any_more(tmp_path: Path) -> None:
    async with trainer(tmp_path) as (url, _), httpx.AsyncClient(base_url=url) as client:
        written(tmp_path).unlink()
        assert (await client.get(f"/weights/{SHA256}/0")).status_code == 404


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"{}",
        b'{"bytes": 1, "chunk_bytes": 0, "digests": []}',
        b'{"bytes": 9, "chunk_bytes": 4, "digests": ["x"]}',
    ],
)
async def test_a_description_that_is_none_is_an_error(tmp_path: Path, answer: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(answer)).encode())]}
        )
        await send({"type": "http.response.body", "body": answer})

    async with machine(app) as url:
        with pytest.raises(DataError, match="no source has file"):
            await asyncio.to_thread(pull, tmp_path / "x", SHA256, 9, [url])


def test_digests_are_one_for_each_chunk(tmp_path: Path) -> None:
    file = ChunkedFile.whole(written(tmp_path), chunk_bytes=CHUNK)
    assert [file.chunking.length(n) for n in (0, 9, 10)] == [CHUNK, CHUNK, 100]
    assert file.chunking.digests[10] == digest_of(DATA[10 * CHUNK :])
    with pytest.raises(DataError, match="expected one for"):
        Chunking(len(DATA), CHUNK, file.chunking.digests[:-1])
    empty = ChunkedFile.whole(written(tmp_path, b""))
    assert (empty.missing, empty.chunking.digests) == ([], ())


async def test_a_hanging_source_delays_nothing(tmp_path: Path) -> None:
    release = threading.Event()

    def held(inner: WeightsApp) -> Callable[..., Any]:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"].rsplit("/", 1)[-1].isdigit():
                await asyncio.to_thread(release.wait, 20)
            await inner(scope, receive, send)

        return app

    async with trainer(tmp_path) as (url, app), machine(held(app)) as slow:
        try:
            result = await asyncio.to_thread(pull, tmp_path / "a" / "x", SHA256, len(DATA), [url, slow])
        finally:
            release.set()
        assert result.seconds < 15
        assert result.bytes_from == {url: len(DATA)}


class Late:
    """Has nothing until `begin` is set."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.begin = inner, asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = self._inner if self.begin.is_set() else WeightsApp(Shelf())
        await app(scope, receive, send)


def description_alone(tmp_path: Path) -> Any:
    """Describes the file, and has no chunk of it."""
    described, nothing = WeightsApp(shelf_with(written(tmp_path))), WeightsApp(Shelf())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (described if scope["path"].endswith(SHA256) else nothing)(scope, receive, send)

    return app


async def test_a_peer_that_begins_later_is_used(tmp_path: Path) -> None:
    late = Late(WeightsApp(shelf_with(written(tmp_path))))
    async with machine(description_alone(tmp_path)) as first, machine(late) as peer:
        target = tmp_path / "a" / "x"
        pulling = asyncio.create_task(asyncio.to_thread(pull, target, SHA256, len(DATA), [first, peer]))
        await asyncio.sleep(1)  # the peer answers 404 to far more than TRIES requests
        late.begin.set()
        assert (await pulling).bytes_from == {peer: len(DATA)}
    assert target.read_bytes() == DATA


async def test_pulling_ends_where_no_chunk_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.weights.pulling.client.QUIET_S", 0.5)
    began = time.monotonic()
    async with machine(description_alone(tmp_path)) as url:
        with pytest.raises(DataError, match=r"11 of 11 chunks are missing: .*NotHere"):
            await asyncio.to_thread(
                pull, tmp_path / "x", SHA256, len(DATA), [url], is_stopped=lambda: time.monotonic() > began + 30
            )
    assert time.monotonic() < began + 30
