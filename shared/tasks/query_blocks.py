"""The question of a line that shows images: its texts, and its blocks in order.

    {"query": [{"type": "text", "text": "What is "}, {"type": "image", "path": "1.png"}]}      blocks
    {"query": "Is <image> above <image>?", "images": ["1.png", "2.png"]}                 verl: in the places of "<image>"
    {"query": "What is it?", "image": "1.png"}                                                 before the text
    {"query": [{"type": "image"}, {"type": "text", "text": "?"}], "images": ["1.png"]}         TRL: in the places of such blocks

Images are still as the line has them: a path, a URL, base64 (`shared.images.source`).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from shared.documents.content import IMAGE_BLOCKS, Block, text_of

PLACE = "<image>"  # of an image in a text whose images are in the key `images`
IMAGE_KEYS = ("path", "url", "base64", "bytes", "image", "image_url")  # keys of a block that say where its image is


class QueryBlock(NamedTuple):
    """`where`: the field, in messages. `block`: a text, or an image as the line has it."""

    where: str
    block: Block

    @property
    def is_image(self) -> bool:
        return bool(self.block["type"] != "text")


class WrongQuery(Exception):
    """Message: what is wrong with the question's blocks or images."""


def has_blocks(values: Mapping[str, Any]) -> bool:
    return isinstance(values.get("query"), list) or "images" in values


def query_blocks(values: Mapping[str, Any]) -> tuple[str, tuple[QueryBlock, ...]]:
    """(the texts, the blocks) of a line for which `has_blocks` holds; no blocks: it shows no image. Raises WrongQuery."""
    images = list(_images(values))
    query = values.get("query")
    if isinstance(query, str):
        blocks = _placed(query, images)
    elif isinstance(query, list):
        blocks = _filled(list(_blocks(query)), images)
    else:
        raise WrongQuery(f'"query" is {_kind_of(query)}; expected a text, or blocks of text and images')
    blocks = [one for one in blocks if one.is_image or one.block["text"]]
    text = text_of([one.block for one in blocks])
    return text, tuple(blocks) if any(one.is_image for one in blocks) else ()


def _images(values: Mapping[str, Any]) -> Iterator[QueryBlock]:
    images = values.get("images")
    if images is None:
        return
    for at, image in enumerate(images if isinstance(images, list) else [images]):
        where = f'"images", image {at + 1}'
        yield QueryBlock(where, _image_block(image, where))


def _image_block(image: Any, where: str) -> Block:
    if isinstance(image, str):
        return {"type": "image", "image": image}
    if isinstance(image, Mapping):
        return {**_without_nulls(image), "type": "image"}
    raise WrongQuery(f"{where} is {_kind_of(image)}; expected a path, a URL, or an object with one of them")


def _blocks(query: Sequence[Any]) -> Iterator[QueryBlock]:
    for at, block in enumerate(query):
        where = f'"query", block {at + 1}'
        if not isinstance(block, Mapping):
            raise WrongQuery(f'{where} is {_kind_of(block)}; expected an object with "type"')
        block = _without_nulls(block)
        kind = block.get("type")
        if kind in IMAGE_BLOCKS:
            yield QueryBlock(where, block)
        elif kind != "text":
            raise WrongQuery(f'{where} has "type" {str(kind)[:40]!r}; expected "text" or "image"')
        elif not isinstance(block.get("text"), str):
            raise WrongQuery(f'{where} has no "text"; expected one')
        else:
            yield QueryBlock(where, {"type": "text", "text": block["text"]})


def _without_nulls(block: Mapping[str, Any]) -> Block:
    """Tables give every block of a column the keys of all of them."""
    return {str(name): value for name, value in block.items() if value is not None}


def _placed(query: str, images: Sequence[QueryBlock]) -> list[QueryBlock]:
    """In the places of the text, or before it. Without images, `<image>` is text."""
    parts = query.split(PLACE) if images else [query]
    texts = [QueryBlock('"query"', {"type": "text", "text": part}) for part in parts]
    if len(parts) == 1:
        return [*images, *texts]
    if len(images) != len(parts) - 1:
        raise WrongQuery(
            f'"query" has "{PLACE}" {len(parts) - 1} times, for {len(images)} images; expected it once for each, or never: '
            "then they stand before the text"
        )
    return list(chain.from_iterable(zip(texts, images, strict=False))) + texts[-1:]


def _filled(blocks: list[QueryBlock], images: Sequence[QueryBlock]) -> list[QueryBlock]:
    """The images in the places of blocks that name none; without such blocks, before all."""
    empty = [at for at, one in enumerate(blocks) if one.is_image and not any(name in one.block for name in IMAGE_KEYS)]
    if images and not any(one.is_image for one in blocks):
        return [*images, *blocks]
    if len(empty) != len(images):
        raise WrongQuery(
            f'"query" has {len(empty)} image blocks without an image of their own, for {len(images)} of "images"; '
            "expected as many"
        )
    for at, image in zip(empty, images, strict=True):
        blocks[at] = image
    return blocks


def _kind_of(value: Any) -> str:
    names: dict[type, str] = {
        list: "a list",
        str: "a text",
        dict: "an object",
        type(None): "null",
        bool: "true or false",
    }
    return names.get(type(value), "a number")
