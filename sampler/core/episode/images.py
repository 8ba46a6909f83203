"""Images of episodes: decoded and stored once, named by references in messages, and sent to engines as files.

    message    {"type": "image", "base64": "…"}  ─ referenced ─▶  {"type": "image", "sha256": "9f3a…", "width": 640, …}
    engine     PromptImage(start, stop, token, file)  ◀─ prompt_images ─  the images of a prompt

What an engine is sent shows every decoder the same pixels: the file itself if it is a plain PNG or JPEG; else (transparency, an
orientation, a palette, another format) a PNG of the decoded picture.
"""

import asyncio
import hashlib
import io
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sampler.core.engines.client.prompt_images import PromptImage
from sampler.core.rendering.images import ImagePlace
from shared.documents.content import IMAGE_BLOCKS, Block, image_block, is_reference
from shared.documents.images import ImageFile
from shared.errors import ConfigError, DataError

if TYPE_CHECKING:
    from shared.images.bounds import ImageBounds
    from shared.images.picture import Picture
    from shared.store import Store

MOST_BYTES = 256 << 20  # of the files held for engines
MOST_BLOCKS = 10_000  # references of images that this process has stored or read
_PLAIN_PNG = (b"\x08\x00", b"\x08\x02")  # bit depth and colour type: 8 bits of gray, or of red, green and blue
_CHUNKS_OF_LOOKS = (b"tRNS", b"eXIf")  # transparency, orientation

V = TypeVar("V")
Message = Mapping[str, Any]


class ImageFiles:
    """Of one process; its episodes share it. `bounds`: of one image."""

    def __init__(self, store: "Store", bounds: "ImageBounds | None" = None) -> None:
        self._store = store
        self._bounds = bounds
        self._blocks = _Newest[Block](MOST_BLOCKS)  # by digest of the image
        self._of_texts = _Newest[Block](MOST_BLOCKS)  # by digest of a block's text
        self._for_engines = _Newest[bytes](MOST_BYTES, len)

    async def kept(self, data: bytes, where: str) -> Block:
        """The reference to a file, which is stored. `where` names it in messages. Raises DataError for one that is no image that
        can be read, and ConfigError without Pillow."""
        sha256 = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
        known = self._blocks.get(sha256)
        if known is None:
            known = await self._stored(data, where)
            self._blocks.put(sha256, known)
        return known

    async def referenced(self, messages: Sequence[Message]) -> list[Any]:
        """The messages, with a reference in place of each image in their blocks; those without images are the same objects.

        Raises DataError, which names message and block, and as `kept`.
        """
        return [
            await self._referenced(message, f"message {at + 1}") if _has_images(message) else message
            for at, message in enumerate(messages)
        ]

    async def of_request(self, messages: Sequence[Message]) -> list[Any]:
        """As `referenced`, of a sampler's own messages. Raises ConfigError in place of DataError."""
        try:
            return await self.referenced(messages)
        except DataError as exc:
            raise ConfigError(str(exc)) from exc

    async def prompt_images(self, places: Sequence[ImagePlace], token: int | None) -> list[PromptImage]:
        """As an engine is sent them. `token`: the one that it replaces by an image. Raises DataError for an image that is not in
        the store."""
        if not places:
            return []
        assert token is not None, "a prompt with images is of a model that reads them"
        files = {place.sha256: await self._for_engine(place.sha256) for place in places}
        return [PromptImage(place.start, place.stop, token, files[place.sha256]) for place in places]

    # ------------------------------------------------------------------ inside

    async def _referenced(self, message: Message, where: str) -> Message:
        blocks = [
            await self._reference(block, f"{where}, block {at + 1}") if _is_image(block) else block
            for at, block in enumerate(message["content"])
        ]
        return {**message, "content": blocks}

    async def _reference(self, block: Block, where: str) -> Block:
        if is_reference(block):
            return await self._known(str(block["sha256"]), where)
        digest = await asyncio.to_thread(_digest_of, block)
        known = None if digest is None else self._of_texts.get(digest)
        if known is None:
            known = await self.kept(await asyncio.to_thread(_data_of, block, where, self._bounds), where)
            if digest is not None:
                self._of_texts.put(digest, known)
        return known

    async def _known(self, sha256: str, where: str) -> Block:
        known = self._blocks.get(sha256)
        if known is None:
            document = await self._store.images.described(sha256)
            if document is None:
                raise DataError(f"{where}: image {sha256[:64]} is not in the store")
            self._blocks.put(sha256, known := document)
        return known

    async def _stored(self, data: bytes, where: str) -> Block:
        picture, file, for_engines = await asyncio.to_thread(_decoded, data, where, self._bounds)
        await self._store.images.keep([file])
        self._for_engines.put(picture.sha256, for_engines)
        return image_block(file)

    async def _for_engine(self, sha256: str) -> bytes:
        held = self._for_engines.get(sha256)
        if held is None:
            data = await self._store.images.read(sha256)
            held = (await asyncio.to_thread(_decoded, data, f"image {sha256}", self._bounds))[2]
            self._for_engines.put(sha256, held)
        return held


class _Newest(Generic[V]):
    """The values used last, of a total size of at most `most`."""

    def __init__(self, most: int, size: Any = lambda value: 1) -> None:
        self._most, self._size, self._total = most, size, 0
        self._values: OrderedDict[str, V] = OrderedDict()

    def get(self, key: str) -> V | None:
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: str, value: V) -> None:
        if key not in self._values:
            self._values[key] = value
            self._total += self._size(value)
        while self._total > self._most and len(self._values) > 1:
            self._total -= self._size(self._values.popitem(last=False)[1])


def _has_images(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, list | tuple) and any(map(_is_image, content))


def _is_image(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") in IMAGE_BLOCKS


def _digest_of(block: Block) -> str | None:
    """Of the text that has the image; None: it has another form."""
    for name in ("base64", "url", "image_url", "image"):
        value = block.get(name)
        if isinstance(value, Mapping):
            value = value.get("url")
        if isinstance(value, str):
            return hashlib.sha256(value.encode(errors="replace")).hexdigest()
    return None


def _data_of(block: Block, where: str, bounds: "ImageBounds | None") -> bytes:
    from shared.images.decode import DEFAULT  # Pillow's part of images: for those who have some
    from shared.images.source import bytes_of

    return bytes_of(block, None, where, bounds or DEFAULT)


def _decoded(data: bytes, where: str, bounds: "ImageBounds | None") -> "tuple[Picture, ImageFile, bytes]":
    """(the picture, the file as it is stored, the file as engines are sent it)"""
    from shared.images.decode import DEFAULT, decode
    from shared.images.header import header_of

    picture = decode(data, where, bounds or DEFAULT)
    height, width = picture.rgb_HW3.shape[:2]
    kind = header_of(data, where).format
    file = ImageFile(picture.sha256, data, kind, width, height)
    return picture, file, data if _is_plain(data, kind) else png_of(picture.rgb_HW3)


def _is_plain(data: bytes, kind: str) -> bool:
    """Whether every decoder shows the same pixels."""
    if kind == "PNG":
        return data[24:26] in _PLAIN_PNG and not any(name in data for name in _CHUNKS_OF_LOOKS)
    return kind == "JPEG" and b"Exif\0" not in data


def png_of(rgb_HW3: Any) -> bytes:
    """A PNG of an array, height x width x 3 of 8 bits. Needs Pillow."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(rgb_HW3).save(file, "PNG", compress_level=1)
    return file.getvalue()
