"""References of a JSON schema to its own parts. Others are never fetched."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_FOLDERS = ("$defs", "definitions")


def resolved(root: Any, reference: Any) -> Any:
    """The part of `root` that `reference` names (`#`, `#/$defs/A`, `#anchor`, or an `$id`). True, which allows everything, if
    there is none."""
    if not isinstance(reference, str) or not isinstance(root, Mapping):
        return True
    own = root.get("$id")
    if isinstance(own, str) and own and reference.startswith(own.rstrip("#")):
        reference = reference[len(own.rstrip("#")) :] or "#"
    if reference == "#":
        return root
    if reference.startswith("#/"):
        return _pointed(root, reference[2:].split("/"))
    return _named(root, reference)


def _pointed(root: Any, steps: list[str]) -> Any:
    value = root
    for step in steps:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name[:9]) < len(value):
            value = value[int(name[:9])]
        else:
            return True
    return value


def _named(root: Mapping[str, Any], reference: str) -> Any:
    for folder in _FOLDERS:
        definitions = root.get(folder)
        for one in definitions.values() if isinstance(definitions, Mapping) else ():
            if isinstance(one, Mapping) and reference in (
                one.get("$id"), *(f"#{one[key]}" for key in ("$anchor", "$dynamicAnchor") if key in one),
            ):  # fmt: skip
                return one
    return True
