"""Users' YAML files. A duplicate key in a mapping is an error: one of the two values would be lost silently."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from shared.errors import ConfigError
from shared.files.text_file import read_text_file


def read_yaml_file(path: Path) -> tuple[Any, yaml.Node | None]:
    """Read the file's value and its node, which has line numbers; (None, None) if it is empty. Raises ConfigError."""
    text = read_text_file(path, "a YAML file")
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        return (None if root is None else loader.construct_document(root)), root
    except _GivenTwice as exc:
        raise ConfigError(f"{path}:{exc}") from exc
    except yaml.constructor.ConstructorError as exc:
        line = "" if exc.problem_mark is None else f":{exc.problem_mark.line + 1}"
        raise ConfigError(f"{path}{line}: {exc.problem}; expected plain values, without tags") from exc
    except (yaml.YAMLError, ValueError) as exc:  # ValueError: an invalid date, such as 2026-02-30
        raise ConfigError(f"{path}: not YAML: {' '.join(str(exc).split())}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{path}: nested too deeply") from exc


class _GivenTwice(Exception):
    """Message: `LINE: the key, and its earlier line`."""


class _Loader(yaml.SafeLoader):
    """Checks keys as written, so that keys merged by `<<` may be overridden."""

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
