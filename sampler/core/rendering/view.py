"""One thread of an episode: its prompt and sampled tokens, and the engine that sampled them.

    PolicyTokens   by policy: every reply of the episode, and the recorded requests
      View         by (policy, thread): one conversation, with the chat template of its policy

An episode of one conversation has one view. Another policy's replies are part of a view only if the sampler puts them into
messages; replies of the same policy in other threads keep their sampled ids there.
"""

from collections.abc import Sequence
from copy import copy
from datetime import UTC, datetime
from typing import Any

from sampler.core.rendering.context import Context, Prompt, Rewrites
from sampler.core.rendering.images import placeholder_of
from sampler.core.rendering.known_replies import SampledReplies
from sampler.core.rendering.new_messages import SentMessages
from sampler.core.rendering.recorded import Parent, RecordedRequests
from sampler.core.rendering.reply_message import Words
from sampler.core.rendering.sampled_reply import SampledReply
from sampler.core.rendering.template import ChatTemplate, ToolSchema
from sampler.core.rendering.turn_format import common_length
from shared.documents.states import BranchCause, ParentKind
from shared.documents.tool_schemas import hash_of
from shared.errors import ConfigError
from shared.tokens.encoded_ids import NO_IDS, EncodedIds

Message = dict[str, Any]


class PolicyTokens:
    """What all threads of one policy in one episode share. `affinity`: the engines that hold the KV cache, by dispatch.
    `begun`: when the policy was asked first, for templates that show the time; None: now."""

    def __init__(self, begun: datetime | None = None) -> None:
        self.now = datetime.now() if begun is None else begun.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)
        self.known = SampledReplies()
        self.recorded = RecordedRequests()
        self.affinity: dict[str, dict[str, str]] = {}


class View:
    """`last_dispatch`: the last answered request. `affinity`: the engine that holds the thread's KV cache, by turn source."""

    def __init__(
        self,
        policy: str,
        thread: str | None,
        template: ChatTemplate,
        tools: Sequence[ToolSchema] | None,
        rewrites: Rewrites,
        tokens: PolicyTokens,
    ) -> None:
        self.policy = policy
        self.thread = thread
        self.context = Context(template, tools, rewrites, tokens.known, tokens.now)
        self.tools = tools or ()
        self.tools_hash = hash_of(tools)
        self.last_dispatch: str | None = None
        self.affinity: dict[str, str] = {}
        self._tokens = tokens
        self._sent = SentMessages(policy, thread)
        self._begun = False
        self._reply: SampledReply | None = None
        self._given: list[int] | None = None
        self._encoded = NO_IDS  # the prompt that was sent last, of which the next one has all

    @property
    def is_closed(self) -> bool:
        """Whether its last reply has the token of images, which engines would read as one in the next prompt."""
        return self._reply is not None and placeholder_of(self.context.template.images) in self._reply.body_ids

    @property
    def is_opening(self) -> bool:
        """Whether the prompt is the first of its thread and contains no reply."""
        return self.last_dispatch is None and not self.context.has_replies

    def next_prompt(self, messages: Sequence[Message], *, restart: bool) -> Prompt:
        """The tokens that the next request adds to the thread's last one; `context.ids` is the whole prompt. `restart`: the
        messages are the whole history.

        Raises ConfigError for a list that repeats earlier messages, or that the template rejects.
        """
        prompt = self._rendered(messages, restart=restart)
        given, self._given = self._given, None
        if given is not None:
            self.context.replace_ids(given)
            prompt = Prompt(0, list(given), BranchCause.CLEAN)
        if prompt.shared_length < len(self._encoded):
            self._encoded = NO_IDS
        return prompt

    def encoded_prompt(self) -> EncodedIds:
        """`context.ids` with their JSON; of a prompt that goes on only the new ids are encoded."""
        self._encoded = self._encoded.grown_to(self.context.ids)
        return self._encoded

    def require_room(self, messages: Sequence[Message]) -> None:
        """Raises PromptTooLong where the messages alone have too many tokens. Replies do not count: templates may hide parts of
        them, and blanks at the ends of texts."""
        texts = (message.get("content") for message in messages if message.get("role") != "assistant")
        self.context.template.require_room("\n".join(text.strip() for text in texts if isinstance(text, str)), "\n")

    def require_prompt(self, ids: Sequence[int]) -> None:
        """Raises ConfigError where the next request, of another episode, was asked with other ids than this view has."""
        own_ids = self.context.ids
        if own_ids != list(ids):
            raise ConfigError(
                f"the prompt of the stored turn has {len(ids)} tokens; this sampler's chat template and tokenizer write the "
                f"same messages with {len(own_ids)}, and {common_length(ids, own_ids)} equal ones first. "
                "Start the sampler with the model and the template settings of the origin"
            )

    def begin_with(self, ids: Sequence[int]) -> None:
        """The next request has exactly this prompt, of another episode, with whose requests it shares nothing that is stored."""
        self._given, self.last_dispatch, self._tokens.recorded = list(ids), None, RecordedRequests()

    def _rendered(self, messages: Sequence[Message], *, restart: bool) -> Prompt:
        self._sent.send(messages, restart=restart)
        reply, self._reply = self._reply, None
        if not self._begun:
            self._begun = True
            return self.context.start(messages)
        assert reply is not None, "a request without a reply leaves the view as it was"
        return self.context.restart(messages, reply) if restart else self.context.extend(reply, messages)

    def parent(self, prompt: Prompt) -> tuple[Parent, BranchCause]:
        """The parent of the request with this prompt, and why it does not continue the thread's last one."""
        nearest = self._tokens.recorded.parent_of(self.context.compared_ids, self.last_dispatch, prompt.shared_length)
        if self.last_dispatch is None and nearest.kind is ParentKind.FORK:
            return nearest, BranchCause.THREAD
        return nearest, prompt.cause

    def engine_of(self, source: str, parent: Parent) -> str | None:
        """The engine that holds the KV cache of the thread, or else of the request's parent."""
        held = self._tokens.affinity.get(parent.name or "", {})
        return self.affinity.get(source) or held.get(source)

    def fork(self, *, sharing: bool = False) -> "View":
        """An independent copy; `sharing`: that goes on knowing the episode's replies."""
        fork = copy(self)
        fork.context, fork._sent = self.context.fork(sharing=sharing), self._sent.copy()
        fork.affinity = dict(self.affinity)
        return fork

    def add_reply(
        self, dispatch: str, parent: Parent, output_ids: Sequence[int], message: Message, words: frozenset[Words]
    ) -> None:
        """The reply to the request `dispatch`, whose prompt is `context.ids`. `words`: as returned by `reply_words`."""
        self._reply = self.context.sampled(output_ids, message)
        self._sent.replied(message, words)
        self._tokens.recorded.add(dispatch, self.context.compared_ids, parent, output_ids)
        self._tokens.affinity[dispatch] = self.affinity
        self.last_dispatch = dispatch

    def text_of(self, output_ids: Sequence[int]) -> str:
        """The text for people and parsers, without the end-of-turn token. Training and later prompts use the ids.

        Other special tokens stay: several families write their tool calls with them.
        """
        ended = bool(output_ids) and output_ids[-1] in self.context.format.end_ids
        return self.context.template.decode(output_ids[:-1] if ended else output_ids)
