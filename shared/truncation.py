"""A truncated distribution: what min-p, top-k and top-p, in this order, leave of softmax(logits / temperature), renormalized.

    min-p     tokens with at least min_p times the largest probability
    top-k     of these the top_k likeliest, and what ties with the last
    top-p     of these, renormalized, the fewest whose mass reaches top_p

The order is vLLM's (0.32.0, `v1/sample/sampler.py`). The local engine and the trainer compute the same, each by its own code.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field


class Truncation(BaseModel, frozen=True, extra="forbid"):
    """The defaults leave the whole distribution. `top_k` 0: all tokens."""

    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0, le=1)

    @classmethod
    def of(cls, sampling_params: Mapping[str, Any]) -> "Truncation":
        """As a request to an engine has it: `top_k` -1, and a value that is missing or null, truncate nothing."""
        top_p, top_k, min_p = (sampling_params.get(name) for name in NAMES)
        return cls(top_p=1.0 if top_p is None else top_p, top_k=0 if top_k in (None, -1) else top_k, min_p=min_p or 0.0)

    @property
    def keeps_all(self) -> bool:
        return self == WHOLE

    def __str__(self) -> str:
        """`top_p 0.95, top_k 20`"""
        values = self.model_dump(exclude_defaults=True)
        return ", ".join(f"{name} {value:g}" for name, value in values.items()) or "nothing truncated"

    def engine_problem(self, kind: str) -> str | None:
        """Why training episodes cannot be sampled so by an engine of this kind; None: they can."""
        if self.keeps_all or kind in ENGINES:
            return None
        return (
            f"{self} in training, and {kind} reports log-probs before truncation, which are not of the distribution that is "
            f"sampled; expected an engine that reports them after it ({' or '.join(ENGINES)}), or none of {', '.join(NAMES)} "
            "(evaluation may have its own: eval_sampling)"
        )


NAMES = ("top_p", "top_k", "min_p")
WHOLE = Truncation()
# Kinds of engines (`InferenceService.kind`) that report log-probs after truncation. SGLang 0.5.23 takes log(softmax(logits / T))
# before it samples from a truncated copy (`srt/layers/sampler.py`).
ENGINES = ("local", "vllm")
