"""Reads the images in a request, and puts them between its texts: each dialect's forms become a `SentImage`.

    chat         {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}
    responses    {"type": "input_image", "image_url": "data:image/png;base64,…"}
    messages     {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "…"}}
    google       {"inlineData": {"mimeType": "image/png", "data": "…"}}

In messages of users, and in results of tools. Nothing is fetched for a request, and no files are stored at the gateway: URLs of
the web and ids of files are refused with 400. What a file is, its content decides, not the media type.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby

from sampler.gateway.exchange import SentImage, is_data_url
from sampler.gateway.fields import Fields
from shared.documents.content import Block
from shared.names import shortened

Part = str | SentImage
Content = str | list[Block | SentImage]
_NOTHING_STORED = "no files are stored here; send the image itself"


def text_of(fields: Fields, name: str) -> str:
    """A text, or the text of all parts of a list. Empty where it is absent."""
    content = fields.text_or_objects(name)
    return content if isinstance(content, str) else "\n".join(map(text_of_part, content))


def content_of(fields: Fields, name: str) -> Content:
    """A text, or the parts of a list. Empty where it is absent."""
    content = fields.text_or_objects(name)
    return content if isinstance(content, str) else joined_parts(map(part_of, content))


def joined_parts(parts: Iterable[Part]) -> Content:
    """A text, or blocks where one of the parts is an image. Texts that follow each other are one, by lines."""
    listed = list(parts)
    if not any(isinstance(part, SentImage) for part in listed):
        return "\n".join(str(part) for part in listed)
    blocks: list[Block | SentImage] = []
    for is_image, some in groupby(listed, lambda part: isinstance(part, SentImage)):
        if is_image:
            blocks += [part for part in some if isinstance(part, SentImage)]
        elif text := "\n".join(map(str, some)):
            blocks.append({"type": "text", "text": text})
    return blocks


def part_of(part: Fields) -> Part:
    """Raises GatewayError for a part that is neither text nor an image."""
    kind = part.peek("type")
    read = _IMAGES.get(kind) if isinstance(kind, str) else None
    if read is None:
        return text_of_part(part)
    part.echo("type")
    return read(part)


def text_of_part(part: Fields) -> str:
    """Raises GatewayError for a part that is no text."""
    kind = part.text("type", "text")
    name = next((name for name in ("text", "refusal") if part.peek(name) is not None), None)
    if name is None:
        where = "only text is supported here" if kind in _IMAGES else "only text and images are supported"
        part.fail("", f"is {kind!r}; {where}")
    part.echo("annotations", "logprobs")
    return part.text(name)


def google_image(part: Fields) -> SentImage | None:
    """Of a part with inline data; None: it has none. Raises GatewayError for what is no image, and for files elsewhere."""
    if part.peek("fileData") is not None:
        part.fail("fileData", f"is set, and {_NOTHING_STORED}, as inlineData")
    inline = part.object("inlineData")
    if inline is None:
        return None
    kind = inline.text("mimeType", "image/")
    if not kind.lower().startswith("image/"):
        inline.fail("mimeType", f"is {kind!r}; only images are supported")
    data = inline.needed_text("data").replace("-", "+").replace("_", "/")  # its SDKs write the alphabet of URLs
    return SentImage(inline.path_of("data"), data + "=" * (-len(data) % 4))


def _of_chat(part: Fields) -> SentImage:
    if isinstance(part.peek("image_url"), str):
        return _in_url(part, "image_url")
    inner = part.object("image_url")
    if inner is None:
        part.fail("image_url", "is missing; expected an object with a url")
    inner.ignore("detail", "auto")
    return _in_url(inner, "url")


def _of_responses(part: Fields) -> SentImage:
    if part.value("file_id"):
        part.fail("file_id", f"is set, and {_NOTHING_STORED}, as image_url")
    part.ignore("detail", "auto")
    return _in_url(part, "image_url")


def _of_messages(part: Fields) -> SentImage:
    source = part.object("source")
    if source is None:
        part.fail("source", "is missing; expected an object with the image's data")
    kind = source.needed_text("type")
    if kind != "base64":
        source.fail("type", f"is {kind!r}; expected base64: nothing is fetched for a request, and {_NOTHING_STORED}")
    source.echo("media_type")
    return SentImage(source.path_of("data"), source.needed_text("data"))


def _in_url(fields: Fields, name: str) -> SentImage:
    url = fields.needed_text(name)
    if not is_data_url(url):
        fields.fail(
            name,
            f"is {shortened(url)}, and nothing is fetched for a request; send the image itself, as data:image/png;base64,…",
        )
    return SentImage(fields.path_of(name), url)


_IMAGES: Mapping[str, Callable[[Fields], SentImage]] = {
    "image_url": _of_chat,
    "input_image": _of_responses,
    "image": _of_messages,
}
