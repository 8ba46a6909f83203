"""A model's tokenizer and chat template, without transformers or torch.

Promises
  * `render` gives the text that `transformers`' `apply_chat_template` gives, byte for byte: the same sandboxed jinja2
    environment, filters and globals.
  * Only the template may write control tokens. Untrusted text (a query, a tool's result, a tool's description) that
    contains `<|im_end|>` is encoded as ordinary characters, so a web page cannot end the model's turn or forge a tool
    result.

The second promise is kept as follows: before rendering, each control token in an untrusted string, keys of schemas included,
is wrapped in two private-use characters (`marks`). The rendered text is split at these marks: the text between them is
encoded as plain text, the rest as usual. BPE merges are therefore cut exactly where the tokenizer would cut them anyway, at
the control token; text without one is encoded in one piece and gives the usual ids.
(transformers 5 does the same for values, with `sanitize_control_tokens=True`.)

Control tokens are the tokenizer's special tokens and, in `user` and `tool` messages and in tool descriptions, also the
added tokens that the template itself writes (`<tool_response>`, `<tool_call>`, …). System messages are trusted; assistant
messages may contain non-special added tokens, because models write tool calls with them.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import jinja2
from tokenizers import Tokenizer

from sampler.core.rendering.content_form import jinja_content, reads_only_blocks
from sampler.core.rendering.environment import literal_texts, template_environment
from sampler.core.rendering.images import ImageTokens, image_tokens
from sampler.core.rendering.longest import LeastTokens
from sampler.core.rendering.marks import MARK_END, MARK_START, Marker, any_of, pieces, unmarked, without_marks
from sampler.core.rendering.resumed import RenderMemory, ResumableTemplate
from shared.errors import ConfigError
from shared.files.json_file import read_json_file
from shared.names import INSTRUCTING_ROLES

Message = Mapping[str, Any]
ToolSchema = Mapping[str, Any]

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LONG_CHARS = 2_000
_HARDLY_CHARS = 256  # of a token, where one may stand for a whole word, and blanks are left out
# Texts come one at a time, and a process that has used threads for a batch warns at every fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class PromptTooLong(ConfigError):
    """A prompt has at least `least` tokens, which are too many."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__(f"the prompt has at least {least} tokens; expected at most {most} (max_tokens)")
        self.least = least


# Exceptions that a template may raise on a conversation it was not written for.
_TEMPLATE_FAULTS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


