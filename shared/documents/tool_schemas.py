"""The tool lists that models received: each distinct list is stored once, under the hash that requests name.

A tool is one line of JSON, as passed to the chat template, in the order of the list; the hash covers the lines. It is
stored as text because MongoDB would interpret names in a schema (`$ref`, `a.b`).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Self

from pydantic import Field

from shared.documents.base import Document

HASH_CHARS = 24
EARLIER_HASH_CHARS = 16  # written by earlier versions, which stored no list
MOST_BYTES = 8_000_000  # per list; MongoDB's limit per document is 16 MB
Tools = Sequence[Mapping[str, Any]]


class ToolSchemas(Document):
    """A list of tools. A list above `MOST_BYTES` is cut off; `left_out` counts the missing tools."""

    collection: ClassVar[str] = "tool_schemas"
    id: str = Field(alias="_id")  # `hash_of` the whole list; `tools_hash` of requests
    tools: list[str]
    left_out: int = 0
    created_at: datetime | None = None

    @classmethod
    def of(cls, tools: Tools) -> Self:
        stored, num_bytes = [], 0
        for line in _lines(tools):
            num_bytes += len(line.encode())
            if num_bytes > MOST_BYTES:
                break
            stored.append(line)
        return cls(id=hash_of(tools), tools=stored, left_out=len(tools) - len(stored))

    def is_whole(self) -> bool:
        """Whether its id matches its tools. Always true if some were left out: the hash cannot be verified."""
        return self.left_out > 0 or _hash(self.tools) == self.id

    def schemas(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.tools]

    def names(self) -> list[str]:
        return [_name(line) for line in self.tools]


def hash_of(tools: Tools | None) -> str:
    """Empty if there are no tools."""
    return _hash(_lines(tools)) if tools else ""


def is_of_earlier_version(tools_hash: str) -> bool:
    """True for a hash of an earlier version, which stored no list."""
    return len(tools_hash) == EARLIER_HASH_CHARS


def _name(line: str) -> str:
    try:
        return str(json.loads(line)["function"]["name"])
    except (ValueError, KeyError, TypeError):  # a custom sampler may use another format
        return "?"


def _lines(tools: Tools) -> Iterator[str]:
    for tool in tools:
        text = json.dumps(tool, ensure_ascii=False)
        yield text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate, which JSON can express


def _hash(lines: Sequence[str] | Iterator[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()[:HASH_CHARS]
