"""Supervised data: turns a JSONL file of conversations into token chains whose assistant replies are trained.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...], "tools": [...]}

A content may be blocks of text and images (`trainer/sft/blocks.py`), and images may stand in a column "images".

The conversation is rendered turn by turn, as in an episode: the prompt up to the assistant's turn, then its reply including
the end-of-turn token, each tokenized separately. So the model trains on exactly the ids that it will read and sample, and
never on text that the template adds after a turn. A template that changes earlier text in later turns is refused.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import TemplateError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PreTrainedTokenizerBase

from shared.errors import ConfigError
from shared.files.json_file import GivenTwice, load_json
from shared.files.text_file import read_text_file
from shared.names import ROLES
from shared.tokens.image_span import ImageSpan
from shared.tokens.record_tree import RecordTree, TreeDispatch
from trainer.process.parallel import Parallel
from trainer.sft.blocks import as_blocks, as_text, check_content, with_images
from trainer.sft.images import ConversationImages

log = logging.getLogger(__name__)

FIELDS = ("messages", "tools", "images")


@dataclass(frozen=True, slots=True)
class ChatExample:
    """One line of the file, checked."""

    where: str  # file:line
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    images: list[dict[str, Any]] = field(default_factory=list)  # where each image is, in the order of the blocks


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Consecutive tokens that are all trained or all context."""

    ids: list[int]
    trained: bool
    images: Sequence[ImageSpan] = ()  # by places in `ids`


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
        raise ConfigError(f'{where}: "{unknown[0]}" is not known; expected {", ".join(FIELDS)} alone')
    for index, message in enumerate(value["messages"]):
        _check_message(message, f"{where}: messages[{index}]")
    if all(message["role"] != "assistant" for message in value["messages"]):
        raise ConfigError(f'{where}: no message of role "assistant"; there is nothing to train')
    tools = value.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise ConfigError(
            f'{where}: "tools" is {type(tools).__name__}; expected a list of tool schemas, or leave it out'
        )
    messages, images = with_images(value["messages"], value.get("images"), where)
    return ChatExample(where, messages, tools or None, images)


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise ConfigError(f"{where} is {type(message).__name__}; expected an object with role and content")
    if message.get("role") not in ROLES:
        raise ConfigError(f'{where}: "role" is {message.get("role")!r}; expected one of {", ".join(ROLES)}')
    check_content(message, where)
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


def spans(
    conversation: ChatExample, tokenizer: PreTrainedTokenizerBase, images: ConversationImages | None = None
) -> Iterator[TokenSpan]:
    """Yield context and reply alternately; see the module's first lines. Text after the last reply is omitted.

    `images`: reads them, for a vision-language model. Raises ConfigError like `rendered`, and for images that cannot be read.
    """
    if images is None:
        for context, reply in rendered(conversation, tokenizer):
            yield TokenSpan(_encode(context, tokenizer), trained=False)
            yield TokenSpan(_encode(reply, tokenizer), trained=True)
        return
    encode = partial(_encode, tokenizer=tokenizer)
    for context, reply, number in shown(conversation, tokenizer, images):
        pictures = images.read(conversation.images[number : number + images.count(context)], conversation.where)
        ids, places = images.encoded(context, pictures, encode, conversation.where)
        yield TokenSpan(ids, trained=False, images=places)
        yield TokenSpan(images.encoded(reply, [], encode, conversation.where)[0], trained=True)


def shown(
    conversation: ChatExample, tokenizer: PreTrainedTokenizerBase, images: ConversationImages
) -> Iterator[tuple[str, str, int]]:
    """Yield (context, reply, number of images before the context), as text. Raises ConfigError for a template that leaves an
    image out or shows one twice, and for texts that contain a token of images.
    """
    images.check_texts(conversation.messages, conversation.where)
    number = 0
    for (context, reply), expected in zip(rendered(conversation, tokenizer), _images_before(conversation), strict=True):
        yield context, reply, number
        number += images.count(context)
        if number != expected:
            raise ConfigError(
                f"{conversation.where}: the chat template shows {number} images before a reply that {expected} precede; expected "
                "each image once"
            )


def _images_before(conversation: ChatExample) -> list[int]:
    """Number of image blocks before each reply."""
    counts, total = [], 0
    for message in conversation.messages:
        if message["role"] == "assistant":
            counts.append(total)
        elif isinstance(message.get("content"), list):
            total += sum(block["type"] == "image" for block in message["content"])
    return counts


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


def conversation_tree(
    conversation: ChatExample, tokenizer: PreTrainedTokenizerBase, images: ConversationImages | None = None
) -> RecordTree:
    """The conversation as a chain: one dispatch per reply, advantage 1, so that it is trained like sampled records."""
    parts = list(spans(conversation, tokenizer, images))
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
        images=tuple(
            replace(image, first=image.first + start)
            for part, start in zip(parts, np.cumsum([0, *lengths]).tolist(), strict=False)
            for image in part.images
        ),
    )


def _readable(conversation: ChatExample, *, vision: bool) -> ChatExample:
    """With contents as the model's template reads them."""
    if conversation.images and not vision:
        raise ConfigError(
            f"{conversation.where}: {len(conversation.images)} images for a model of text; expected a vision-language model, or "
            "conversations without images"
        )
    adapt = as_blocks if vision else as_text
    return replace(conversation, messages=[adapt(message) for message in conversation.messages])


class Conversations:
    """Conversations as training data. `images`: None for a model of text."""

    def __init__(
        self,
        conversations: Sequence[ChatExample],
        tokenizer: PreTrainedTokenizerBase,
        images: ConversationImages | None = None,
    ) -> None:
        """Raises ConfigError for images where the model is one of text."""
        self._conversations = [_readable(conversation, vision=images is not None) for conversation in conversations]
        self._tokenizer = tokenizer
        self._images = images

    def __len__(self) -> int:
        return len(self._conversations)

    def trees(self, indices: Sequence[int]) -> list[RecordTree]:
        """Render and tokenize samples. Raises ConfigError like `spans`."""
        if self._images is not None:
            self._images.forget()
        return [conversation_tree(self._conversations[index], self._tokenizer, self._images) for index in indices]

    def pixels(self, sha256: str) -> Mapping[str, npt.NDArray[Any]]:
        """What the vision tower reads of an image of the last `trees`."""
        assert self._images is not None, "only images make rows with images"
        return self._images.inputs(sha256)

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
                    conversation = self._conversations[index]
                    if self._images is not None:
                        self._images.require_files(conversation.images, conversation.where)
                    texts: Iterator[Any] = (
                        rendered(conversation, self._tokenizer)
                        if self._images is None
                        else shown(conversation, self._tokenizer, self._images)
                    )
                    for _ in texts:
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
