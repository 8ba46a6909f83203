"""Reads texts with the tool parsers of another engine. Run by that engine's Python: `PYTHON parser_engines.py sglang < texts`.

Standard input: {"tools": […], "texts": [[family, text], …]} in JSON. Standard output: for each text {"calls": [[name,
arguments], …], "content": text}, {"raises": name}, or null if the engine has no parser of that family.
"""

import contextlib
import importlib
import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

Verdict = dict[str, Any] | None
SGLANG = {
    "hermes": "hermes",
    "qwen3_coder": "qwen3_coder",
    "glm45": "glm45",
    "llama3": "llama3",
    "mistral": "mistral",
    "deepseekv3": "deepseekv3",
    "deepseekv31": "deepseekv31",
    "kimi_k2": "kimi_k2",
    "pythonic": "pythonic",
}
VLLM = SGLANG | {"llama3": "llama3_json", "deepseekv3": "deepseek_v3", "deepseekv31": "deepseek_v31"}
WORDS = (
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<think>", "</think>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
)  # fmt: skip


def arguments_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"no JSON": text}


def sglang() -> Callable[[str, str, list[Any]], Verdict]:
    tool_kind = importlib.import_module("sglang.srt.entrypoints.openai.protocol").Tool
    parser_kind = importlib.import_module("sglang.srt.function_call.function_call_parser").FunctionCallParser

    def read(family: str, text: str, tools: list[Any]) -> Verdict:
        name = SGLANG.get(family.partition(",")[0])
        if name is None:
            return None
        parser = parser_kind([tool_kind(**tool) for tool in tools], name)
        content, calls = parser.parse_non_stream(text)
        return {"calls": [[call.name, arguments_of(call.parameters)] for call in calls], "content": content or ""}

    return read


class Words:
    """As much of a tokenizer as vLLM's parsers look at."""

    def get_vocab(self) -> dict[str, int]:
        return {word: at for at, word in enumerate(WORDS)}

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        return [self.get_vocab()[text]] if text in self.get_vocab() else [1000]

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def convert_tokens_to_ids(self, word: str) -> int:
        return self.get_vocab().get(word, 0)


def vllm() -> Callable[[str, str, list[Any]], Verdict]:
    protocol = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol")
    manager = importlib.import_module("vllm.tool_parsers").ToolParserManager

    def read(family: str, text: str, tools: list[Any]) -> Verdict:
        name = VLLM.get(family.partition(",")[0])
        if name is None:
            return None
        kind = manager.get_tool_parser(name)
        parser = kind(Words(), [protocol.ChatCompletionToolsParam(**tool) for tool in tools])
        if name == "mistral":
            parser._parser_engine._is_pre_v11 = family == "mistral"
        request = protocol.ChatCompletionRequest(messages=[], model="m", tools=tools)
        found = parser.extract_tool_calls(text, request)
        calls = [[call.function.name, arguments_of(call.function.arguments)] for call in found.tool_calls]
        return {"calls": calls, "content": found.content or ""}

    return read


def main() -> None:
    logging.disable(logging.CRITICAL)
    given = json.loads(sys.stdin.buffer.read())
    with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stdout(nothing):
        read = {"sglang": sglang, "vllm": vllm}[sys.argv[1]]()
        verdicts: list[Verdict] = []
        for family, text in given["texts"]:
            try:
                verdicts.append(read(family, text, given["tools"]))
            except Exception as exc:  # noqa: BLE001 - what another program raises is its verdict
                verdicts.append({"raises": type(exc).__name__})
    sys.stdout.write(json.dumps(verdicts))


if __name__ == "__main__":
    main()
