"""Users' YAML files: what stands there is what is read.

A plain scalar has the value that it looks like: `true` and `false`, `null` and `~`, decimal numbers; everything else is text, as
it is written. YAML 1.1 reads `no` as false, `010` as 8, `1:30` as 90 and `2026-01-01` as a date; here they are texts
(`Scalar.trap` says what else they could mean). Tags are refused, and so is a key that a mapping has twice: one of its two values
would be lost.
"""

import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shared.errors import ConfigError
from shared.files.text_file import read_text_file

_STR, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_TRAPS = (  # plain scalars that YAML 1.1, YAML 1.2 or people read as different things
    (re.compile(r"yes|no|on|off", re.IGNORECASE), "a truth value in YAML 1.1"),
    (re.compile(r"[-+]?0[0-9_]+"), "octal in YAML 1.1"),
    (re.compile(r"[-+]?0[xob][0-9a-fA-F_]+"), "not decimal"),
    (re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"), "base 60 in YAML 1.1"),
    (re.compile(r"[-+]?[0-9.]+(_[0-9.]+)+([eE].*)?"), "a number in YAML 1.1"),
)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar without quotes, as it is written."""

    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def value(self) -> Any:
        if self.text in _CONSTANTS:
            return _CONSTANTS[self.text]
        if len(self.text) < 4000 and _INT.fullmatch(self.text):  # Python converts at most 4,300 digits
            return int(self.text)
        number = float(self.text) if _FLOAT.fullmatch(self.text) else math.inf
        return number if math.isfinite(number) else self.text

    @property
    def trap(self) -> str:
        """What it may mean besides the text that is read; empty: nothing."""
        return next((meaning for pattern, meaning in _TRAPS if pattern.fullmatch(self.text)), "")


@dataclass(frozen=True, slots=True)
class YamlFile:
    """`written`: the whole file with a `Scalar` for each plain scalar; `root`: its nodes, None for an empty file."""

    path: Path
    written: Any
    root: yaml.Node | None

    @property
    def values(self) -> Any:
        try:
            return plain(self.written)
        except RecursionError as exc:
            raise ConfigError(f"{self.path}: nested too deeply") from exc

    def line_of(self, place: Sequence[str | int]) -> int:
        """The line of a value, or of the deepest existing part of its path."""
        return line_of(self.root, place)


def open_yaml_file(path: Path) -> YamlFile:
    """Raises ConfigError."""
    text = read_text_file(path, "a YAML file")
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        return YamlFile(path, None if root is None else loader.construct_document(root), root)
    except _GivenTwice as exc:
        raise ConfigError(f"{path}:{exc}") from exc
    except yaml.constructor.ConstructorError as exc:
        line = "" if exc.problem_mark is None else f":{exc.problem_mark.line + 1}"
        raise ConfigError(f"{path}{line}: {exc.problem}; expected plain values, without tags") from exc
    except (yaml.YAMLError, ValueError) as exc:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(exc).split())}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{path}: nested too deeply") from exc


def read_yaml_file(path: Path) -> tuple[Any, yaml.Node | None]:
    """Read the file's plain value and its node, which has line numbers; (None, None) if it is empty. Raises ConfigError."""
    file = open_yaml_file(path)
    return file.values, file.root


def plain(written: Any, seen: dict[int, Any] | None = None) -> Any:
    """The values of scalars. What an anchor repeats is shared, also where it contains itself."""
    seen = {} if seen is None else seen
    if isinstance(written, Scalar):
        return written.value
    if id(written) in seen:
        return seen[id(written)]
    if isinstance(written, dict):
        mapping: dict[Any, Any] = {}
        seen[id(written)] = mapping
        mapping.update((name, plain(value, seen)) for name, value in written.items())
        return mapping
    if isinstance(written, list):
        items: list[Any] = []
        seen[id(written)] = items
        items.extend(plain(value, seen) for value in written)
        return items
    return written


def line_of(node: yaml.Node | None, place: Sequence[str | int]) -> int:
    """The line of the value at `place`, or of the deepest existing part of its path."""
    line = 0 if node is None else node.start_mark.line
    for part in place:
        if isinstance(node, yaml.MappingNode):
            entry = next(((key, value) for key, value in node.value if key.value == str(part)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            entry = (node.value[part], node.value[part])
        else:
            entry = None
        if entry is None:
            break
        line, node = entry[0].start_mark.line, entry[1]
    return int(line) + 1


class _GivenTwice(Exception):
    """Message: `LINE: the key, and its earlier line`."""


class _Loader(yaml.SafeLoader):
    """Checks keys as written, so that keys merged by `<<` may be overridden."""

    yaml_implicit_resolvers = {"<": [(_MERGE, re.compile(r"<<"))]}  # noqa: RUF012 - PyYAML's own attribute

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[Hashable, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line, name = key.start_mark.line + 1, (key.tag, key.value)
            if name in lines:
                raise _GivenTwice(f"{line}: {key.value!r} is given again, after line {lines[name]}; expected it once")
            lines[name] = line
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        mapping = super().construct_mapping(node, deep)
        return {key.text if isinstance(key, Scalar) else key: value for key, value in mapping.items()}


def _scalar(loader: _Loader, node: yaml.ScalarNode) -> Scalar | str:
    return Scalar(node.value) if node.style is None else str(node.value)


def _tagged(loader: _Loader, node: yaml.Node) -> Any:
    raise yaml.constructor.ConstructorError(None, None, f"found the tag {node.tag!r}", node.start_mark)


_Loader.yaml_constructors = {
    _STR: _scalar,
    "tag:yaml.org,2002:map": yaml.SafeLoader.construct_yaml_map,
    "tag:yaml.org,2002:seq": yaml.SafeLoader.construct_yaml_seq,
    None: _tagged,
}
