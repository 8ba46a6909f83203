"""A service's section of a YAML file: its values, as they are written there, and the line of each."""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.files.yaml_file import YamlFile


class FileSection(dict[str, Any]):
    """Plain values. `written`: the same with scalars as they are written, for `typed`."""

    def __init__(
        self, values: Mapping[str, Any], written: dict[str, Any], file: YamlFile | None, place: Sequence[str]
    ) -> None:
        super().__init__(values)
        self.written = written
        self._file, self._place = file, tuple(place)

    def line_of(self, place: Sequence[str | int]) -> int:
        assert self._file is not None, "a section with values is of a file"
        return self._file.line_of((*self._place, *place))

    def at(self, place: Sequence[str | int]) -> str:
        """`FILE:LINE` of a value."""
        assert self._file is not None, "a section with values is of a file"
        return f"{self._file.path}:{self.line_of(place)}"
