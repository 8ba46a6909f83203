"""Starts `verifiers_server.py` with the Python whose environment has verifiers."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sampler.parsers.reply import END_THINK, THINK
from scripts.bench.sampler_under_test import ROOT, Bench, wait_for_port
from shared.processes.mongod import free_port

SERVER = ROOT / "scripts" / "bench" / "verifiers_server.py"


@contextmanager
def verifiers_process(python: str, bench: Bench) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process, and the URL where rollouts are claimed."""
    port = free_port()
    command = [
        python,
        str(SERVER),
        "--port",
        str(port),
        "--engine-url",
        bench.engine_url,
        "--tokens",
        str(bench.tokens),
    ]
    command += ["--model-path", str(_with_thinking(bench.model, bench.folder / "verifiers_model"))]
    path = bench.folder / "verifiers.log"
    with path.open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for_port(port)
            yield process, f"http://127.0.0.1:{port}"
        except OSError:
            raise SystemExit(f"the server of verifiers does not listen:\n{path.read_text()[-2000:]}") from None
        finally:
            process.kill()  # it has nothing to end
            process.wait(60)


def _with_thinking(model: Path, folder: Path) -> Path:
    """A copy of the model's tokenizer that has the tokens of reasoning, which its Qwen3 renderer looks up."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    used = max([*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])])
    like = {name: value for name, value in tokenizer["added_tokens"][-1].items() if name not in ("id", "content")}
    tokenizer["added_tokens"] += [
        {"id": number, "content": text, **like} for number, text in enumerate((THINK, END_THINK), start=used + 1)
    ]
    path.write_text(json.dumps(tokenizer))
    return folder
