"""Adds an instruction of the sampler's (a schema of the response, say) to a conversation, where the model reads instructions.

[system, user, …]   the text is appended to the system message
[user, …]           a system message is put first: the template's own default text, which it would replace, and the text
no system role      the text is put before the first user message (Gemma's template rejects system messages, some ignore them)
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sampler.core.rendering.marks import unmarked
from sampler.core.rendering.template import ChatTemplate, Message
from sampler.core.rendering.turn_format import joined, make_sentinel
from shared.errors import ConfigError
from shared.names import INSTRUCTING_ROLES

_USER: Message = {"role": "user", "content": "."}


@dataclass(frozen=True, slots=True)
class SystemRole:
    """`shown`: whether the template shows system messages. `default`: the system text that it writes where there is none."""

    shown: bool
    default: str = ""


@lru_cache(maxsize=16)
def system_role(template: ChatTemplate) -> SystemRole:
    """Learned by rendering a sentinel as a system message."""
    sentinel = make_sentinel()
    shown = _rendered(template, [{"role": "system", "content": sentinel}, _USER])
    before, separator, behind = shown.partition(sentinel)
    if not separator:
        return SystemRole(shown=False)
    alone = _rendered(template, [_USER])
    same = alone.startswith(before) and alone.endswith(behind) and len(alone) >= len(before) + len(behind)
    return SystemRole(shown=True, default=alone[len(before) : len(alone) - len(behind)].strip() if same else "")


def with_instruction(messages: Sequence[Message], text: str, template: ChatTemplate) -> list[Message]:
    """A copy of the conversation `messages`, from its beginning, with `text` among its instructions."""
    role = system_role(template)
    if not role.shown:
        return _before_user(messages, text)
    if messages and messages[0].get("role") in INSTRUCTING_ROLES:
        first = messages[0]
        return [{**first, "content": joined(first.get("content"), text)}, *messages[1:]]
    content = joined(role.default, text)
    return [{"role": "system", "content": content}, *messages]


def _before_user(messages: Sequence[Message], text: str) -> list[Message]:
    at = next((index for index, message in enumerate(messages) if message.get("role") == "user"), None)
    if at is None:
        return [{"role": "user", "content": text}, *messages]
    content = messages[at].get("content")
    blocks = content if isinstance(content, list | tuple) else None
    changed: Any = [{"type": "text", "text": text}, *blocks] if blocks else joined(text, str(content or "")).rstrip()
    return [*messages[:at], {**messages[at], "content": changed}, *messages[at + 1 :]]


def _rendered(template: ChatTemplate, messages: Sequence[Mapping[str, Any]]) -> str:
    """Without tools, which some templates describe in the system message. "": the template rejects the messages."""
    with contextlib.suppress(ConfigError):
        return unmarked(template.render_marked(messages, None, True))
    return ""
