"""One policy's view of an episode: its prompt and sampled tokens, and the engine that sampled them.

An episode of one policy has one view. If several policies take turns, each has its own view with its own chat template:
another policy's replies are part of it only if the sampler puts them into messages.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

from sampler.rendering.context import Context, Prompt, Rewrites
from sampler.rendering.new_messages import SentMessages
from sampler.rendering.template import ChatTemplate, ToolSchema
from sampler.rendering.words import Words
from shared.documents.tool_schemas import hash_of

Message = dict[str, Any]


class View:
    """`last_dispatch`: the request that the next one continues. `affinity`: the engine that holds the episode's KV cache, by
    turn source."""

    def __init__(
        self, policy: str, template: ChatTemplate, tools: Sequence[ToolSchema] | None, rewrites: Rewrites
    ) -> None:
        self.policy = policy
        self.context = Context(template, tools, rewrites)
        self.tools = tools or ()
        self.tools_hash = hash_of(tools)
        self.last_dispatch: str | None = None
        self.affinity: dict[str, str] = {}
        self._sent = SentMessages(policy)
        self._begun = False
        self._output: list[int] = []
        self._message: Message | None = None

    def next_prompt(self, messages: Sequence[Message], *, restart: bool) -> Prompt:
        """The tokens that the next request adds; `context.ids` is the whole prompt. `restart`: the messages are the whole
        history.

        Raises ConfigError for a list that repeats earlier messages, or that the template rejects.
        """
        self._sent.send(messages, restart=restart)
        output, reply = self._output, self._message
        self._output, self._message = [], None
        if not self._begun:
            self._begun = True
            return self.context.start(messages)
        return (
            self.context.restart(messages, output, reply) if restart else self.context.extend(output, messages, reply)
        )

    def fork(self) -> "View":
        """An independent copy."""
        fork = copy(self)
        fork.context, fork._sent = self.context.fork(), self._sent.copy()
        return fork

    def add_reply(self, output_ids: Sequence[int], message: Message, words: frozenset[Words]) -> None:
        """`words`: as returned by `reply_words`."""
        self._output, self._message = list(output_ids), message
        self._sent.replied(message, words)

    def text_of(self, output_ids: Sequence[int]) -> str:
        """The text for people and parsers, without the end-of-turn token. Training and later prompts use the ids.

        Other special tokens stay: several families write their tool calls with them.
        """
        ended = bool(output_ids) and output_ids[-1] in self.context.format.end_ids
        return self.context.template.decode(output_ids[:-1] if ended else output_ids)
