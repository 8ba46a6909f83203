"""A reply of the model, and what is known of it while it is sampled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sampler.core.parsers import ParsedReply
from sampler.core.parsers.reasoning import behind_reasoning
from sampler.core.rendering.reply_message import Message
from sampler.core.rendering.view import View
from shared.documents import SampledResponse

HALF = "\ufffd"  # where the bytes of a character are not complete
_OVERLAP_IDS = 8  # decoded again before new ones: a decoder may write a token otherwise at the beginning of a text


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply of the model. `parsed.tool_calls`: the calls it made. `parsed.errors`: the calls that could not be parsed."""

    dispatch_id: str
    text: str
    message: Message
    parsed: ParsedReply
    finish_reason: str
    thread: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)  # tokens: prompt, cached, completion
    response: SampledResponse | None = None  # the sampled ids and their log-probs, as they are stored
    has_image_token: bool = False  # among the sampled ids: the thread ends with it

    @property
    def number(self) -> int:
        """Of the turn in its episode, in the order in which the model was asked."""
        return int(self.dispatch_id.rpartition(":")[2])

    @property
    def answer_text(self) -> str:
        """The text outside of its reasoning, with calls as the model wrote them."""
        return behind_reasoning(self.text, in_reasoning=self.response is not None and self.response.in_reasoning)


@dataclass(frozen=True, slots=True)
class PartialTurn:
    """A reply that is being sampled: `text` so far. `opens_reasoning`: the prompt ended inside the model's reasoning.
    `is_whole`: this is all of it, and the listener may still refuse it by raising."""

    dispatch_id: str
    text: str
    prompt_tokens: int
    opens_reasoning: bool
    is_whole: bool = False


Listener = Callable[[PartialTurn], None]


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """How a client wants one reply. `stop`: texts at which it ends; they are its last tokens. `may_call`: whether calls in it are
    calls, or text. `grammar`: the engine samples only what it allows (`{"json_schema": …}`), and the log-probs are of that."""

    stop: Sequence[str] = ()
    may_call: bool = True
    grammar: Mapping[str, str] = field(default_factory=dict)

    @property
    def sampling_params(self) -> dict[str, Any]:
        return ({"stop": list(self.stop)} if self.stop else {}) | dict(self.grammar)


NO_OPTIONS = ReplyOptions()


@dataclass(frozen=True, slots=True)
class Asking:
    """One call of `create_chat_completions`. `most`: new tokens. `restart`: the messages are the whole history."""

    most: int
    restart: bool
    listener: Listener | None
    options: ReplyOptions


class StreamDecoder:
    """Turns the ids of a reply in progress into text for `listener`. Only new ids are decoded, and a few before them."""

    def __init__(self, listener: Listener, dispatch_id: str, view: View) -> None:
        self._listener, self._dispatch_id, self._view = listener, dispatch_id, view
        self._opens = view.context.opens_reasoning
        self._known: Sequence[int] = ()
        self._known_text = ""

    def __call__(self, ids: Sequence[int]) -> None:
        text = self._text_of(ids)
        if not text.endswith(HALF):
            self._known, self._known_text = ids, text
        self._notify(text)

    def _text_of(self, ids: Sequence[int]) -> str:
        count = len(self._known)
        if ids[:count] != self._known:  # another engine began anew
            return self._view.text_of(ids)
        begin = max(0, count - _OVERLAP_IDS)
        before, text = self._view.text_of(ids[begin:count]), self._view.text_of(ids[begin:])
        return self._known_text + text[len(before) :] if text.startswith(before) else self._view.text_of(ids)

    def whole(self, text: str) -> None:
        """Tell the whole reply, before it is kept. Raises what the listener raises: then there is no reply."""
        self._notify(text, is_whole=True)

    def _notify(self, text: str, *, is_whole: bool = False) -> None:
        prompt_tokens = len(self._view.context.ids)
        self._listener(PartialTurn(self._dispatch_id, text, prompt_tokens, self._opens, is_whole))


def listener_for(listener: Listener | None, dispatch_id: str, view: View) -> StreamDecoder | None:
    return None if listener is None else StreamDecoder(listener, dispatch_id, view)
