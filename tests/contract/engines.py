"""The tested engines, started as separate processes, and plain transformers forwards as their reference.

Convention of every test here: weight version v is `models[v % 2]`, so that any token can be rescored under its version.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from sampler.core.engines.client.generation import Generation
from sampler.engine.keeper.child import command_line
from shared.processes.mongod import free_port

ROOT = Path(__file__).parents[2]
SGLANG_SCRIPT = ROOT / "scripts" / "sglang_cpu.sh"
VLLM_SCRIPT = ROOT / "scripts" / "vllm_cpu.sh"
SCRIPTS = {"sglang": SGLANG_SCRIPT, "vllm": VLLM_SCRIPT}
VLLM_PYTHON = ROOT / ".vllm" / "venv" / "bin" / "python"
MODEL = ROOT / "assets" / "example" / "model"
CONTEXT = 1024
START_S = 280.0  # SGLang: 15 s on an idle machine, 130 s where ten processes want two cores
EXACT = 1e-4  # natural logarithms; of 40,000 tokens of the local engine, which computes in float32, 2.6e-5 was the most

COMMANDS = {
    "local": None,
    "sglang": f"{shlex.quote(str(SGLANG_SCRIPT))} serve {{model}} --port {{port}}",
    "vllm": f"{shlex.quote(str(VLLM_SCRIPT))} serve {{model}} --port {{port}}",
    "sglang-gpu": f"{shlex.quote(sys.executable)} -m sglang.launch_server --model-path {{model}} --port {{port}} "
    "--dtype float32 --base-gpu-id 1",
}  # for a keeper


class Reference:
    """Log-probs of the two checkpoints in float64, by transformers."""

    def __init__(self, models: Sequence[Path]) -> None:
        torch.set_num_threads(1)
        self._models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval() for path in models]

    @torch.inference_mode()
    def logprobs(
        self, version: int, prompt: Sequence[int], output: Sequence[int], temperature: float = 1.0
    ) -> list[float]:
        ids = torch.tensor([[*prompt, *output]])
        logits = self._models[version % 2](input_ids=ids).logits[0, len(prompt) - 1 : -1]
        chosen = (logits / temperature).log_softmax(-1).gather(1, torch.tensor(output)[:, None])
        found: list[float] = chosen[:, 0].tolist()
        return found

    @torch.inference_mode()
    def filtered(
        self, version: int, prompt: Sequence[int], output: Sequence[int], params: Mapping[str, float]
    ) -> list[float]:
        """Log-probs of what temperature, min-p, top-k and top-p leave, in this order."""
        ids = torch.tensor([[*prompt, *output]])
        logits = self._models[version % 2](input_ids=ids).logits[0, len(prompt) - 1 : -1] / params.get(
            "temperature", 1.0
        )
        probs = logits.softmax(-1)
        logits[probs < params.get("min_p", 0.0) * probs.max(-1, keepdim=True).values] = -torch.inf
        if "top_k" in params:
            logits[logits < logits.topk(int(params["top_k"])).values[:, -1:]] = -torch.inf
        ordered, order = logits.softmax(-1).sort(descending=True)
        beyond = ordered.cumsum(-1) - ordered > params.get("top_p", 1.0)
        logits[beyond.scatter(1, order, beyond)] = -torch.inf
        found: list[float] = logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0].tolist()
        return found

    @torch.inference_mode()
    def greedy(self, version: int, prompt: Sequence[int], count: int) -> list[int]:
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self._models[version % 2](input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(prompt) :]

    def untrue(self, prompt: Sequence[int], found: Generation, temperature: float = 1.0) -> list[int]:
        """The output tokens whose log-prob is wrong under their recorded weight version."""
        wrong, start = [], 0
        for version, count in found.version_runs:
            expected = self.logprobs(version, prompt, found.output_ids, temperature)
            run = range(start, start + count)
            wrong += [at for at in run if abs(found.logprobs[at] - expected[at]) > EXACT]
            start += count
        assert start == len(found.output_ids) == len(found.logprobs)
        return wrong

    def assert_truthful(self, prompt: Sequence[int], found: Generation, temperature: float = 1.0) -> None:
        wrong = self.untrue(prompt, found, temperature)
        assert not wrong, f"log-probs of tokens {wrong[:5]} are not those of their version; runs {found.version_runs}"


@dataclass(frozen=True)
class Engine:
    """A running engine. `kind` is "local", "sglang" or "vllm"; `label` is the version that it has at a test's begin."""

    kind: str
    url: str
    models: tuple[Path, Path]
    reference: Reference
    label: int = 0

    def weights(self, version: int) -> Path:
        return self.models[version % 2]


@contextmanager
def running(kind: str, model: Path, log: Path, *flags: str) -> Iterator[str]:
    """The URL of an engine of that kind over `model`, once it answers. Skips the test if the engine is not installed."""
    with started(kind, model, log, flags=flags) as (url, _):
        yield url


@contextmanager
def started(
    kind: str, model: Path, log: Path, key: str | None = None, flags: Sequence[str] = ()
) -> "Iterator[tuple[str, subprocess.Popen[bytes]]]":
    """Also yields its process, which a test may kill. `key`: the engine's API key."""
    if kind in SCRIPTS:
        skip_without(kind)
    port = free_port()
    command = command_line(COMMANDS[kind], model, port)
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--weight-version", "0", *(["--api-key", key] if key else []), *flags],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_for(url, process, log)
        yield url, process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # remaining processes of SGLang or vLLM
        process.wait(60)


def skip_without(kind: str) -> None:
    """The reason goes to pytest's summary, which counts it; scripts/check installs both and says it loudly where it cannot."""
    if os.environ.get(f"CHECK_{kind.upper()}") == "0":
        pytest.skip(f"the real {kind} was left out by CHECK_{kind.upper()}=0")
    if subprocess.run([SCRIPTS[kind], "installed"], check=False, capture_output=True).returncode:
        pytest.skip(f"the real {kind} is not installed: {SCRIPTS[kind].relative_to(ROOT)} install")


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            if httpx.get(url + "/model_info", timeout=2).status_code in (200, 401):
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"{url} did not start; the end of its log:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)  # a child gives no signal when its port opens
