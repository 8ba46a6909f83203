"""Supervised fine-tuning trains exactly the tokens that the model has to sample, and a killed run continues where it was."""

import dataclasses
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from shared.errors import ConfigError
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.process.parallel import Parallel
from trainer.process.peers import Peers
from trainer.sft import training as sft
from trainer.sft.__main__ import main
from trainer.sft.conversations import (
    ChatExample,
    Conversations,
    sample_order,
)
from trainer.step.learner import Learner, StepResult
from trainer.step.opening import open_learner
from trainer.trees.minibatch import Minibatch

ROOT = Path(__file__).parents[2]
PATIENCE_S = 200.0  # for a start of the trainer: the import of torch, on a busy machine


@pytest.fixture(scope="module")
def chat_model(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("chat") / "model"
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=264,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def train_file(tmp_path: Path) -> Path:
    """The answer to four equal letters is the letter."""
    rng = random.Random(1)
    letters = [rng.choice("abc") for _ in range(50)]
    lines = [{"messages": [_user(x * 4), {"role": "assistant", "content": x}]} for x in letters]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_the_ranks_share_the_samples_of_each_step_and_an_epoch_sees_every_one(
    tmp_path: Path, chat_model: Path, tokenizer: PreTrainedTokenizerFast, alone: Parallel
) -> None:
    letters = "abcdefghijklmnop"
    conversations = [ChatExample(x, [_user("q"), {"role": "assistant", "content": x}], None) for x in letters]
    config = sft.SftConfig(model_name_or_path=chat_model, train_file=tmp_path, output_dir=tmp_path, samples_per_step=8)
    ranks = [dataclasses.replace(alone, data=Peers(rank, 2, alone.device)) for rank in (0, 1)]
    seen: list[str] = []
    for rank in ranks:
        samples = sft.Samples(Conversations(conversations, tokenizer), config, rank)
        for _, minibatch in samples.ahead(0, 2):
            trained = "".join(tokenizer.decode(row.ids_N[row.node_E]) for row in minibatch.rows)
            assert trained.count("<|im_end|>") == minibatch.denominators.num_trajectories == 4
            seen += trained.replace("<|im_end|>", "")
    assert Counter(seen) == Counter(letters)


def test_training_lowers_the_loss_and_the_written_model_answers(
    tmp_path: Path, chat_model: Path, train_file: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    out = tmp_path / "out"
    flags = {
        "model_name_or_path": chat_model,
        "train_file": train_file,
        "output_dir": out,
        "max_steps": 120,
        "samples_per_step": 8,
        "learning_rate": 0.005,
        "warmup_steps": 10,
        "device": "cpu",
        "num_threads": 1,
    }
    main([f"--{name}={value}" for name, value in flags.items()])
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(120)]
    assert lines[-1]["loss/loss"] < 0.1 * lines[0]["loss/loss"]
    model = AutoModelForCausalLM.from_pretrained(out / "final")
    prompt = tokenizer.apply_chat_template([_user("bbbb")], add_generation_prompt=True, return_tensors="pt")
    reply = model.generate(**prompt, max_new_tokens=4, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(reply) == "b<|im_end|>"


@pytest.fixture
def train(tmp_path: Path, chat_model: Path, train_file: Path, alone: Parallel) -> Callable[..., bytes]:
    def run(name: str, **fields: Any) -> bytes:
        """Train into a folder of this name; returns the bytes of the weights."""
        files = {"model_name_or_path": chat_model, "train_file": train_file, "output_dir": tmp_path / name}
        config = sft.SftConfig(**files, samples_per_step=8, learning_rate=0.01, **{"max_steps": 6, **fields})
        return (sft.train(config, alone) / "model.safetensors").read_bytes()

    return run


@pytest.mark.parametrize(
    "settings", [{}, {"lora_rank": 4, "lora_dropout": 0.5, "use_dora": True}], ids=["all", "dropout"]
)
def test_a_run_that_was_killed_ends_as_one_that_was_not(
    settings: dict[str, Any], tmp_path: Path, train: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by masks of dropout that are those of the run that went on."""
    settings = {"save_steps": 2, **settings}
    expected = train("whole", **settings)
    keep = Checkpoints.save

    def killed_after_saving(self: Checkpoints, learner: Learner, accounting: Mapping[str, Any]) -> None:
        keep(self, learner, accounting)
        if learner.steps_done == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "save", killed_after_saving)
    with pytest.raises(KeyboardInterrupt):
        train("killed", **settings)
    monkeypatch.undo()
    assert not (tmp_path / "killed" / "final").exists()
    assert train("killed", **settings) == expected
    steps = [json.loads(line)["step"] for line in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(6))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_told_to_stop_saves_the_step_in_hand_and_goes_on_from_there(
    tmp_path: Path, train: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch, sent: signal.Signals
) -> None:
    expected = train("whole")
    step = Learner.step_in_minibatches

    def told_during_the_third(self: Learner, minibatches: Sequence[Minibatch]) -> StepResult:
        if self.steps_done == 2:
            signal.raise_signal(sent)
        return step(self, minibatches)

    monkeypatch.setattr(Learner, "step_in_minibatches", told_during_the_third)
    with pytest.raises(sft.Stopped, match="stopped after step 3 of 6; the same command goes on from there"):
        train("stopped")
    assert train("stopped") == expected
    steps = [json.loads(line)["step"] for line in (tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(6))


def test_ctrl_c_ends_the_command_with_a_sentence_and_status_130(
    tmp_path: Path, chat_model: Path, train_file: Path
) -> None:
    out = tmp_path / "out"
    files = [f"--model_name_or_path={chat_model}", f"--train_file={train_file}", f"--output_dir={out}"]
    command = [sys.executable, "-m", "trainer.sft", *files, "--max_steps=1000000", "--device=cpu"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while process.poll() is None and not (out / "metrics.jsonl").exists():
                assert time.monotonic() < deadline, "training does not begin"
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert "the same command goes on from there" in said
    assert "Traceback" not in said


def test_memory_is_spared_as_in_reinforcement_learning_and_no_weight_changes(
    train: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def watched(*arguments: Any, **options: Any) -> Learner:
        opened.append(open_learner(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sft, "open_learner", watched)
    settings = {"logprob_chunk": 3, "activation_checkpointing": True, "activation_offload": True}
    plain = train("plain", max_steps=2, dtype="float64")
    sparing = train("sparing", max_steps=2, dtype="float64", optimizer_offload=True, **settings)
    assert [learner.causal_lm.is_activation_checkpointing for learner in opened] == [False, True]
    assert [learner._accumulator.chunk for learner in opened] == [1024, 3]
    expected = load(plain)
    for name, tensor in load(sparing).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-9, atol=1e-9)


def test_sequences_go_one_by_one_where_prefix_trees_are_not_wanted(
    train: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    step = Learner.step_in_minibatches

    def watched(self: Learner, minibatches: Sequence[Minibatch]) -> StepResult:
        rows.extend(row for minibatch in minibatches for row in minibatch.rows)
        return step(self, minibatches)

    monkeypatch.setattr(Learner, "step_in_minibatches", watched)
    train("linear", max_steps=1, prefix_trees=False)
    assert rows
    assert all(bool((row.ends_N == row.num_tokens).all()) for row in rows)


def test_a_conversation_that_cannot_be_rendered_is_refused_before_the_first_step_if_a_step_will_take_it(
    tmp_path: Path, train: Callable[..., bytes], train_file: Path
) -> None:
    lines = train_file.read_text(encoding="utf-8").splitlines(keepends=True)
    used, unused = sample_order(50, 0, 16, seed=0), sample_order(50, 16, 34, seed=0)
    bad = json.dumps({"messages": [{"role": "assistant", "content": "nobody asked"}]}) + "\n"
    lines[unused[0]] = bad
    train_file.write_text("".join(lines), encoding="utf-8")
    train("without", max_steps=2)
    lines[max(used)] = lines[min(used)] = bad
    train_file.write_text("".join(lines), encoding="utf-8")
    with pytest.raises(
        ConfigError, match=rf"train\.jsonl:{min(used) + 1}: the chat template cannot render messages\[:0\]"
    ):
        train("with", max_steps=2)
    assert not (tmp_path / "with").exists()


def test_long_conversations_are_left_out_and_counted_and_where_all_are_no_model_is_written(
    tmp_path: Path, train: Callable[..., bytes]
) -> None:
    with pytest.raises(ConfigError, match=r"every sample of 1 steps was left out: longer than max_tokens=2"):
        train("long", max_tokens=2, max_steps=1)
    assert not (tmp_path / "long" / "final").exists()
    (line,) = [json.loads(line) for line in (tmp_path / "long" / "metrics.jsonl").read_text().splitlines()]
    assert line["sft/left_out_samples"] == 8
    assert line["learner/skipped_steps"] == 1


def test_a_finished_run_is_not_overwritten(tmp_path: Path, train: Callable[..., bytes]) -> None:
    train("done", max_steps=1)
    with pytest.raises(ValueError, match=r"done/final exists: that run is complete"):
        train("done", max_steps=1)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"max_steps": 3, "epochs": 2}, "epochs"),
        ({"keep_checkpoints": 3}, "keep_checkpoints"),
        ({"lr_schedule": "constant", "min_lr_ratio": 0.5}, "min_lr_ratio"),
        ({"max_steps": 3, "lr_schedule": "cosine", "min_lr_ratio": 0.5}, None),
    ],
)
def test_a_setting_that_does_nothing_is_told(tmp_path: Path, settings: dict[str, Any], name: str | None) -> None:
    config = sft.SftConfig(model_name_or_path=tmp_path, train_file=tmp_path, output_dir=tmp_path, **settings)
    assert list(config.without_effect()) == ([name] if name else [])
