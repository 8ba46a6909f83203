"""Chat templates that ignore `tools`: found by a sentinel, and completed so that the model reads of its tools.

    tools given   system: the text that was there, the schemas, one a line, and how a call is written (the parser's form)
    none          the template as it was

The addition is Jinja, put before the template's own text: everything that reads the completed text renders the same prompt, also
transformers' `apply_chat_template`. As in the template's own text, control tokens in schemas are encoded as plain characters.
"""

import json

from sampler.core.parsers import get_parser
from sampler.core.parsers.forms import CALL_FORMS
from sampler.core.rendering.instructions import SystemRole, system_role
from sampler.core.rendering.template import ChatTemplate, Message
from sampler.core.rendering.turn_format import make_sentinel
from shared.errors import ConfigError

HEAD = "# Tools\n\nYou may call these functions. The JSON schema of each is a line:\n<tools>"
TAIL = "\n</tools>\n\nCall a function by a reply of this form, in which NAME, KEY and VALUE are replaced:\n"
_USER: Message = {"role": "user", "content": "."}


def shows_tools(template: ChatTemplate) -> bool:
    """Whether a prompt with tools has their names, with a system message or without one."""
    name = make_sentinel()
    parameters = {"type": "object", "properties": {"key": {"type": "string", "description": "."}}}
    tools = [{"type": "function", "function": {"name": name, "description": ".", "parameters": parameters}}]
    for start in ([], [{"role": "system", "content": "."}]):
        try:
            if name not in template.render_marked([*start, _USER], tools, True):
                return False
        except ConfigError:
            if not start:
                return False
    return True


def completed(template: ChatTemplate, parser: str) -> ChatTemplate:
    """The template with the addition, in the form of `parser` (a name). Raises ConfigError if it does not show tools either."""
    get_parser(parser)
    addition = _JINJA.format(
        head=json.dumps(HEAD),
        tail=json.dumps(TAIL + CALL_FORMS[parser], ensure_ascii=False),
        place=_place(system_role(template), only_blocks=template.reads_only_blocks),
    )
    extended = template.with_text(addition + template.text)
    if not shows_tools(extended):
        raise ConfigError(
            "chat template: it shows neither tools nor a system message or a user's text that could describe them; expected "
            "chat_template to name a file with a template that does"
        )
    return extended


def _place(role: SystemRole, *, only_blocks: bool) -> str:
    if not role.shown:
        return _BEFORE_USER
    content = "DEFAULT ~ tandem.text" if not only_blocks else '[{"type": "text", "text": DEFAULT ~ tandem.text}]'
    return _IN_SYSTEM.replace("CONTENT", content).replace(
        "DEFAULT", json.dumps(f"{role.default}\n\n" if role.default else "", ensure_ascii=False)
    )


_JINJA = """\
{{%- if tools -%}}
{{%- set tandem = namespace(text={head}, messages=[], placed=false) -%}}
{{%- for tool in tools -%}}{{%- set tandem.text = tandem.text ~ "\\n" ~ (tool | tojson) -%}}{{%- endfor -%}}
{{%- set tandem.text = tandem.text ~ {tail} -%}}
{place}
{{%- set tools = none -%}}
{{%- endif -%}}
"""
_IN_SYSTEM = """\
{%- if messages and messages[0].role in ["system", "developer"] -%}
{%- if messages[0].content is string -%}
{%- set tandem.text = (messages[0].content ~ "\\n\\n" ~ tandem.text) if messages[0].content else tandem.text -%}
{%- else -%}
{%- set tandem.text = messages[0].content + [{"type": "text", "text": "\\n\\n" ~ tandem.text}] -%}
{%- endif -%}
{%- set messages = [dict(messages[0], content=tandem.text)] + messages[1:] -%}
{%- else -%}
{%- set messages = [{"role": "system", "content": CONTENT}] + messages -%}
{%- endif -%}"""
_BEFORE_USER = """\
{%- for message in messages -%}
{%- if message.role == "user" and message.content is string and not tandem.placed -%}
{%- set tandem.placed = true -%}
{%- set tandem.messages = tandem.messages + [dict(message, content=tandem.text ~ "\\n\\n" ~ message.content)] -%}
{%- else -%}
{%- set tandem.messages = tandem.messages + [message] -%}
{%- endif -%}
{%- endfor -%}
{%- set messages = tandem.messages if tandem.placed else [{"role": "user", "content": tandem.text}] + messages -%}"""
