"""One policy's view of an episode: the tokens that it was shown and that it sampled, and which engine it was that did.

An episode of one policy has one view. Where several policies take turns, each has its own, by its own
chat template: what another policy said is part of it only as far as the sampler puts it into messages.
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
    """`last_dispatch`: the request that the next one continues. `affinity`: the engine that holds the episode's cache, by the
    name of its turn source."""

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
        """What the next request adds; `context.ids` is all of it. `restart`: the messages are the whole history.

        Raises ConfigError for a list that is not new, or that the template refuses.
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
        """Another one with the same past: what it is told is not told to this one."""
        fork = copy(self)
        fork.context, fork._sent = self.context.fork(), self._sent.copy()
        return fork

    def add_reply(self, output_ids: Sequence[int], message: Message, words: frozenset[Words]) -> None:
        """`words`: by `reply_words`."""
        self._output, self._message = list(output_ids), message
        self._sent.replied(message, words)

    def text_of(self, output_ids: Sequence[int]) -> str:
        """For people and parsers, without the token that ended the turn; what is trained and continued are the ids.

        Every other special token stays: several families write their tool calls with them.
        """
        ended = bool(output_ids) and output_ids[-1] in self.context.format.end_ids
        return self.context.template.decode(output_ids[:-1] if ended else output_ids)
