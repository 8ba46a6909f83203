"""Reads a task file that is one JSON array: its elements, each with its first line's number. Holds the file in memory."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

BOM = b"\xef\xbb\xbf"
BLANKS = " \t\r\n"
MAX_FILE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Element:
    """`end`: bytes of the file up to the element's end."""

    line: int
    end: int
    text: bytes


class NotAnArray(ValueError):
    """`text` describes the error on `line`."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line, self.text = line, text


def is_array(file: BinaryIO) -> bool:
    """Whether the first non-blank character is a bracket. Leaves the file at its start."""
    is_list = False
    while block := file.read(1 << 16):
        stripped = block.removeprefix(BOM).lstrip()
        if stripped:
            is_list = stripped.startswith(b"[")
            break
    file.seek(0)
    return is_list


def array_elements(file: BinaryIO) -> Iterator[Element]:
    """Raises NotAnArray if the array or an element is not valid JSON."""
    raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise NotAnArray(1, f"a JSON array of more than {MAX_FILE_BYTES >> 20} MiB; expected JSONL, one task on a line")
    try:
        text = raw.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as exc:
        raise NotAnArray(
            raw.count(b"\n", 0, exc.start) + 1, f"byte {exc.start} is not UTF-8; expected a UTF-8 file"
        ) from exc
    decoder, at, line, end = json.JSONDecoder(), text.index("[") + 1, 1, len(raw) - len(raw.removeprefix(BOM))
    counted = 0
    while True:
        at = _skip_blanks(text, at)
        if text[at : at + 1] == "]":
            break
        start = at
        try:
            _, at = decoder.raw_decode(text, start)
        except json.JSONDecodeError as exc:
            raise NotAnArray(exc.lineno, f"not JSON: {exc.msg}; expected an array of objects") from exc
        except RecursionError as exc:
            raise NotAnArray(line, "not JSON: nested too deeply; expected an array of objects") from exc
        line += text.count("\n", counted, start)
        end += len(text[counted:at].encode())
        counted = at
        yield Element(line, end, text[start:at].encode())
        line += text.count("\n", start, at)
        at = _skip_blanks(text, at)
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != "]":
            raise NotAnArray(
                text.count("\n", 0, at) + 1, "not JSON: expected a comma or the array's end after an element"
            )
    if text[at + 1 :].strip():
        raise NotAnArray(text.count("\n", 0, at) + 1, "found text after the array's end; expected nothing")


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in BLANKS:
        at += 1
    return at
