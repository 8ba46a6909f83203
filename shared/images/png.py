"""Writes PNG files, by the standard library alone: also where neither Pillow nor numpy is installed."""

import struct
import zlib

_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # of PNG, by the number of channels


def png(raw: bytes, width: int, height: int, channels: int, compression: int = 6) -> bytes:
    """`raw`: height x width x channels of 8 bits; 1: gray, 3: red, green and blue; 2 and 4: with alpha behind them.
    `compression`: of zlib, 1 to 9.
    """
    row = width * channels
    lines = b"".join(b"\0" + raw[at : at + row] for at in range(0, len(raw), row))
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, compression)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
