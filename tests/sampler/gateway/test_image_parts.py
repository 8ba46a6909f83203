"""Parts of messages in the forms of four dialects."""

import base64
from collections.abc import Callable
from typing import Any

import pytest

from sampler.gateway.anthropic_request import read_messages
from sampler.gateway.chat_request import read_chat
from sampler.gateway.exchange import ChatRequest, SentImage
from sampler.gateway.google_request import read_google
from sampler.gateway.responses_request import read_responses
from tests.shared.image_files import valid

DATA = base64.b64encode(valid("PNG")).decode()
URL = f"data:image/png;base64,{DATA}"


def chat_of(*parts: Any) -> ChatRequest:
    return read_chat({"model": "main", "messages": [{"role": "user", "content": list(parts)}]})


def responses_of(*parts: Any) -> ChatRequest:
    return read_responses({"model": "main", "input": [{"role": "user", "content": list(parts)}]})


def messages_of(*parts: Any) -> ChatRequest:
    return read_messages({"model": "main", "max_tokens": 9, "messages": [{"role": "user", "content": list(parts)}]})


def google_of(*parts: Any) -> ChatRequest:
    return read_google({"contents": [{"role": "user", "parts": list(parts)}]}, "main", stream=False)


SOURCE = {"type": "base64", "media_type": "image/png", "data": DATA}
FORMS: list[tuple[Callable[..., ChatRequest], Any, Any, str]] = [
    (
        chat_of,
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": URL, "detail": "auto"}},
        "messages[0].content[1].image_url.url",
    ),
    (
        chat_of,
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": URL},
        "messages[0].content[1].image_url",
    ),
    (
        responses_of,
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": URL},
        "input[0].content[1].image_url",
    ),
    (
        messages_of,
        {"type": "text", "text": "a"},
        {"type": "image", "source": SOURCE},
        "messages[0].content[1].source.data",
    ),
    (
        google_of,
        {"text": "a"},
        {"inlineData": {"mimeType": "image/png", "data": DATA}},
        "contents[0].parts[1].inlineData.data",
    ),
    (
        google_of,
        {"text": "a"},
        {"inline_data": {"mime_type": "image/png", "data": DATA}},
        "contents[0].parts[1].inlineData.data",
    ),
]


@pytest.mark.parametrize(("request_of", "text", "image", "path"), FORMS)
def test_parts_stand_in_order_and_texts_that_follow_each_other_are_one(
    request_of: Callable[..., ChatRequest], text: Any, image: Any, path: str
) -> None:
    read = request_of(text, image, text, text)
    [message] = read.messages
    first, sent, last = message["content"]
    assert (first, last) == ({"type": "text", "text": "a"}, {"type": "text", "text": "a\na"})
    assert sent == SentImage(path, URL if "image_url" in path else DATA)
    assert read.unused == {}
    assert request_of(text, text).messages == [{"role": "user", "content": "a\na"}], "texts alone are a text"
