"""What a judge is shown of the question and of the images that the model saw.

without images    the texts, as one
with images       [Question: …, the question's text and images in order, "Images that the model saw:", …, the rest]
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sampler.core.api_models.images import MOST_SENT
from shared.documents.content import Block, references_in, references_of

SEEN = "Images that the model saw afterwards, in order:"


def question_images(payload: Mapping[str, Any]) -> list[Block]:
    return [dict(image) for image in references_of(payload.get("query_blocks"))]


def later_images(payload: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Of tools and worlds, each once: the last ones, as many as fit with those of the question."""
    asked = question_images(payload)
    known = {image["sha256"] for image in asked}
    seen = {image["sha256"]: dict(image) for image in references_in(messages) if image["sha256"] not in known}
    return list(seen.values())[-max(1, MOST_SENT - len(asked)) :]


def judge_content(
    query: str, payload: Mapping[str, Any], seen: Sequence[Block], parts: Sequence[str]
) -> str | list[Block]:
    """Of a message to a judge. `parts`: what stands behind the question and the images that were `seen`."""
    blocks = payload.get("query_blocks")
    if not blocks and not seen:
        return "\n\n".join([f"Question:\n{query}", *parts])
    question = [{"type": "text", "text": "Question:\n"}, *(blocks or [{"type": "text", "text": query}])]
    images = [{"type": "text", "text": f"\n\n{SEEN}"}, *seen] if seen else []
    return [*question, *images, {"type": "text", "text": "\n\n" + "\n\n".join(parts)}]
