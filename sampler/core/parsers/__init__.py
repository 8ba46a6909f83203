"""Parses tool calls out of a reply's text: one file per model family, each with its name in the configuration.

`get_parser(name)` returns a function from text (and the tools' schemas) to a `ParsedReply`; `reply.py` states the promises of
all parsers.
"""

from sampler.core.parsers import deepseekv3, hermes, kimi_k2, llama3, minicpm, mistral
from sampler.core.parsers.deepseekv3 import parse_deepseekv3
from sampler.core.parsers.glm45 import parse_glm45
from sampler.core.parsers.hermes import parse_hermes
from sampler.core.parsers.kimi_k2 import parse_kimi_k2
from sampler.core.parsers.llama3 import parse_llama3
from sampler.core.parsers.minicpm import parse_minicpm
from sampler.core.parsers.mistral import parse_mistral
from sampler.core.parsers.pythonic import parse_pythonic
from sampler.core.parsers.qwen3_coder import parse_qwen3_coder
from sampler.core.parsers.reply import MAX_CALLS, ParsedReply, Parser, ToolCall, without_calls
from shared.errors import ConfigError

PARSERS: dict[str, Parser] = {
    "deepseekv3": parse_deepseekv3,
    "glm45": parse_glm45,
    "hermes": parse_hermes,
    "kimi_k2": parse_kimi_k2,
    "llama3": parse_llama3,
    "minicpm": parse_minicpm,
    "mistral": parse_mistral,
    "pythonic": parse_pythonic,
    "qwen": parse_hermes,
    "qwen25": parse_hermes,
    "qwen3_coder": parse_qwen3_coder,
}


_TAG = (hermes.OPEN,)
_DEEPSEEK = (deepseekv3.SECTION, deepseekv3.END_SECTION, deepseekv3.OPEN)
_KIMI = (kimi_k2.SECTION, kimi_k2.END_SECTION, kimi_k2.OPEN)
OPENINGS: dict[
    str, tuple[str, ...]
] = {  # texts that begin what is no plain text; before the first of them all is content
    "deepseekv3": _DEEPSEEK,
    "glm45": _TAG,
    "hermes": _TAG,
    "kimi_k2": _KIMI,
    "llama3": (llama3.TAG, "{"),
    "minicpm": (minicpm.OPEN, minicpm.THOUGHT, minicpm.END_THOUGHT),
    "mistral": (mistral.OPEN,),
    "pythonic": ("[", "<|python_"),
    "qwen": _TAG,
    "qwen25": _TAG,
    "qwen3_coder": (*_TAG, "<function="),
}


def get_parser(name: str) -> Parser:
    """Raises ConfigError for an unknown name."""
    if name not in PARSERS:
        raise ConfigError(f"tool-call parser {name!r} is unknown; expected one of {', '.join(sorted(PARSERS))}")
    return PARSERS[name]


__all__ = ["MAX_CALLS", "OPENINGS", "PARSERS", "ParsedReply", "Parser", "ToolCall", "get_parser", "without_calls"]
