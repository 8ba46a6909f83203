"""HTTP by hand over one connection: a client that costs a tenth of a library's."""

import asyncio

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RawConnection:
    """Opened with the first request, and open until it is closed."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._streams: Streams | None = None

    async def send(self, method: str, path: str, body: bytes = b"", headers: str = "") -> tuple[dict[str, str], bytes]:
        """Headers and body of the answer. Raises RuntimeError for a status that is no success."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        answer = await _body(reader, fields)
        if status.split()[1] not in ("200", "202"):
            raise RuntimeError(f"{method} {path}: {status}: {answer[:500]!r}")
        return fields, answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _body(reader: asyncio.StreamReader, fields: dict[str, str]) -> bytes:
    if "content-length" in fields:
        return await reader.readexactly(int(fields["content-length"]))
    body, size = b"", -1
    while size:  # chunked
        size = int((await reader.readuntil(b"\r\n")).strip(), 16)
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    return body
