"""The beginning of a reply that the client wrote: the last message, of the assistant, with `"prefix": true`. The model
continues it.

    system, user, {"role": "assistant", "content": "The sum is", "prefix": true}      the prompt ends with "The sum is"
    reply " 7"                                                                        its message says "The sum is 7"

Prefix tokens are the prompt's: neither sampled nor trained.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

MessageT = TypeVar("MessageT", bound=Mapping[str, Any])
KEY = "prefix"


def is_prefix(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant" and message.get(KEY) is True


def prefix_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Empty if the messages leave the whole reply to the model."""
    return str(messages[-1].get("content") or "") if messages and is_prefix(messages[-1]) else ""


def without_prefix(messages: Sequence[MessageT]) -> Sequence[MessageT]:
    return messages[:-1] if messages and is_prefix(messages[-1]) else messages
