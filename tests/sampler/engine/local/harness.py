"""Tiny random models, a real engine over them in a child process, and plain transformers forwards as reference."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from shared.processes.mongod import free_port

ROOT = Path(__file__).parents[4]
VOCABULARY, CONTEXT = 320, 256
START_S = 150.0  # 5 s on an idle machine
# Of a log-prob that the engine computes in float32, in nats: 8.5e-6 was the largest of 300 answers of 200 tokens. Where the
# engine computes something else, it is beyond 1e-3.
ROUNDING = 5e-5


def write_tokenizer(folder: Path) -> int:
    """A byte-level BPE with three special tokens; returns the id of its end-of-sequence token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 20,  # some ids have no text, as in real models
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog and thinks about it"] * 20, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.save_pretrained(folder)
    return int(tokenizer.token_to_id("<|im_end|>"))


def write_model(folder: Path, seed: int) -> Path:
    eos = write_tokenizer(folder)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=CONTEXT, tie_word_embeddings=True,
        initializer_range=0.2, eos_token_id=eos, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=0)
    model.save_pretrained(folder)
    return folder


class Reference:
    """Plain transformers forwards of the checkpoints, in float64: in float32 they are further from it than the engine."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self.models = [Qwen3ForCausalLM.from_pretrained(p, dtype=torch.float64).eval() for p in paths]

    @torch.inference_mode()
    def log_probs(self, which: int, prompt: list[int], output: list[int], temperature: float = 1.0) -> list[float]:
        logits = self.models[which](input_ids=torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0].tolist()

    @torch.inference_mode()
    def greedy(self, which: int, prompt: list[int], count: int) -> list[int]:
        out = self.models[which].generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=count, do_sample=False
        )
        return out[0, len(prompt) :].tolist()

    def assert_exact(self, which: int, prompt: list[int], answer: dict[str, Any], temperature: float = 1.0) -> None:
        """Every log-prob of an answer is that of model `which`."""
        found = [lp for lp, _, _ in answer["meta_info"]["output_token_logprobs"]]
        expected = self.log_probs(which, prompt, answer["output_ids"], temperature)
        worst = max((abs(a - b), at) for at, (a, b) in enumerate(zip(found, expected, strict=True)))
        assert worst[0] <= ROUNDING, f"off by {worst[0]:.2g} at output token {worst[1]} of {len(found)}"


class Server:
    """A running engine. `generate` and the other calls return (status, body)."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url, self.process = url, process
        self.client = httpx.Client(base_url=url, timeout=60)

    def post(self, path: str, body: Any = None, **kwargs: Any) -> httpx.Response:
        return self.client.post(path, **({"json": body} if body is not None else {}), **kwargs)

    def generate(self, ids: list[int], max_new_tokens: int = 16, **params: Any) -> dict[str, Any]:
        sampling = {"max_new_tokens": max_new_tokens, "ignore_eos": True, **params}
        response = self.post("/generate", {"input_ids": ids, "sampling_params": sampling, "return_logprob": True})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def ok(self, path: str, body: Any) -> httpx.Response:
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return response

    def running(self) -> int:
        load = self.client.get("/v1/loads").json()["loads"][0]
        return int(load["num_running_reqs"] + load["num_waiting_reqs"])

    def used_tokens(self) -> int:
        """Of the running sequences together."""
        return int(self.client.get("/v1/loads").json()["loads"][0]["num_used_tokens"])

    def wait_until(self, condition: Any, limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.002)  # what is waited for happens in the scheduler's thread


@contextlib.contextmanager
def run_engine(model_path: Path, *flags: str) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "sampler.engine.local", "--model-path", str(model_path), "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "warning", *flags], cwd=ROOT)
    server = Server(f"http://127.0.0.1:{port}", process)
    try:
        deadline = time.monotonic() + START_S
        while True:
            assert process.poll() is None, "the engine ended; its message is above"
            assert time.monotonic() < deadline, "the engine did not start"
            with contextlib.suppress(httpx.TransportError):
                if server.client.get("/health").status_code == 200:
                    break
            time.sleep(0.05)  # a child gives no signal when its port opens
        yield server
    finally:
        server.client.close()
        process.terminate()
        process.wait(60)
