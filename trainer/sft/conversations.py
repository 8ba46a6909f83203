"""Supervised data: turns a JSONL file of conversations into token chains whose assistant replies are trained.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...], "tools": [...]}

The conversation is rendered turn by turn, as in an episode: the prompt up to the assistant's turn, then its reply including
the end-of-turn token, each tokenized separately. So the model trains on exactly the ids that it will read and sample, and
never on text that the template adds after a turn. A template that changes earlier text in later turns is refused.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PreTrainedTokenizerBase

from shared.errors import ConfigError
from shared.files.json_file import GivenTwice, load_json
from shared.files.text_file import read_text_file
from shared.names import ROLES
from shared.tokens.record_tree import RecordTree, TreeDispatch
from trainer.process.parallel import Parallel

log = logging.getLogger(__name__)

FIELDS = ("messages", "tools")


@dataclass(frozen=True, slots=True)
class ChatExample:
    """One line of the file, checked."""

    where: str  # file:line
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Consecutive tokens that are all trained or all context."""

    ids: list[int]
    trained: bool


def read_conversations(path: Path) -> list[ChatExample]:
    """Read every non-empty line. Raises ConfigError with file, line and field of the first error."""
    text = read_text_file(path, "a JSONL file of conversations")
    lines = enumerate(text.split("\n"), start=1)
    conversations = [_conversation(line, f"{path}:{number}") for number, line in lines if line.strip()]
    if not conversations:
        raise ConfigError(f'{path}: no conversation; expected lines of {{"messages": [...], "tools": [...]}}')
    return conversations


def _conversation(line: str, where: str) -> ChatExample:
    try:
        value = load_json(line)
    except GivenTwice as exc:
        raise ConfigError(f'{where}: "{exc.name}" is given twice in one object; expected it once') from exc
    except ValueError as exc:
        raise ConfigError(f"{where}: not JSON: {exc}") from exc
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list) or not value["messages"]:
        raise ConfigError(f'{where}: "messages" is missing or empty; expected a list of {{"role", "content"}}')
    unknown = sorted(value.keys() - set(FIELDS))
    if unknown:
        raise ConfigError(f'{where}: "{unknown[0]}" is not known; expected {" and ".join(FIELDS)} alone')
    for index, message in enumerate(value["messages"]):
        _check_message(message, f"{where}: messages[{index}]")
    if all(message["role"] != "assistant" for message in value["messages"]):
        raise ConfigError(f'{where}: no message of role "assistant"; there is nothing to train')
    tools = value.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise ConfigError(
            f'{where}: "tools" is {type(tools).__name__}; expected a list of tool schemas, or leave it out'
        )
    return ChatExample(where, value["messages"], tools or None)


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise ConfigError(f"{where} is {type(message).__name__}; expected an object with role and content")
    if message.get("role") not in ROLES:
        raise ConfigError(f'{where}: "role" is {message.get("role")!r}; expected one of {", ".join(ROLES)}')
    content = message.get("content")
    if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        raise ConfigError(f'{where}: "content" is {type(content).__name__}; expected text')
    calls = message.get("tool_calls") or []
    if not (isinstance(calls, list) and all(map(_is_tool_call, calls))):
        raise ConfigError(
            f'{where}: "tool_calls" is {json.dumps(calls)[:80]}; expected a list of {{"function": {{"name", "arguments"}}}}'
        )


def _is_tool_call(call: Any) -> bool:
    """Nested in OpenAI's format, or the function itself, which templates also accept."""
    function = call.get("function", call) if isinstance(call, dict) else None
    return (
        isinstance(function, dict)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments", {}), dict | str)
    )


def spans(conversation: ChatExample, tokenizer: PreTrainedTokenizerBase) -> Iterator[TokenSpan]:
    """Yield context and reply alternately; see the module's first lines. Text after the last reply is omitted.

    Raises ConfigError like `rendered`.
    """
    for context, reply in rendered(conversation, tokenizer):
        yield TokenSpan(_encode(context, tokenizer), trained=False)
        yield TokenSpan(_encode(reply, tokenizer), trained=True)


def rendered(conversation: ChatExample, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, str]]:
    """Yield (context, reply) of each reply, as text.

    Raises ConfigError if the template cannot render the conversation, rewrites earlier text or does not end a reply with the
    end-of-turn token, and if a reply contains that token.
    """
    end_of_turn = str(tokenizer.eos_token)
    _require_tools_shown(conversation, tokenizer)
    done = ""
    for index, message in enumerate(conversation.messages):
        if message["role"] != "assistant":
            continue
        prompt = _render(conversation, index, tokenizer, generate=True)
        whole = _render(conversation, index + 1, tokenizer, generate=False)
        if not prompt.startswith(done) or not whole.startswith(prompt):
            raise ConfigError(
                f"{conversation.where}: the chat template changes what stands before messages[{index}] once the reply is "
                "there; expected a template that only appends (no stripping of earlier reasoning, say)"
            )
        length = whole.find(end_of_turn, len(prompt)) + len(end_of_turn) - len(prompt)
        if length < len(end_of_turn):
            raise ConfigError(f"{conversation.where}: the reply messages[{index}] does not end with {end_of_turn!r}")
        done, before = whole[: len(prompt) + length], done
        if whole[len(done) :].strip():
            raise ConfigError(
                f"{conversation.where}: the reply messages[{index}] has {end_of_turn!r} inside; expected text: a model that "
                "samples this token has ended its turn"
            )
        yield prompt[len(before) :], done[len(prompt) :]


