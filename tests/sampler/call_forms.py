"""How the models of each family write calls, in the pieces that go wrong: names, arguments, tags."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

Arguments = dict[str, Any]
Call = tuple[str, Arguments]


@dataclass(frozen=True)
class Form:
    """`one`: a call of a name with arguments as they are written; `wrap`: several of them; `body`: arguments, well written.
    `start`, `end`: the tags around; `kind`: of the arguments, named (`"name"` beside them), json, bare or python."""

    family: str
    parser: str
    kind: str
    start: str
    end: str
    one: Callable[[str, str], str]
    wrap: Callable[[Sequence[str]], str]
    body: Callable[[Arguments], str]

    def call(self, name: str, body: str) -> str:
        return self.wrap([self.one(name, body)])

    def written(self, *calls: Call) -> str:
        return self.wrap([self.one(name, self.body(arguments)) for name, arguments in calls])


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def bare(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


def _coder(arguments: Arguments) -> str:
    return "".join(f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in arguments.items())


def _glm(arguments: Arguments) -> str:
    return "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{bare(value)}</arg_value>\n" for key, value in arguments.items()
    )


def _python(arguments: Arguments) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


def _joined(before: str, between: str, after: str, ones: Sequence[str]) -> str:
    return before + between.join(ones) + after


TAG, END_TAG = "<tool_call>", "</tool_call>"
_DEEP, _END_DEEP = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEP_CALL, _DEEP_SEP, _END_DEEP_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_KIMI, _END_KIMI = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

FORMS = (
    Form(
        "hermes", "hermes", "named", TAG, END_TAG,
        lambda name, body: f'{TAG}\n{{"name": "{name}", "arguments": {body}}}\n{END_TAG}',
        "\n".join, as_json,
    ),
    Form(
        "qwen3_coder", "qwen3_coder", "bare", TAG, END_TAG,
        lambda name, body: f"{TAG}\n<function={name}>\n{body}</function>\n{END_TAG}",
        "\n".join, _coder,
    ),
    Form(
        "glm45", "glm45", "bare", TAG, END_TAG,
        lambda name, body: f"{TAG}{name}\n{body}{END_TAG}",
        "\n".join, _glm,
    ),
    Form(
        "llama3", "llama3", "named", "<|python_tag|>", "",
        lambda name, body: f'{{"name": "{name}", "parameters": {body}}}',
        partial(_joined, "<|python_tag|>", "; ", ""), as_json,
    ),
    Form(
        "llama3, no tag", "llama3", "named", "", "",
        lambda name, body: f'{{"name": "{name}", "parameters": {body}}}',
        "; ".join, as_json,
    ),
    Form(
        "mistral", "mistral", "named", "[TOOL_CALLS]", "",
        lambda name, body: f'{{"name": "{name}", "arguments": {body}}}',
        partial(_joined, "[TOOL_CALLS] [", ", ", "]"), as_json,
    ),
    Form(
        "mistral, named", "mistral", "json", "[TOOL_CALLS]", "",
        lambda name, body: f"[TOOL_CALLS]{name}[ARGS]{body}",
        "".join, as_json,
    ),
    Form(
        "deepseekv3", "deepseekv3", "json", _DEEP, _END_DEEP,
        lambda name, body: f"{_DEEP_CALL}function{_DEEP_SEP}{name}\n```json\n{body}\n```{_END_DEEP_CALL}",
        partial(_joined, _DEEP, "\n", _END_DEEP), as_json,
    ),
    Form(
        "deepseekv31", "deepseekv3", "json", _DEEP, _END_DEEP,
        lambda name, body: f"{_DEEP_CALL}{name}{_DEEP_SEP}{body}{_END_DEEP_CALL}",
        partial(_joined, _DEEP, "", _END_DEEP), as_json,
    ),
    Form(
        "kimi_k2", "kimi_k2", "json", _KIMI, _END_KIMI,
        lambda name, body: f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{body}<|tool_call_end|>",
        partial(_joined, _KIMI, "", _END_KIMI), as_json,
    ),
    Form(
        "pythonic", "pythonic", "python", "[", "]",
        lambda name, body: f"{name}({body})",
        partial(_joined, "[", ", ", "]"), _python,
    ),
    Form(
        "minicpm", "minicpm", "python", "<|tool_call_start|>", "<|tool_call_end|>",
        lambda name, body: f"{name}({body})",
        partial(_joined, "<|tool_call_start|>\n```python\n", "\n", "\n```\n<|tool_call_end|>"), _python,
    ),
)  # fmt: skip

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Looks something up.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "count": {"type": "integer"},
                    "ratio": {"type": "number"},
                    "flag": {"type": "boolean"},
                    "maybe": {"type": ["string", "null"]},
                    "rows": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
                    "filter": {"type": "object", "additionalProperties": {"type": "string"}},
                    "year": {"$ref": "#/$defs/Year"},
                    "perhaps": {"anyOf": [{"$ref": "#/$defs/Year"}, {"type": "null"}]},
                    "all": {"allOf": [{"$ref": "#/$defs/Year"}]},
                    "fixed": {"const": "2024"},
                    "choice": {"enum": ["1", "2"]},
                    "either": {"oneOf": [{"type": "integer"}, {"type": "string", "enum": ["auto"]}]},
                },
                "$defs": {"Year": {"type": "string", "enum": ["2023", "2024"]}},
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]
