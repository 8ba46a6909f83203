"""Long prompts are rendered and encoded in threads: a tokenizer takes a millisecond for 3,000 characters, and a second for a
megabyte, for which every other episode of the process would wait.

The prompt is made twice: by a copy of the view in a thread, whose encoded pieces the view finds when it makes its own.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from sampler.core.rendering.context import Prompt
from sampler.core.rendering.template import ChatTemplate, PromptTooLong
from sampler.core.rendering.turn_format import turn_format
from sampler.core.rendering.view import Message, View
from shared.documents.content import references_in

ResultT = TypeVar("ResultT")

LONG_CHARS = 3_000  # a millisecond; the way to a thread and back takes 0.04
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="encode")  # each needs 200 bytes for a character


async def next_prompt(view: View, messages: Sequence[Message], *, restart: bool) -> Prompt | None:
    """`view.next_prompt`; None: its prompt is far too long, and the view is as if it had been asked. Raises ConfigError."""
    try:
        await encode_ahead(view, messages, restart=restart)
        return view.next_prompt(messages, restart=restart)
    except PromptTooLong:
        return None


async def encode_ahead(view: View, messages: Sequence[Message], *, restart: bool) -> None:
    """So that the view, and its copies, find what is long. Raises ConfigError; PromptTooLong."""
    view.require_room(messages)
    if is_long([messages, view.tools if restart or view.is_opening else ()]):
        await in_thread(partial(view.fork().next_prompt, messages, restart=restart))


def length_of_next_prompt(view: View, messages: Sequence[Message], *, restart: bool) -> int:
    """In tokens; of a prompt that is far too long a lower bound. Changes the view. Raises ConfigError."""
    try:
        view.require_room(messages)
        view.next_prompt(messages, restart=restart)
    except PromptTooLong as exc:
        return exc.least
    return len(view.context.ids)


async def num_tokens(template: ChatTemplate, messages: Sequence[Any], tools: Sequence[Any], begun: str) -> int:
    """Of a prompt, and of what its reply begins with. Raises ConfigError; PromptTooLong."""

    def count() -> int:
        shown = turn_format(template).spoken(messages)
        prompt = template.render_marked(shown, tools, add_generation_prompt=True)
        if template.images is not None:
            prompt = template.images.named(prompt, references_in(shown))
            return len(template.images.encode(prompt + template.special.mark(begun)))
        return len(template.encode_marked(prompt + template.special.mark(begun)))

    return await in_thread(count) if is_long([messages, tools]) else count()


async def in_thread(work: Callable[[], ResultT]) -> ResultT:
    """For what takes long and lets other threads run."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)


def is_long(value: Any) -> bool:
    return _num_chars(value) > LONG_CHARS


def _num_chars(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_num_chars, value.values()))
    return sum(map(_num_chars, value)) if isinstance(value, list | tuple) else 0
