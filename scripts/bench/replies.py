"""Replies that resemble those of a real model, for benchmarks: a vocabulary of 152,000 words, Zipf's law, sharp distributions.

A reply that is the same every time would flatter the server's compression, and a small vocabulary the packing of ids.

Log-probs: 64 candidates have logits in bfloat16, of a scale that differs from token to token; one is drawn, and its log-prob
is float32 log-softmax. About half of the tokens have less than 0.01 nats of entropy and one in six more than 0.67, as measured
of reasoning models (Wang et al. 2025, "Beyond the 80/20 rule", figure 2). Ids: Zipf-Mandelbrot over the vocabulary; ids follow
frequency loosely, as those of byte-pair encodings do.
"""

import json
import shutil
from itertools import count, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

CANDIDATES = 64
VOCABULARY = 151_643
SYLLABLES = [consonant + vowel for consonant in "bdfghklmnprstvz" for vowel in "aeiou"]


def draw_ids(rng: np.random.Generator, words: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """`n` of `words`, the first of which are the most frequent."""
    weight = 1 / (np.arange(1, len(words) + 1) + 2.7)
    ranks = rng.choice(len(words), size=n, p=weight / weight.sum())
    return words[np.minimum(len(words) - 1, ranks * rng.lognormal(0, 1, n)).astype(np.int64)]


def draw_logprobs(rng: np.random.Generator, n: int) -> npt.NDArray[np.float32]:
    scale = rng.lognormal(2.3, 0.9, n)[:, None]
    logits = (rng.gumbel(size=(n, CANDIDATES)) * scale).astype(np.float32)
    logits = (logits.view(np.uint32) & 0xFFFF0000).view(np.float32)  # bfloat16
    shifted = logits - logits.max(axis=1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, dtype=np.float32))[:, None]
    drawn = (logprobs + rng.gumbel(size=logprobs.shape)).argmax(axis=1)
    chosen: npt.NDArray[np.float32] = logprobs[np.arange(n), drawn]
    return chosen


def word(number: int) -> str:
    """A text of its own for every number: frequent words are short."""
    text = ""
    while number or not text:
        number, rest = divmod(number, len(SYLLABLES))
        text += SYLLABLES[rest]
    return text


def make_tokenizer(source: Path, folder: Path) -> Path:
    """The tokenizer and chat template of the model in `source`, with words up to `VOCABULARY` tokens that only decoding knows."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(source / name, folder / name)
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": VOCABULARY}))  # samplers refuse other ids
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    known = len(set(vocabulary.values()) | {token["id"] for token in tokenizer["added_tokens"]})
    new = (f"Ġ{word(k)}" for k in count() if f"Ġ{word(k)}" not in vocabulary)
    vocabulary |= dict(zip(list(islice(new, VOCABULARY - known)), range(known, VOCABULARY), strict=True))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
