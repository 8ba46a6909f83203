"""How fast this machine's cores sample from a model and train it, predicted from products of matrices of its size, timed now.

    a decode step of n rows    each matrix of the model, once: most of it is reading them, the rest grows with n
    a trained token            each matrix three times (forward, gradient of the input, of the weight), the head four times, since
                               its logits are computed again in the backward

Attention, norms and the optimizer are not timed. What they add was measured once, on a model of 135 million parameters, and is in
`DECODING` and `LEARNING`. Another machine or model may be half as fast, or twice.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

DECODING, LEARNING = 1.4, 1.5  # seconds of the engine and of the trainer, by seconds of their products
TIMED_ROWS = (1, 32, 512)
LEAST_S = 0.3  # of each timing
LAYERS_BYTES = 2**27  # copies of a layer to time, so that they do not stay in the processor's cache

Matrices = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds. A decode step of n rows takes `step` + n * `row`. Training takes `token` for each computed token, and `head` more
    for each token that has a loss, since only its logits are computed."""

    step: float
    row: float
    token: float
    head: float

    def decode_s(self, rows: int) -> float:
        return self.step + rows * self.row

    def sampling_s(self, episodes: int, tokens: int, at_once: int) -> float:
        """Of `episodes` that sample `tokens` each, `at_once` in parallel."""
        rows = max(1, min(episodes, at_once))
        return -(-episodes // rows) * tokens * self.decode_s(rows)

    def learning_s(self, tokens: int, sampled: int) -> float:
        """Of `tokens` computed, `sampled` of them with a loss."""
        return tokens * self.token + sampled * self.head


def measured(config: Mapping[str, Any], threads: int) -> Speed:
    """`config`: the model's config.json. Raises KeyError for a model that does not say its shape as Llama's does."""
    layers, layer, head = (
        config["num_hidden_layers"],
        _layer_shapes(config),
        (config["vocab_size"], config["hidden_size"]),
    )
    copies = max(1, min(layers, LAYERS_BYTES // sum(4 * rows * columns for rows, columns in layer)))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            of_layer = _seconds([torch.randn(shape) for _ in range(copies) for shape in layer])
            of_head = _seconds([torch.randn(head)])
    finally:
        torch.set_num_threads(before)
    one, many, learned = (layers / copies * a + b for a, b in zip(of_layer, of_head, strict=True))
    row = max(0.0, many - one) / (TIMED_ROWS[1] - 1)
    head_token = of_head[-1] / TIMED_ROWS[-1]
    token = learned / TIMED_ROWS[-1] - head_token
    return Speed(DECODING * (one - row), DECODING * row, LEARNING * 3 * token, LEARNING * 4 * head_token)


def _layer_shapes(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    keys = config.get("num_key_value_heads") or heads
    return [((heads + 2 * keys) * width, hidden), (hidden, heads * width), (2 * inner, hidden), (hidden, inner)]


def _seconds(matrices: Matrices) -> list[float]:
    """Of the products of them all, for each number of rows."""
    found = []
    for count in TIMED_ROWS:
        inputs = {width: torch.randn(count, width).t() for width in {matrix.shape[1] for matrix in matrices}}
        found.append(_timed(matrices, inputs))
    return found


def _timed(matrices: Matrices, inputs: Mapping[int, torch.Tensor]) -> float:
    """The best of repetitions: what else runs on the machine makes some of them slower."""
    best, ends = float("inf"), time.perf_counter() + LEAST_S
    while best == float("inf") or time.perf_counter() < ends:
        began = time.perf_counter()
        for matrix in matrices:
            torch.mm(matrix, inputs[matrix.shape[1]])
        best = min(best, time.perf_counter() - began)
    return best
