"""Text of a terminal as plain text: what its colors say stays, in brackets; escapes and control characters go.

    "\\x1b[41mS\\x1b[0mFFF"  ─▶  "[S]FFF"           "\\x1b[36mA\\x1b[0m \\x1b[1mB\\x1b[0m"  ─▶  "cyan[A] *B*"

Every style has brackets of its own, so that what differs in color alone stays apart. Standard library only, as workers are.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

COLORS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
# Of styles that Gymnasium's worlds draw with; of all others, the style's name before [ ].
BRACKETS = {
    "red highlight": ("[", "]"),
    "yellow highlight": ("[", "]"),
    "green highlight": ("{", "}"),
    "inverse": ("[", "]"),
    "blue": ("(", ")"),
    "magenta": ("<", ">"),
    "bold": ("*", "*"),
}
_STYLE = re.compile(r"(?:\x1b\[|\x9b)([\d;:]*)m")
# Of terminals: commands with parameters; texts for them (titles, links), up to their end; two characters; whatever is cut.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*(?:[@-~]|$)"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]|\x1b"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NEW_LINE = re.compile(r"\r+\n|\r")


@dataclass(frozen=True, slots=True)
class _Style:
    color: str = ""
    highlight: str = ""
    bold: bool = False
    inverse: bool = False

    @property
    def names(self) -> list[str]:
        """From the outside in."""
        words = [f"{self.highlight} highlight"] if self.highlight else []
        words += ["inverse"] if self.inverse else []
        words += [self.color] if self.color else []
        return words or (["bold"] if self.bold else [])


def plain_text(text: str) -> str:
    """Without escapes and control characters, but for tabs and ends of lines."""
    if not _CONTROL.search(text):
        return text
    text = "".join(_bracketed(text)) if _STYLE.search(text) else text
    return _CONTROL.sub("", _ESCAPE.sub("", _NEW_LINE.sub("\n", text)))


def _bracketed(text: str) -> Iterator[str]:
    style, at = _Style(), 0
    open_names: list[str] = []
    for match in _STYLE.finditer(text):
        part = text[at : match.start()]
        if part:
            yield from _changed(open_names, style.names)
            open_names = style.names
            yield part
        style, at = _after(style, [int(code or 0) for code in re.split("[;:]", match[1])]), match.end()
    if text[at:]:
        yield from _changed(open_names, style.names)
        open_names = style.names
        yield text[at:]
    yield from _changed(open_names, [])


def _changed(before: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    """The brackets between two parts of the text: those of both stay open."""
    same = 0
    while same < min(len(before), len(now)) and before[same] == now[same]:
        same += 1
    for name in reversed(before[same:]):
        yield _brackets(name)[1]
    for name in now[same:]:
        yield _brackets(name)[0]


def _brackets(name: str) -> tuple[str, str]:
    return BRACKETS.get(name) or (f"{name.replace(' ', '-')}[", "]")


def _after(style: _Style, codes: list[int]) -> _Style:
    """The style after a command's codes (ECMA-48, "select graphic rendition")."""
    codes = list(codes)
    while codes:
        code = codes.pop(0)
        if code == 0:
            style = _Style()
        elif code in (38, 48):
            color = _extended(codes)
            style = replace(style, color=color) if code == 38 else replace(style, highlight=color)
        elif code in _BOLD:
            style = replace(style, bold=_BOLD[code])
        elif code in (7, 27):
            style = replace(style, inverse=code == 7)
        elif code in _NAMED:
            field, color = _NAMED[code]
            style = replace(style, color=color) if field == "color" else replace(style, highlight=color)
    return style


_BOLD = {
    **dict.fromkeys((1, 3, 4, 9, 21), True),
    **dict.fromkeys((22, 23, 24, 29), False),
}  # and other ways to stand out
_NAMED = {
    **{30 + k: ("color", name) for k, name in enumerate(COLORS)},
    **{40 + k: ("highlight", name) for k, name in enumerate(COLORS)},
    **{90 + k: ("color", f"bright {name}") for k, name in enumerate(COLORS)},
    **{100 + k: ("highlight", f"bright {name}") for k, name in enumerate(COLORS)},
    39: ("color", ""),
    49: ("highlight", ""),
}


def _extended(codes: list[int]) -> str:
    """The color that follows 38 or 48, which is taken from the codes. Gymnasium's crimson is 38 alone."""
    if codes[:1] == [5] and len(codes) > 1:
        _, number = codes.pop(0), codes.pop(0)
        return f"color {number}"
    if codes[:1] == [2] and len(codes) > 3:
        _, *rgb = codes[:4]
        del codes[:4]
        return "#" + "".join(f"{min(255, one):02x}" for one in rgb)
    return "crimson"
