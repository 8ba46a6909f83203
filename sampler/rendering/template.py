"""A model's tokenizer and chat template, without transformers or torch.

Promises
  * `render` gives the text that `transformers`' `apply_chat_template` gives, byte for byte: the same sandboxed jinja2
    environment, filters and globals.
  * Only the template may write control tokens. Text that comes from outside (a query, a tool's result, a tool's
    description) and spells `<|im_end|>` is encoded as the ordinary characters it consists of, so a web page cannot end
    the model's turn or forge a tool's answer.

How the second promise is kept: before rendering, each control token spelled in an untrusted string is wrapped in two
private-use characters (MARK_START, MARK_END). The rendered text is split at these marks: what stands between them is
encoded as plain text, all else as usual. The borders of BPE merges are therefore cut exactly where the tokenizer would
have cut them anyway, at the spelled token; text that spells none is encoded in one piece and gives the usual ids.
(transformers 5 has the same construction behind `sanitize_control_tokens=True`.)

Control tokens are the tokenizer's special tokens and, in `user` and `tool` messages and in tool descriptions, also those
added tokens that the template itself writes (`<tool_response>`, `<tool_call>`, …). System messages are trusted; assistant
messages may spell non-special added tokens, since that is how the model calls tools.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Self

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from shared.errors import ConfigError
from shared.json_file import read_json_file

Message = Mapping[str, Any]
ToolSchema = Mapping[str, Any]

MARK_START, MARK_END = "\U000f0000", "\U000f0001"
_MARKS = {ord(MARK_START): None, ord(MARK_END): None}
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TRUSTED_ROLES = ("system", "developer")


# What a template's own Python can raise on a conversation that it was not written for.
_TEMPLATE_FAULTS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


@dataclass(frozen=True, eq=False)
class ChatTemplate:
    """The template sees as variables: `special_tokens`, the named ones (`eos_token`, …), and `variables`, whatever the
    operator gives it (`enable_thinking: false`)."""

    tokenizer: Tokenizer
    template: jinja2.Template
    special_tokens: Mapping[str, str]
    special_re: re.Pattern[str]
    control_re: re.Pattern[str]
    added_re: re.Pattern[str]
    variables: Mapping[str, Any]

    @classmethod
    def from_dir(cls, model_dir: Path | str, variables: Mapping[str, Any] | None = None) -> Self:
        """Read `tokenizer.json`, `tokenizer_config.json` and the chat template of a model folder. Raises ConfigError."""
        folder = Path(model_dir)
        config = _read_json(folder / "tokenizer_config.json")
        tokenizer_file = folder / "tokenizer.json"
        if not tokenizer_file.is_file():
            raise ConfigError(f"{tokenizer_file} is missing; save the model's fast tokenizer beside its weights")
        try:
            tokenizer = Tokenizer.from_file(str(tokenizer_file))
        except Exception as exc:  # tokenizers raises bare Exceptions, and nothing else
            raise ConfigError(f"{tokenizer_file}: no tokenizer: {exc}") from exc
        return cls.build(tokenizer, _template_text(folder, config), _named(config), variables)

    @classmethod
    def build(
        cls,
        tokenizer: Tokenizer,
        template_text: str,
        special_tokens: Mapping[str, str],
        variables: Mapping[str, Any] | None = None,
    ) -> Self:
        """`special_tokens` maps `eos_token` and the like to their text."""
        environment = _environment()
        written = _literals(environment, template_text)
        added = list(tokenizer.get_added_tokens_decoder().values())
        special = [token.content for token in added if token.special]
        control = special + [t.content for t in added if t.content in written and not t.content.isspace()]
        return cls(
            tokenizer=tokenizer,
            template=environment.from_string(template_text),
            special_tokens=dict(special_tokens),
            special_re=_any_of(special),
            control_re=_any_of(control),
            added_re=_any_of([token.content for token in added]),
            variables=dict(variables or {}),
        )

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] | None, add_generation_prompt: bool = False
    ) -> str:
        """The conversation as text, as people read it. To get ids use `render_ids`, which is safe against injection."""
        return self.render_marked(messages, tools, add_generation_prompt).translate(_MARKS)

    def render_ids(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] | None, add_generation_prompt: bool = False
    ) -> list[int]:
        """The conversation as token ids; control tokens spelled by untrusted text are plain text."""
        return self.encode_marked(self.render_marked(messages, tools, add_generation_prompt))

    def render_marked(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] | None, add_generation_prompt: bool = False
    ) -> str:
        """`render` with MARK_START and MARK_END around the control tokens of untrusted text. Raises ConfigError."""
        marked = [self.mark(message) for message in messages]
        return self.render_prepared(marked, self.mark_tools(tools), add_generation_prompt)

    def render_prepared(
        self,
        marked: Sequence[Message],
        marked_tools: Sequence[ToolSchema] | None,
        add_generation_prompt: bool = False,
        now: datetime | None = None,
    ) -> str:
        """`render_marked` of what `mark` and `mark_tools` gave. `now`: the date for templates that write it, which must
        not change in the middle of an episode."""
        given = {**self.variables, **self.special_tokens}
        if now is not None:
            given["strftime_now"] = now.strftime
        try:
            return self.template.render(
                given
                | {"messages": list(marked), "tools": marked_tools, "documents": None}
                | {"add_generation_prompt": add_generation_prompt}
            )
        except _TEMPLATE_FAULTS as exc:
            roles = ", ".join(str(message.get("role")) for message in marked)
            raise ConfigError(f"chat template refused messages with roles [{roles}]: {exc}") from exc

    def mark(self, message: Message) -> Message:
        """A copy whose untrusted strings have their control tokens marked."""
        role = message.get("role")
        control_re = None
        if role not in _TRUSTED_ROLES:
            control_re = self.special_re if role == "assistant" else self.control_re
        marked: Message = _marked(message, control_re)
        return marked

    def mark_tools(self, tools: Sequence[ToolSchema] | None) -> Sequence[ToolSchema] | None:
        marked: Sequence[ToolSchema] | None = _marked(list(tools), self.control_re) if tools else None
        return marked

    def encode(self, text: str) -> list[int]:
        """Ids of trusted text: special tokens in it are recognized, none are added."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_marked(self, text: str) -> list[int]:
        """Ids of a text made by `render_marked`."""
        if MARK_START not in text and MARK_END not in text:
            return self.encode(text)
        ids: list[int] = []
        # re.split with one group: text, marked token, text, marked token, …; None where a mark stands alone.
        for index, piece in enumerate(re.split(f"{MARK_START}(.*?){MARK_END}|{MARK_START}|{MARK_END}", text)):
            if piece:
                ids += self.encode_plain(piece) if index % 2 else self.encode(piece)
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Ids of `text` as ordinary characters: no added token is recognized in it, special or not."""
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
        """Id of the token spelled exactly `text`; None where there is none."""
        return self.tokenizer.token_to_id(text)


def _marked(value: Any, control_re: re.Pattern[str] | None) -> Any:
    """A copy in plain types, with every control token in its strings marked. Keys and roles are left as they are."""
    if isinstance(value, str):
        plain = value.translate(_MARKS)  # a mark that comes from outside could forge a marked token
        return plain if control_re is None else control_re.sub(f"{MARK_START}\\g<0>{MARK_END}", plain)
    if isinstance(value, Mapping):
        return {key: _marked(item, control_re) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(item, control_re) for item in value]
    return value


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    longest_first = sorted(set(tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model wrote, for masks that we do not need: plain content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes HTML characters, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _literals(environment: jinja2.Environment, template_text: str) -> str:
    """Every text that the template writes literally, joined by a character that cannot be part of a token."""
    try:
        tree = environment.parse(template_text)
    except jinja2.TemplateSyntaxError as exc:
        raise ConfigError(f"chat template, line {exc.lineno}: {exc.message}") from exc
    found = [node.data for node in tree.find_all(jinja2.nodes.TemplateData)]
    found += [node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)]
    return "\0".join(found)


def _template_text(folder: Path, config: Mapping[str, Any]) -> str:
    """`chat_template.jinja` wins over the key in `tokenizer_config.json`, as in transformers."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):  # several named ones
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    if not isinstance(found, str):
        raise ConfigError(
            f"{folder}: no chat template; add chat_template.jinja, or chat_template in tokenizer_config.json"
        )
    return found


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
