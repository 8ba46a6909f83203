"""The files of a model's directory that say how images are processed: config.json, preprocessor_config.json,
processor_config.json, tokenizer.json.

A setting that is not known is refused by name: left out in silence, it would give the model other pixels than it was trained on.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from shared.errors import ConfigError
from shared.files.json_file import read_json_file

# Without influence on an image: names of classes, the layout of arrays, settings of videos and of other modalities.
_INERT = frozenset(
    {
        "_name_or_path",
        "_processor_class",
        "chat_template",
        "data_format",
        "default_to_square",
        "disable_grouping",
        "do_convert_rgb",
        "feature_extractor_type",
        "image_processor_type",
        "processor_class",
        "return_row_col_info",
        "transformers_version",
        "video_processor",
        "video_sampling",
    }
)
_REMEDY = "expected a setting of this family's processor in transformers 5.23"


@dataclass(frozen=True)
class ModelFiles:
    """The files of `folder`, whose config.json is `config`."""

    folder: Path
    config: Mapping[str, Any]

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """{text: id} of the tokenizer's added tokens. Raises ConfigError."""
        file = self.folder / "tokenizer.json"
        rows = _object(file, "a fast tokenizer").get("added_tokens")
        try:
            return {str(row["content"]): int(row["id"]) for row in rows or ()}
        except (TypeError, KeyError, ValueError) as exc:
            raise ConfigError(f'{file}: "added_tokens" is no list of {{"id", "content"}}') from exc

    def token_id(self, token: str, key: str) -> int:
        """Id of `token`, which config.json must have as `key`. Raises ConfigError."""
        expected, actual = self.config.get(key), self.added_tokens.get(token)
        if actual is None or expected != actual:
            raise ConfigError(
                f"{self.folder}: token {token!r} has the id {actual} in tokenizer.json, and {key} of config.json is {expected}; "
                "expected the same id in both"
            )
        return actual

    def require_names(self, names: Mapping[str, str]) -> None:
        """tokenizer_config.json may name tokens: {"image_token": "<image>"}. Raises ConfigError for another text."""
        file = self.folder / "tokenizer_config.json"
        config = _object(file, "the tokenizer's settings") if file.is_file() else {}
        extra = config.get("extra_special_tokens")
        for name, expected in names.items():
            value = config.get(name) or (extra.get(name) if isinstance(extra, dict) else None)
            text = value.get("content") if isinstance(value, dict) else value
            if text is not None and text != expected:
                raise ConfigError(f"{file}: {name} is {text!r}; expected {expected!r}")

    def image_settings(self, types: Collection[str]) -> "ImageSettings":
        """Of the image processor, whose class is one of `types`. Raises ConfigError.

        As in transformers, `image_processor` of processor_config.json comes before preprocessor_config.json.
        """
        file, values = self.folder / "processor_config.json", self._processor.get("image_processor")
        if values is None:
            file = self.folder / "preprocessor_config.json"
            values = _object(file, "the settings of the model's image processor")
        if not isinstance(values, dict):
            raise ConfigError(f"{file}: image_processor is {type(values).__name__}; expected an object of settings")
        kind = values.get("image_processor_type")
        if kind is not None and str(kind).removesuffix("Fast").removesuffix("Pil") not in types:
            raise ConfigError(f"{file}: image_processor_type is {kind!r}; expected one of {', '.join(sorted(types))}")
        return ImageSettings(file, dict(values))

    def processor_settings(self) -> "ImageSettings":
        """Of processor_config.json but for its `image_processor`; none where there is no such file."""
        values = {name: value for name, value in self._processor.items() if name != "image_processor"}
        return ImageSettings(self.folder / "processor_config.json", values)

    @cached_property
    def _processor(self) -> Mapping[str, Any]:
        file = self.folder / "processor_config.json"
        return _object(file, "the processor's settings") if file.is_file() else {}


@dataclass(frozen=True)
class ImageSettings:
    """`values` of `file`. `flag`, `number` and the like read one setting each; `finish` refuses those that were not read."""

    file: Path
    values: dict[str, Any]
    read: set[str] = field(default_factory=set)

    def flag(self, name: str, default: bool) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def count(self, name: str, default: int) -> int:
        value = self.take(name, default)
        if not is_count(value):
            raise self.wrong(name, value, "a whole number of at least 1")
        return int(value)

    def factor(self, name: str, default: float) -> float:
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.wrong(name, value, "a number above 0")
        return float(value)

    def channels(self, name: str, default: tuple[float, float, float]) -> tuple[float, float, float]:
        """Three numbers, of red, green and blue; one number stands for all three."""
        value = self.take(name, default)
        numbers = list(value) if isinstance(value, list | tuple) else [value] * 3
        if len(numbers) != 3 or any(isinstance(one, bool) or not isinstance(one, int | float) for one in numbers):
            raise self.wrong(name, value, "three numbers")
        return float(numbers[0]), float(numbers[1]), float(numbers[2])

    def edges(self, name: str, value: Any, keys: Collection[str]) -> dict[str, int]:
        """`value` of `name`: an object with exactly `keys`, such as {"longest_edge": 1456}. A key with null counts as absent."""
        given = {key: one for key, one in value.items() if one is not None} if isinstance(value, Mapping) else {}
        if given.keys() != set(keys) or not all(map(is_count, given.values())):
            raise self.wrong(name, value, f"an object with {' and '.join(sorted(keys))}, whole numbers of at least 1")
        return given

    def take(self, name: str, default: Any) -> Any:
        """The value, of any type; `default` if the setting is missing or null."""
        self.read.add(name)
        value = self.values.get(name)
        return default if value is None else value

    def finish(self) -> None:
        """Raises ConfigError, which names the first unread setting."""
        rest = sorted(
            name for name, value in self.values.items() if value is not None and name not in self.read | _INERT
        )
        if rest:
            raise ConfigError(f"{self.file}: {rest[0]} is {self.values[rest[0]]!r}, which is not supported; {_REMEDY}")

    def wrong(self, name: str, value: Any, expected: str) -> ConfigError:
        return ConfigError(f"{self.file}: {name} is {value!r}; expected {expected}")


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _object(file: Path, expected: str) -> dict[str, Any]:
    value = read_json_file(file, expected, keys_once=False)
    if not isinstance(value, dict):
        raise ConfigError(f"{file} contains {type(value).__name__}; expected an object: {expected}")
    return value