def _require_tools_shown(conversation: ChatExample, tokenizer: PreTrainedTokenizerBase) -> None:
    """Some templates leave tools and calls out, in silence: then the model would learn to reply nothing, for no reason."""
    functions = [tool.get("function", tool) for tool in conversation.tools or ()]
    calls = [
        call.get("function", call) for message in conversation.messages for call in message.get("tool_calls") or ()
    ]
    names = {
        str(function["name"]) for function in (*functions, *calls) if isinstance(function, dict) and "name" in function
    }
    text = _render(conversation, len(conversation.messages), tokenizer, generate=False) if names else ""
    unread = sorted(name for name in names if name not in text)
    if unread:
        raise ConfigError(
            f"{conversation.where}: the chat template leaves out the tool {unread[0]!r}, so the model would never read of it; "
            "expected chat_template to name a file with a template that shows tools and calls"
        )


def _render(conversation: ChatExample, count: int, tokenizer: PreTrainedTokenizerBase, *, generate: bool) -> str:
    try:
        text = tokenizer.apply_chat_template(
            conversation.messages[:count],
            tools=conversation.tools,  # type: ignore[arg-type]  # a list of schemas; functions may stand in it too
            tokenize=False,
            add_generation_prompt=generate,
        )
        assert isinstance(text, str)
        text.encode("utf-8")  # JSON can express lone surrogates, which tokenizers refuse
    except (
        TemplateError,
        TypeError,
        ValueError,
    ) as exc:  # a template raises these on messages that it does not support
        raise ConfigError(
            f"{conversation.where}: the chat template cannot render messages[:{count}]: {type(exc).__name__}: {exc}"
        ) from exc
    return text


def _encode(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def conversation_tree(conversation: ChatExample, tokenizer: PreTrainedTokenizerBase) -> RecordTree:
    """The conversation as a chain: one dispatch per reply, advantage 1, so that it is trained like sampled records."""
    parts = list(spans(conversation, tokenizer))
    lengths = [len(part.ids) for part in parts]
    n = sum(lengths)
    dispatches = np.repeat([i // 2 if part.trained else -1 for i, part in enumerate(parts)], lengths).astype(np.int32)
    return RecordTree(
        record_id=conversation.where,
        token_ids_N=np.concatenate([np.array(part.ids, dtype=np.int32) for part in parts]),
        parents_N=np.arange(-1, n - 1, dtype=np.int32),
        dispatches_N=dispatches,
        logprobs_N=np.zeros(n, dtype=np.float32),
        versions_N=np.minimum(dispatches, 0).astype(np.int32),
        dispatches=tuple(
            TreeDispatch(id=f"{conversation.where}#{turn}", turn=turn, advantage=1.0) for turn in range(len(parts) // 2)
        ),
    )


class Conversations:
    """Conversations as training data."""

    def __init__(self, conversations: Sequence[ChatExample], tokenizer: PreTrainedTokenizerBase) -> None:
        self._conversations = conversations
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._conversations)

    def trees(self, indices: Sequence[int]) -> list[RecordTree]:
        """Render and tokenize samples. Raises ConfigError like `rendered`."""
        return [conversation_tree(self._conversations[index], self._tokenizer) for index in indices]

    def check(self, indices: Sequence[int], parallel: Parallel) -> None:
        """Render these, distributed over the ranks, to find errors before training.

        It takes 0.3 ms for a conversation of two short replies, 20 ms for one of 40 long ones. Raises ConfigError for the
        first error, on every rank.
        """
        columns = (TextColumn("checking conversations"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        problem: tuple[int, str] | None = None
        with Progress(*columns, console=Console(stderr=True), disable=not parallel.is_main, transient=True) as progress:
            for index in progress.track(sorted(set(indices))[parallel.rank :: parallel.world_size]):
                try:
                    for _ in rendered(self._conversations[index], self._tokenizer):
                        pass
                except ConfigError as exc:
                    problem = (index, str(exc))
                    break
        problems = [given for given in parallel.everyone.gather_objects(problem) if given]
        if problems:
            raise ConfigError(min(problems)[1])


def sample_order(num_samples: int, first: int, count: int, seed: int) -> list[int]:
    """Indices of the conversations for samples `first` … `first + count - 1`: epoch after epoch, each in a different order.

    A pure function of its arguments, so a resume needs no state.
    """
    order: list[int] = []
    while len(order) < count:
        epoch, offset = divmod(first + len(order), num_samples)
        permutation = np.random.default_rng([seed, epoch]).permutation(num_samples)
        order += permutation[offset : offset + count - len(order)].tolist()
    return order
