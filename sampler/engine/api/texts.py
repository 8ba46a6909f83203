"""Texts and token ids of a served model: the tokenizer of its folder, its chat template, its ends of sequence."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

from sampler.core.rendering.template import ChatTemplate
from shared.errors import ConfigError

log = logging.getLogger(__name__)


class ModelTexts:
    """`chat_template`: None where the folder has none; then all routes but the chat's work."""

    def __init__(self, model_path: Path) -> None:
        """Raises ConfigError for a folder without a tokenizer.json."""
        file = model_path / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"{model_path}: no tokenizer.json there; the engine needs a fast tokenizer")
        self._folder = model_path
        self._tokenizer = Tokenizer.from_file(str(file))
        self.chat_template: ChatTemplate | None = None
        try:
            self.chat_template = ChatTemplate.from_dir(model_path)
        except ConfigError as error:
            log.info("no chat route: %s", error)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def encode_part(self, text: str) -> list[int]:
        """Of a text inside of a prompt: nothing is added that begins or ends one."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def eos_ids(self, configured: Iterable[int | list[int] | None]) -> frozenset[int]:
        """The tokenizer's, and those `configured`: `eos_token_id` of the model's configs."""
        ids = {
            one for value in configured for one in (value if isinstance(value, list) else [value]) if one is not None
        }
        token = self._eos_token()
        number = self._tokenizer.token_to_id(token) if token else None
        return frozenset(ids if number is None else ids | {number})

    def _eos_token(self) -> str | None:
        file = self._folder / "tokenizer_config.json"
        if not file.is_file():
            return None
        token = json.loads(file.read_text()).get("eos_token")
        return token.get("content") if isinstance(token, dict) else token
