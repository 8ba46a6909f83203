"""Starts an engine for a benchmark, as the launcher would on processors, in one of the settings that are compared."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from shared.errors import TandemError
from shared.processes.mongod import free_port

ROOT = Path(__file__).parents[2]
SCRIPTS = {kind: ROOT / "scripts" / f"{kind}_cpu.sh" for kind in ("vllm", "sglang")}
START_S = 600.0
CHUNK, CONTEXT = 256, 1024  # tokens
WAYS = {  # flags of each engine for each setting; the data type is added
    "vllm": {
        "chunks, cache": f"--enable-chunked-prefill --max-num-batched-tokens {CHUNK} --enable-prefix-caching",
        "cache": f"--no-enable-chunked-prefill --max-num-batched-tokens {4 * CONTEXT} --enable-prefix-caching",
        "chunks": f"--enable-chunked-prefill --max-num-batched-tokens {CHUNK} --no-enable-prefix-caching",
    },
    "sglang": {
        "chunks, cache": f"--chunked-prefill-size {CHUNK}",
        "cache": "--chunked-prefill-size -1",
        "chunks": f"--chunked-prefill-size {CHUNK} --disable-radix-cache",
    },
}
MORE = {  # without its fraction SGLang keeps all memory free for a prefill that is not chunked, and does not start
    "vllm": f"--max-model-len {CONTEXT} --enforce-eager",
    "sglang": f"--context-length {CONTEXT} --mem-fraction-static 0.3",
}


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """One start of an engine. `way`: chunked prefill and prefix cache, if they are on."""

    kind: str
    dtype: str
    way: str
    requests: int = 16

    def command(self, model: Path, port: int) -> list[str]:
        place = ["--port", str(port), "--weight-version", "0"]
        if self.kind == "local":
            own = ["--context-length", str(CONTEXT), "--max-running-requests", str(self.requests)]
            return [sys.executable, "-m", "sampler.engine.local", "--model-path", str(model), *place, *own]
        flags = ["--dtype", self.dtype, *MORE[self.kind].split(), *WAYS[self.kind][self.way].split()]
        return [str(SCRIPTS[self.kind]), "serve", str(model), *place, *flags]


def installed(kind: str) -> bool:
    """Raises TandemError for an engine that no benchmark knows."""
    if kind not in ("local", *SCRIPTS):
        raise TandemError(f"--engines names {kind!r}; expected some of local, vllm, sglang")
    return (
        kind == "local" or not subprocess.run([SCRIPTS[kind], "installed"], check=False, capture_output=True).returncode
    )


@contextmanager
def running(setting: EngineSetting, model: Path, folder: Path) -> Iterator[str]:
    """Its URL, once it answers. Raises TandemError with the end of its log."""
    port, log = free_port(), folder / f"{setting.kind}-{setting.dtype}-{setting.way.replace(', ', '-')}.log"
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            setting.command(model, port),
            cwd=ROOT,
            env={"OMP_NUM_THREADS": "1", **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_S
        while not answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise TandemError(f"{setting} did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)  # a child gives no signal when its port opens
        yield url
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it left
        process.wait(60)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/model_info", timeout=2).status_code == 200
    except httpx.TransportError:
        return False
