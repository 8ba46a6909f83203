"""A client of `shared.images.worker`: one child process, one image at a time, restarted when it has ended.

The child ends with this process, when its standard input closes. Nothing that it sends is trusted: sizes are bounded here too.
"""

import contextlib
import fcntl
import os
import select
import subprocess
import time
from typing import IO

import numpy as np
import numpy.typing as npt

from shared.images.bounds import ImageBounds
from shared.images.worker import DECODED, MAX_REFUSAL_BYTES, REPLY, REQUEST
from shared.processes.run_module import command

PIPE_BYTES = 1 << 20  # the most that a user may set; 64 KB by default
# Contains no secret: others can read a process's environment. The last one marks children of the launcher.
INHERITED = ("PATH", "HOME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR", "TANDEM_CHILD_OF")


class ImageRefused(Exception):
    """The decoder refuses the file; the message is a predicate, without a subject."""


class DecoderEnded(Exception):
    """`status`: as of `Popen.returncode`."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the image decoder ended with status {status}")
        self.status = status


class DecoderProcess:
    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def decode(self, data: bytes, kind: str, bounds: ImageBounds, wall_s: float) -> npt.NDArray[np.uint8]:
        """Pixels, height x width x 3. Raises ImageRefused, DecoderEnded and TimeoutError."""
        child, end = self._running(), time.monotonic() + wall_s
        assert child.stdin is not None
        assert child.stdout is not None
        head = REQUEST.pack(kind.encode(), len(data), bounds.max_pixels, bounds.cpu_s, bounds.memory_bytes)
        try:
            _write(child.stdin, head, end)
            _write(child.stdin, data, end)
            reply, first, second = REPLY.unpack(_read(child.stdout, bytearray(REPLY.size), end))
            if reply == DECODED and 0 < first * second <= bounds.max_pixels:
                pixels = np.empty((first, second, 3), np.uint8)
                _read(child.stdout, pixels.reshape(-1).data, end)
                return pixels
            if reply == DECODED or first > MAX_REFUSAL_BYTES:
                raise DecoderEnded(0)
            why = bytes(_read(child.stdout, bytearray(first), end)).decode("utf-8", "replace")
        except EOFError as exc:
            status = child.wait(max(1.0, end - time.monotonic()))
            raise DecoderEnded(status) from exc
        except BaseException:  # raised again, also Ctrl-C: a late reply would be taken for the next request's
            self.close()
            raise
        raise ImageRefused(why)

    def close(self) -> None:
        """End the child. The next image starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with child:  # waits, and closes the pipes
                pass

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._child is not None and self._child.poll() is not None:
            self.close()
        if self._child is None:
            self._child = subprocess.Popen(
                command("shared.images.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={name: os.environ[name] for name in INHERITED if name in os.environ},
            )
            for pipe in (self._child.stdin, self._child.stdout):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                with contextlib.suppress(OSError):  # this user's pipes have reached their limit: only slower
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return self._child


def _write(pipe: IO[bytes], data: bytes, end: float) -> None:
    """Raises EOFError if the other end has closed, and TimeoutError."""
    rest = memoryview(data)
    while rest:
        _await(pipe, select.POLLOUT, end)
        try:
            rest = rest[os.write(pipe.fileno(), rest) :]
        except BlockingIOError:  # less space than the kernel's unit
            continue
        except BrokenPipeError as exc:
            raise EOFError from exc


def _read(pipe: IO[bytes], into: "bytearray | memoryview", end: float) -> "bytearray | memoryview":
    """Fill `into`. Raises EOFError and TimeoutError."""
    rest = memoryview(into)
    while rest:
        _await(pipe, select.POLLIN, end)
        num_bytes = os.readv(pipe.fileno(), [rest])
        if num_bytes == 0:
            raise EOFError
        rest = rest[num_bytes:]
    return into


def _await(pipe: IO[bytes], event: int, end: float) -> None:
    waiting = select.poll()
    waiting.register(pipe, event)
    if not waiting.poll(max(0.0, 1000 * (end - time.monotonic()))):
        raise TimeoutError
