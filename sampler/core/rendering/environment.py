"""The jinja2 environment of chat templates: transformers' own filters and globals, in a sandbox."""

import json
import re
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sampler.core.rendering.marks import MARK_END, MARK_START
from shared.errors import ConfigError

_BEYOND_ASCII = re.compile(r"[^\x00-\x7e]")
_OF_DICTS = frozenset(dir(dict))  # names that are methods of every dict, also where it has such a key


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the model's text for masks, which are not needed here: plain content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _MessagesEnvironment(ImmutableSandboxedEnvironment):
    """`message.role` of a plain dict is looked up as the sandbox does in the end, without the two exceptions before."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _OF_DICTS and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


def template_environment() -> ImmutableSandboxedEnvironment:
    environment = _MessagesEnvironment(
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
    """jinja2's own filter escapes HTML characters, which does not match the models' training data."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _BEYOND_ASCII.sub(_escaped, text) if ensure_ascii else text


def _escaped(match: re.Match[str]) -> str:
    """Escapes a character as `json.dumps` does, but keeps marks."""
    return match.group() if match.group() in (MARK_START, MARK_END) else json.dumps(match.group())[1:-1]


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def literal_texts(environment: jinja2.Environment, template_text: str) -> list[str]:
    """All literal texts of the template."""
    try:
        tree = environment.parse(template_text)
    except jinja2.TemplateSyntaxError as exc:
        raise ConfigError(f"chat template, line {exc.lineno}: {exc.message}") from exc
    literals = [node.data for node in tree.find_all(jinja2.nodes.TemplateData)]
    return literals + [node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)]
