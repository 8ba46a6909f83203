"""The form of contents that a chat template reads: a text, or blocks of text and images.

user: "What?"                              templates of models of text, and most of vision models
user: [{"type": "text", "text": "What?"}]  those of SmolVLM and Idefics3, which show nothing of a plain text
user: [{"type": "image"}, …]               a reference to an image of the store, as every template of a vision model reads it
"""

from collections.abc import Mapping
from typing import Any

import jinja2

from shared.documents.content import is_reference

_PROBE = "\U000f0003probe\U000f0003"
_FAULTS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def jinja_content(message: Mapping[str, Any], *, only_blocks: bool) -> Mapping[str, Any]:
    """A message as the template reads it; the same object where nothing changes."""
    content = message.get("content")
    if isinstance(content, list) and any(map(is_reference, content)):
        content = [{"type": "image"} if is_reference(block) else block for block in content]
    elif only_blocks and isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return message if content is message.get("content") else {**message, "content": content}


def reads_only_blocks(template: jinja2.Template, variables: Mapping[str, Any]) -> bool:
    """Whether a text is shown in a block, and not without one."""
    return not _shows(template, variables, _PROBE) and _shows(template, variables, [{"type": "text", "text": _PROBE}])


def _shows(template: jinja2.Template, variables: Mapping[str, Any], content: Any) -> bool:
    messages = [{"role": "user", "content": content}]
    try:
        return _PROBE in template.render({**variables, "messages": messages, "add_generation_prompt": True})
    except _FAULTS:
        return False