# 22 methods: one object has all that a model's folder says of its texts
@dataclass(frozen=True, eq=False)
class ChatTemplate:
    """The template's variables: `special_tokens`, the named ones (`eos_token`, …), and `variables`, those of the settings
    (`enable_thinking: false`). `max_tokens`: a rendering that is certainly longer is refused before it is encoded."""

    tokenizer: Tokenizer
    text: str  # of the template
    template: jinja2.Template
    special_tokens: Mapping[str, str]
    special: Marker  # tokens that assistant messages may not contain
    control: Marker  # tokens that all other untrusted text may not contain
    added_re: re.Pattern[str]
    variables: Mapping[str, Any]
    max_tokens: int | None = None
    folder: Path | None = None  # of the model

    @classmethod
    def from_dir(
        cls, model_dir: Path | str, variables: Mapping[str, Any] | None = None, template_text: str | None = None
    ) -> Self:
        """Read `tokenizer.json`, `tokenizer_config.json` and the chat template of a model folder; `template_text`: in place of
        the last. Raises ConfigError."""
        folder = Path(model_dir)
        config = _read_json(folder / "tokenizer_config.json")
        tokenizer_file = folder / "tokenizer.json"
        if not tokenizer_file.is_file():
            raise ConfigError(f"{tokenizer_file} is missing; save the model's fast tokenizer next to its weights")
        try:
            tokenizer = Tokenizer.from_file(str(tokenizer_file))
        except Exception as exc:  # tokenizers raises only bare Exceptions
            raise ConfigError(f"{tokenizer_file}: not a tokenizer: {exc}") from exc
        try:
            text = _template_text(folder, config) if template_text is None else template_text
            return replace(cls.build(tokenizer, text, _named(config), variables), folder=folder)
        except ConfigError as exc:
            raise ConfigError(str(exc) if str(folder) in str(exc) else f"{folder}: {exc}") from exc

    @classmethod
    def build(
        cls,
        tokenizer: Tokenizer,
        template_text: str,
        special_tokens: Mapping[str, str],
        variables: Mapping[str, Any] | None = None,
    ) -> Self:
        """`special_tokens` maps `eos_token` and similar names to their text."""
        environment = template_environment()
        literals = literal_texts(environment, template_text)
        written = "\0".join(literals)  # a separator that cannot be part of a token
        added = list(tokenizer.get_added_tokens_decoder().values())
        special = [token.content for token in added if token.special]
        control = special + [t.content for t in added if t.content in written and not t.content.isspace()]
        normalizer = tokenizer.normalizer if any(token.normalized for token in added) else None
        normalize = None if normalizer is None else normalizer.normalize_str
        return cls(
            tokenizer=tokenizer,
            text=template_text,
            template=environment.from_string(template_text),
            special_tokens=dict(special_tokens),
            special=Marker.of(special, literals, normalize),
            control=Marker.of(control, literals, normalize),
            added_re=any_of([token.content for token in added]),
            variables=dict(variables or {}),
        )

    @cached_property
    def least_tokens(self) -> LeastTokens:
        return LeastTokens.of(self.tokenizer)

    @cached_property
    def images(self) -> ImageTokens | None:
        """None: a model of text, or of a family of vision models that is not known here (`require_images` names it)."""
        try:
            return self.require_images()
        except ConfigError:
            return None

    def require_images(self) -> ImageTokens | None:
        """None: a model of text. Raises ConfigError for a vision model whose images cannot be used here."""
        return None if self.folder is None else image_tokens(self.folder, self.encode_marked)

    @cached_property
    def reads_only_blocks(self) -> bool:
        """Whether it shows contents only where they are lists of blocks."""
        return reads_only_blocks(self.template, {**self.variables, **self.special_tokens})

    @cached_property
    def resumable(self) -> ResumableTemplate:
        return ResumableTemplate(self.template.environment, self.template, self.text)

    @property
    def digest(self) -> str:
        """Of the template's text: two processes render alike only where it is the same."""
        return text_digest(self.text)

    def with_text(self, template_text: str) -> Self:
        """The same tokenizer and variables with another template. Raises ConfigError."""
        other = self.build(self.tokenizer, template_text, self.special_tokens, self.variables)
        return replace(other, folder=self.folder)

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] | None, add_generation_prompt: bool = False
    ) -> str:
        """The conversation as text for people. For ids use `render_ids`, which is safe against injection."""
        return unmarked(self.render_marked(messages, tools, add_generation_prompt))

    def render_ids(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] | None, add_generation_prompt: bool = False
    ) -> list[int]:
        """The conversation as token ids; control tokens in untrusted text are encoded as plain text."""
        return self.encode_marked(self.render_marked(messages, tools, add_generation_prompt))

    def render_marked(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] | None, add_generation_prompt: bool = False
    ) -> str:
        """`render` with marks around the control tokens of untrusted text. Raises ConfigError."""
        marked = [self.mark(message) for message in messages]
        return self.render_prepared(marked, self.mark_tools(tools), add_generation_prompt)

    def render_prepared(
        self,
        marked: Sequence[Message],
        marked_tools: Sequence[ToolSchema] | None,
        add_generation_prompt: bool = False,
        now: datetime | None = None,
        memory: RenderMemory | None = None,
    ) -> str:
        """`render_marked` for the results of `mark` and `mark_tools`. `now`: the date for templates that write it, which must
        not change during an episode. `memory`: of the conversation's last rendering. Raises ConfigError; PromptTooLong."""
        given: dict[str, Any] = {**self.variables, **self.special_tokens}
        if now is not None:
            given["strftime_now"] = now.strftime
        given |= {"messages": list(marked), "tools": marked_tools, "documents": None}
        given["add_generation_prompt"] = add_generation_prompt
        try:
            text = self.template.render(given) if memory is None else self.resumable.render(given, memory)
        except _TEMPLATE_FAULTS as exc:
            roles = ", ".join(str(message.get("role")) for message in marked)
            raise ConfigError(f"chat template refused messages with roles [{roles}]: {exc}") from exc
        self.require_room(text, MARK_START + MARK_END)
        return text

    def require_room(self, text: str, ignored: str = "") -> None:
        """Raises PromptTooLong if `max_tokens` tokens cannot hold the text; where the tokenizer has no bound, of so many
        characters that they hardly can."""
        if self.max_tokens is None:
            return
        longest = self.least_tokens.longest
        if len(text) <= self.max_tokens * (longest or _HARDLY_CHARS):  # at most one token for each `longest` characters
            return
        least = len(text) // _HARDLY_CHARS if longest is None else self.least_tokens(text, ignored)
        if least > self.max_tokens:
            raise PromptTooLong(least, self.max_tokens)

    def mark(self, message: Message) -> Message:
        """A copy with the control tokens in untrusted strings marked. The role is trusted: templates make tokens of it."""
        role = message.get("role")
        if role in INSTRUCTING_ROLES:
            return self.shaped(without_marks(message))
        marker = self.special if role == "assistant" else self.control
        return self.shaped({key: item if key == "role" else marker.mark(item) for key, item in message.items()})

    def shaped(self, message: Message) -> Message:
        """With the form of content that the template reads."""
        return jinja_content(message, only_blocks=self.reads_only_blocks)

    def mark_tools(self, tools: Sequence[ToolSchema] | None) -> Sequence[ToolSchema] | None:
        marked: Sequence[ToolSchema] | None = self.control.mark(list(tools)) if tools else None
        return marked

    def encode(self, text: str) -> list[int]:
        """Ids of trusted text: special tokens in it are recognized, none are added. While one is encoded, other threads run:
        only batches release Python's lock."""
        if len(text) < _LONG_CHARS:
            return self.tokenizer.encode(text, add_special_tokens=False).ids
        return self.tokenizer.encode_batch([text], add_special_tokens=False)[0].ids

    def encode_marked(self, text: str) -> list[int]:
        """Ids of a text made by `render_marked`."""
        ids: list[int] = []
        for piece, is_marked in pieces(text):
            ids += self.encode_plain(piece) if is_marked else self.encode(piece)
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Ids of `text` as ordinary characters: no added token in it is recognized, special or not."""
        tokenizer = self.tokenizer
        if tokenizer.normalizer is not None:
            text = tokenizer.normalizer.normalize_str(text)
        words = [text]
        if tokenizer.pre_tokenizer is not None:
            words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for word in words for token in tokenizer.model.tokenize(word)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included. Encoding it again may give other ids: keep the ids."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def token_id(self, text: str) -> int | None:
        """Id of the token with exactly this text; None if there is none."""
        return self.tokenizer.token_to_id(text)


def template_text(folder: Path) -> str:
    """Of a model's folder. Raises ConfigError."""
    return _template_text(folder, _read_json(folder / "tokenizer_config.json"))


def text_digest(template_text: str) -> str:
    return hashlib.sha256(template_text.encode()).hexdigest()[:16]


def _template_text(folder: Path, config: Mapping[str, Any]) -> str:
    """`chat_template.jinja` wins over the key in `tokenizer_config.json`, as in transformers."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    value = config.get("chat_template")
    if isinstance(value, list):  # several named templates
        value = {entry["name"]: entry["template"] for entry in value}.get("default")
    if not isinstance(value, str):
        raise ConfigError(
            f"{folder}: no chat template; add chat_template.jinja, or chat_template in tokenizer_config.json"
        )
    return value


def _named(config: Mapping[str, Any]) -> dict[str, str]:
    named: dict[str, str] = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        content = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str):
            named[name] = content
    return named


def _read_json(path: Path) -> dict[str, Any]:
    value = read_json_file(path, "a model folder with its tokenizer", keys_once=False)
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: found {type(value).__name__}; expected a JSON object")
    return value
