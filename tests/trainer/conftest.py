"""One tiny model on disk, one process that trains alone, and one launch of two processes, shared by the tests of the trainer."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from shared.processes.mongod import Mongod, free_port
from tests.trainer.builders import tiny_model
from tests.trainer.streams import RUN
from trainer.modeling.float64_norms import exact_norms
from trainer.process.parallel import Parallel, parallel_session
from trainer.process.store_bridge import StoreBridge

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Launch:
    """A finished launch of `tests.trainer.launched`."""

    out: Path
    output: str


@pytest.fixture(scope="module")
def model() -> Iterator[PreTrainedModel]:
    """The tiny model in float64 throughout."""
    torch.set_num_threads(1)
    made = tiny_model()
    with exact_norms(made):
        yield made


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    tiny_model().save_pretrained(directory)
    return directory


@pytest.fixture
def alone() -> Iterator[Parallel]:
    """A session of one process, without a launcher."""
    with parallel_session("cpu", num_threads=1) as parallel:
        yield parallel


@pytest.fixture
def bridge(mongod: Mongod) -> Iterator[StoreBridge]:
    with StoreBridge(mongod.connection_string, RUN) as bridge:
        yield bridge
        bridge(bridge.store.client.drop_database(RUN))


@pytest.fixture(
    scope="session", params=["two_processes"]
)  # the id by which tests/conftest.py knows who shares the launch
def two_processes(tmp_path_factory: pytest.TempPathFactory, model_directory: Path) -> Launch:
    out = tmp_path_factory.mktemp("launched")
    arguments = ["-m", "tests.trainer.launched", str(out), str(model_directory)]
    done = launch("--config_file", "assets/fsdp2.yml", "--num_processes", "2", *arguments, TMPDIR=str(out))
    assert done.returncode == 0, done.stdout
    return Launch(out, done.stdout)


def launch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `accelerate launch` to its end; standard output and error together in `stdout`."""
    return subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", str(free_port()), *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,  # 20 s on an idle machine
        check=False,
    )


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes as tokens, with the template of the bundled example."""
    alphabet = {byte: index for index, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.chat_template = (ROOT / "assets" / "example" / "chat_template.jinja").read_text(encoding="utf-8")
    return tokenizer
