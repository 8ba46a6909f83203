"""Context policies rewrite the history when the context grows too long or the model loops. Guide: docs/train/context.md.

`__all__` is what a context policy of your own imports; docs/reference/api.md has an example.
"""

from typing import TYPE_CHECKING

from shared.lazy_names import lazy_names

if TYPE_CHECKING:
    from sampler.core.history.history import History, Round, discard_all, discard_all_tools, drop_repeats
    from sampler.core.kinds.conversation import Conversation

_PURE = ("History", "Round", "discard_all", "discard_all_tools", "drop_repeats")
__all__ = ["Conversation", "History", "Round", "discard_all", "discard_all_tools", "drop_repeats"]
__getattr__ = lazy_names(
    __name__,
    {**dict.fromkeys(_PURE, "sampler.core.history.history"), "Conversation": "sampler.core.kinds.conversation"},
)
