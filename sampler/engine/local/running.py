"""One sequence in the local engine: as served, and with its slot of the KV cache. The scheduler's thread alone changes it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sampler.engine.api.generation import ServedSequence

if TYPE_CHECKING:
    from sampler.engine.local.prompt_images import PromptImages

_UNSEEDED = random.Random()


@dataclass(slots=True, eq=False)
class RunningSequence(ServedSequence):
    """`context`: tokens that must be in the KV cache before the next one can be sampled; after a retraction it is prompt and
    partial output. `compared`: by which prefixes are compared, the same tokens but for those of images."""

    context: NDArray[np.int32] = field(init=False)
    compared: NDArray[np.int32] = field(init=False)
    shown: PromptImages | None = None  # None: a prompt without images
    slot: int = -1
    computed: int = 0  # tokens of `context` whose KV is in the slot
    with_experts: int = 0  # the position up to which `experts` has them: a forward after a retraction replaces none
    decoding: bool = False
    kv_stale: bool = False  # its KV outlived a weight update (pause in_place, flush_cache false): never shared
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.begin()
        self.with_experts = self.experts_start or 0
        self.rng = _UNSEEDED if self.params.sampling_seed is None else random.Random(self.params.sampling_seed)

    def show(self, prompt: list[int], shown: PromptImages) -> None:
        """Its images have been read: `prompt` has all of their tokens."""
        self.prompt, self.shown = prompt, shown
        self.begin()

    def begin(self) -> None:
        """From the first token of prompt and output on."""
        self.context = self.tokens()
        self.compared = self.context if self.shown is None else self.shown.compared(self.context)

    @property
    def kv_length(self) -> int:
        """Tokens whose KV is in the slot; the last sampled token's is written by the next step."""
        return len(self.prompt) + len(self.output) - 1 if self.decoding else self.computed

    @property
    def shareable(self) -> int:
        """Leading tokens of `context` whose KV another sequence may have computed: the logits of the others are needed."""
        most = len(self.context) - 1
        return most if self.logprob_start is None else min(most, self.logprob_start)

    def scored_by(self, take: int) -> range:
        """Of the next `take` tokens of `context`, the positions whose logits say a log-prob of the prompt that is wanted."""
        if self.logprob_start is None:
            return range(0)
        first = self.logprob_start + len(self.prompt_logprobs)
        return range(max(first, self.computed), min(self.computed + take, len(self.prompt) - 1))

    def tokens(self) -> NDArray[np.int32]:
        return np.asarray(self.prompt + self.output, dtype=np.int32)

    def compared_tokens(self) -> NDArray[np.int32]:
        return self.tokens() if self.shown is None else self.shown.compared(self.tokens())
