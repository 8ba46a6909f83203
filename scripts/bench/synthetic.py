"""Made-up episodes and models for benchmarks of the trainer: random tokens in the shapes that agents make, random weights."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from shared.tokens.record_tree import RecordTree, TreeDispatch

VOCABULARY = 1024


@dataclass
class _Builder:
    """Tokens appended in depth-first order, a stretch at a time."""

    rng: np.random.Generator
    ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    dispatch: list[int] = field(default_factory=list)
    num_dispatches: int = 0

    def add(self, after: int, tokens: Sequence[int] | int, *, sampled: bool = False) -> int:
        """`tokens`, or so many random ones, after node `after`; returns the last node."""
        new = self.rng.integers(0, VOCABULARY, tokens).tolist() if isinstance(tokens, int) else list(tokens)
        first = len(self.ids)
        self.ids += new
        self.parents += [after, *range(first, first + len(new) - 1)]
        self.dispatch += [self.num_dispatches if sampled else -1] * len(new)
        self.num_dispatches += sampled
        return len(self.ids) - 1

    def build(self, name: str, advantage: float) -> RecordTree:
        dispatches_N = np.array(self.dispatch, dtype=np.int32)
        uniform = np.float32(-np.log(VOCABULARY))
        return RecordTree(
            record_id=name,
            token_ids_N=np.array(self.ids, dtype=np.int32),
            parents_N=np.array(self.parents, dtype=np.int32),
            dispatches_N=dispatches_N,
            logprobs_N=np.where(dispatches_N >= 0, uniform, np.float32(0)),
            versions_N=np.where(dispatches_N >= 0, 1, -1).astype(np.int32),
            dispatches=tuple(TreeDispatch(f"{name}/{i}", i, advantage) for i in range(self.num_dispatches)),
        )


def growing(turns: int, *, prompt: int, reply: int, observation: int, seed: int = 0) -> list[RecordTree]:
    """One episode whose context only grows: a chain. `prompt`, `reply`, `observation`: tokens."""
    rng = np.random.default_rng(seed)
    return [_growing(rng, rng.integers(0, VOCABULARY, prompt).tolist(), turns, reply, observation, "0", 1.0)]


def group(size: int, turns: int, *, prompt: int, reply: int, observation: int, seed: int = 0) -> list[RecordTree]:
    """Episodes of one task: chains that share the prompt."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(0, VOCABULARY, prompt).tolist()
    advantages = [1.0, -1.0] * size
    return [_growing(rng, shared, turns, reply, observation, str(i), advantages[i]) for i in range(size)]


# 7 parameters: the shape of one synthetic record
def _growing(
    rng: np.random.Generator, prompt: list[int], turns: int, reply: int, observation: int, name: str, advantage: float
) -> RecordTree:
    builder = _Builder(rng)
    node = builder.add(-1, prompt)
    for turn in range(turns):
        node = builder.add(node, reply, sampled=True)
        if turn < turns - 1:
            node = builder.add(node, observation)
    return builder.build(name, advantage)


def unrelated(count: int, *, least: int, most: int, seed: int = 0) -> list[RecordTree]:
    """Episodes of one turn that share nothing, of `least` to `most` tokens, half of which are sampled."""
    rng = np.random.default_rng(seed)
    episodes = []
    for index, tokens in enumerate(rng.integers(least, most + 1, count).tolist()):
        prompt = rng.integers(0, VOCABULARY, tokens - tokens // 2).tolist()
        episodes.append(_growing(rng, prompt, 1, tokens // 2, 0, str(index), 1.0 - 2.0 * (index % 2)))
    return episodes


def rewritten(
    turns: int, *, prompt: int, reasoning: int, answer: int, observation: int, seed: int = 0
) -> list[RecordTree]:
    """One episode whose history loses the reasoning of every turn: each reply is a branch of its own."""
    builder = _Builder(np.random.default_rng(seed))
    trunk = builder.add(-1, prompt)
    for turn in range(turns):
        reply = builder.add(trunk, reasoning + answer, sampled=True)
        if turn < turns - 1:
            trunk = builder.add(trunk, builder.ids[reply - answer + 1 : reply + 1])
            trunk = builder.add(trunk, observation)
    return [builder.build("0", 1.0)]


def write_model(folder: Path, **shape: Any) -> None:
    """A Qwen3 of this shape for long rows."""
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=VOCABULARY, max_position_embeddings=2**18, tie_word_embeddings=True, **shape)
    Qwen3ForCausalLM(config).save_pretrained(folder)


def add_computing(parser: argparse.ArgumentParser) -> None:
    """Where it computes, and with how many threads."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; more only on an idle machine")
