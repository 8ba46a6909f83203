"""What a model was told of its tools: stored once for each list that was different, under the hash that its requests name.

A tool is one line of JSON, as it was given to the chat template, in the order of the list; the hash is that of the lines. It is
kept as text: a schema's own names (`$ref`, `a.b`) would be taken for something else in a document.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Self

from pydantic import Field

from shared.documents.base import Document

HASH_CHARS = 24
EARLIER_HASH_CHARS = 16  # of a version that kept no list
MOST_BYTES = 8_000_000  # of one list; a document holds 16 MB
Tools = Sequence[Mapping[str, Any]]


class ToolSchemas(Document):
    """A list of tools. Of one that is too large the first are kept, and `left_out` counts the others."""

    collection: ClassVar[str] = "tool_schemas"
    id: str = Field(alias="_id")  # `hash_of` the whole list; requests name it as `tools_hash`
    tools: list[str]
    left_out: int = 0
    created_at: datetime | None = None

    @classmethod
    def of(cls, tools: Tools) -> Self:
        kept, num_bytes = [], 0
        for line in _lines(tools):
            num_bytes += len(line.encode())
            if num_bytes > MOST_BYTES:
                break
            kept.append(line)
        return cls(id=hash_of(tools), tools=kept, left_out=len(tools) - len(kept))

    def is_whole(self) -> bool:
        """Whether its id is that of its tools; where some were left out, nothing can tell."""
        return self.left_out > 0 or _hash(self.tools) == self.id

    def names(self) -> list[str]:
        return [_name(line) for line in self.tools]


def hash_of(tools: Tools | None) -> str:
    """Empty where there are none."""
    return _hash(_lines(tools)) if tools else ""


def is_of_earlier_version(tools_hash: str) -> bool:
    """Of one that kept no list: nothing can be found for it."""
    return len(tools_hash) == EARLIER_HASH_CHARS


def _name(line: str) -> str:
    try:
        return str(json.loads(line)["function"]["name"])
    except (ValueError, KeyError, TypeError):  # a custom sampler's own form
        return "?"


def _lines(tools: Tools) -> Iterator[str]:
    for tool in tools:
        text = json.dumps(tool, ensure_ascii=False)
        yield text.encode("utf-8", "backslashreplace").decode()  # half of a surrogate pair, as JSON spells it


def _hash(lines: Sequence[str] | Iterator[str]) -> str:
    found = hashlib.sha256()
    for line in lines:
        found.update(line.encode())
        found.update(b"\n")
    return found.hexdigest()[:HASH_CHARS]
