"""Ways to compute a model's log-probs, from the cheapest to the model's own forward. The way for a model is chosen by
measurement (`trainer/modeling/forward_choice.py`), never by its name.

    trees       a row is a forest of tokens, with its own positions and mask      or sequences, one a row, by the model's own
    attention   by_node, flex_attention, sdpa, or eager: the model's own words    (attn_implementation of transformers)
    head        chunked: from hidden states and the head's matrix; kept, whole: the model's own logits, of what is trained or all
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from shared.errors import ConfigError
from trainer.modeling.node_attention import BY_NODE

WITHOUT_DROPOUT = (BY_NODE, "flex_attention")
ON_CPU = (BY_NODE, "sdpa", "eager")
ON_CUDA = ("flex_attention", "sdpa", "eager")
MEASURED_DEPTH = 320  # tokens; a longer window or chunk is read from the config instead
# of settings that act beyond a number of tokens
LENGTH_WORDS = ("window", "chunk", "local", "block_size", "index_topk")
CAPACITY_WORD = "capacity"
WINDOW = "sliding_window"  # known to processes that share rows: trainer/modeling/context_parallel.py


class Head(StrEnum):
    CHUNKED = "log-probs in chunks"
    KEPT = "the model's own logits of what is trained"
    WHOLE = "the model's own logits"


@dataclass(frozen=True, slots=True)
class Way:
    """`trees` False: rows are single sequences, and the model makes its own positions and causal mask."""

    attention: str
    trees: bool
    head: Head = Head.CHUNKED

    def __str__(self) -> str:
        return f"{'prefix trees' if self.trees else 'sequence by sequence'}, attention {self.attention}, {self.head}"


OWN = Way("eager", trees=False, head=Head.WHOLE)  # the model's own forward


def attentions(attention: str, device: torch.device | str, *, dropout: bool = False) -> tuple[str, ...]:
    """The implementations to try, best first. eager is the model's own code, with N² memory, and for some models the only one.

    With dropout only transformers' own: ours does not drop attention weights. Raises ConfigError for ours with dropout.
    """
    if attention == "auto":
        tried = ON_CPU if torch.device(device).type == "cpu" else ON_CUDA
        return tuple(name for name in tried if not dropout or name not in WITHOUT_DROPOUT)
    if dropout and attention in WITHOUT_DROPOUT:
        raise ConfigError(
            f"attn_implementation is {attention}, which does not support dropout; expected auto, sdpa or eager"
        )
    return (attention,)


def tree_obstacle(config: Any) -> str | None:
    """A setting that a short measurement cannot verify, or None: one that acts only beyond a number of tokens too large to
    measure, or on full experts.

    A window counts tokens of the row, not of the path. If all layers are declared full attention, a window is unused.
    """
    return next((obstacle for _, obstacle in _beyond_measuring(config)), None)


def slice_obstacle(config: Any) -> str | None:
    """The same for processes that share rows, whatever these are."""
    return next((obstacle for name, obstacle in _beyond_measuring(config) if name != WINDOW), None)


def _beyond_measuring(config: Any) -> Iterator[tuple[str, str]]:
    """(setting, what it is and why it cannot be measured)."""
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    layer_types = set(getattr(config, "layer_types", None) or ())
    settings = {name: value for name, value in vars(config).items() if isinstance(value, int | float) and value}
    for name, value in settings.items():
        if CAPACITY_WORD in name:
            yield name, f"{name} is {value}: what one branch sends to an expert could push out another's"
        if value <= MEASURED_DEPTH or not any(word in name for word in LENGTH_WORDS):
            continue
        if "window" in name and (layer_types == {"full_attention"} or not getattr(config, "use_sliding_window", True)):
            continue
        yield name, f"{name} is {value}, more tokens than are measured"
