"""Threads, policies, forks, restarts and failures in random order, compared with a model that keeps plain lists."""

import json
import random
import time
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from sampler.core.rendering.recorded import Parent, RecordedRequests
from sampler.core.rendering.reply_message import reply_words
from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.turn_format import common_length
from sampler.core.rendering.view import PolicyTokens, View
from shared.documents.states import BranchCause, ParentKind
from tests.sampler.families import FAMILIES

TEMPLATES = {"main": FAMILIES["qwen25"].template("off"), "judge": FAMILIES["llama31"].template("off")}
POLICIES, THREADS = st.sampled_from(["main", "main", "judge"]), st.sampled_from([None, "a", "b", "c"])
SAID = st.sampled_from(["go on", "What is A?", "yes", "no no"])
PIECES = st.sampled_from([1, 2, 3, 100])  # characters of a sampled token: the same words in different ids
Message = dict[str, Any]
SeatTurn = tuple[Message, list[int] | None]  # a message, with the ids that were sampled for it, if any


def spelled(template: ChatTemplate, text: str, piece: int) -> list[int]:
    return [i for at in range(0, len(text), piece) for i in template.encode(text[at : at + piece])]


class Conversation:
    """The model of one thread."""

    def __init__(self) -> None:
        self.history: list[SeatTurn] = []


class Threads(RuleBasedStateMachine):
    """`asked`: requests without a reply. `recorded`: by policy, the ids of each answered request and its reply."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = {policy: PolicyTokens() for policy in TEMPLATES}
        self.views: dict[tuple[str, str | None], View] = {}
        self.model: dict[tuple[str, str | None], Conversation] = {}
        self.asked: dict[tuple[str, str | None], tuple[str, Parent, View, list[SeatTurn]]] = {}
        self.recorded: dict[str, dict[str, list[int]]] = {policy: {} for policy in TEMPLATES}
        self.histories: dict[str, list[tuple[list[tuple[str, str, bool]], list[int]]]] = {p: [] for p in TEMPLATES}
        self.count = 0

    @rule(policy=POLICIES, thread=THREADS, said=SAID)
    def ask(self, policy: str, thread: str | None, said: str) -> None:
        """The next request of a thread: its first, or one that answers its last reply."""
        self._ask((policy, thread), [({"role": "user", "content": said}, None)], restart=False)

    @rule(
        policy=POLICIES,
        thread=THREADS,
        source=st.integers(0, 99),
        cut=st.integers(0, 9),
        said=SAID,
        copied=st.booleans(),
    )
    def show_another_history(
        self, policy: str, thread: str | None, source: int, cut: int, said: str, copied: bool
    ) -> None:
        """The beginning of any thread's history, as objects or as copies: a restart, or the first messages of a thread."""
        others = [conversation for key, conversation in self.model.items() if key[0] == policy and conversation.history]
        if not others:
            return
        history = list(others[source % len(others)].history)
        replies = [at for at, (_, ids) in enumerate(history) if ids is not None]
        history = history[: replies[cut % len(replies)] + 1] if replies else []
        if copied:
            history = [(json.loads(json.dumps(message)), ids) for message, ids in history]
        self._ask((policy, thread), [*history, ({"role": "user", "content": said}, None)], restart=True)

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 99), text=SAID, piece=PIECES)
    def answer(self, which: int, text: str, piece: int) -> None:
        key = list(self.asked)[which % len(self.asked)]
        name, parent, _, history = self.asked.pop(key)
        view, template = self.views[key], TEMPLATES[key[0]]
        output = [*spelled(template, text, piece), view.context.format.end_ids[0]]
        message: Message = {"role": "assistant", "content": text}
        view.add_reply(name, parent, output, message, reply_words(message, text, "</think>"))
        self.recorded[key[0]][name] = [*view.context.ids, *output]
        self.model[key].history = [*history, (message, output)]
        self.histories[key[0]].append((words_in(self.model[key].history), self.recorded[key[0]][name]))

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 99))
    def fail(self, which: int) -> None:
        """A request without a reply leaves its thread as it was."""
        key = list(self.asked)[which % len(self.asked)]
        self.views[key] = self.asked.pop(key)[2]

    def _ask(self, key: tuple[str, str | None], new: list[SeatTurn], *, restart: bool) -> None:
        if key in self.asked:
            return
        policy, thread = key
        template = TEMPLATES[policy]
        if key not in self.views:
            self.views[key] = View(policy, thread, template, None, "branch", self.tokens[policy])
            self.model[key] = Conversation()
        view, before = self.views[key], self.views[key].fork(sharing=True)
        begun = view.last_dispatch is not None
        history = new if restart or not begun else [*self.model[key].history, *new]
        prompt = view.next_prompt([message for message, _ in new], restart=restart and begun)
        parent, cause = view.parent(prompt)
        name = f"{policy}:{self.count}"
        self.count += 1
        self.asked[key] = (name, parent, before, history)
        assert json.loads(b"[%s]" % view.encoded_prompt().text) == view.context.ids, "what the engine receives"
        self._check_prompt(policy, view.context.ids, history)
        self._check_parent(policy, view.context.ids, parent, cause)

    def _check_prompt(self, policy: str, ids: list[int], history: list[SeatTurn]) -> None:
        """The text is the template's; and where an earlier request had the same history up to a reply, its very ids follow:
        those of its prompt and those that were sampled, never their text encoded again."""
        template = TEMPLATES[policy]
        assert template.decode(ids) == template.decode(template.render_ids([m for m, _ in history], None, True))
        for end in range(len(history), 0, -1):
            if history[end - 1][1] is not None:
                same = [whole for words, whole in self.histories[policy] if words == words_in(history[:end])]
                assert any(ids[: len(whole)] == whole for whole in same), (
                    f"{len(same)} candidates, none begins the prompt"
                )
                return

    def _check_parent(self, policy: str, ids: list[int], parent: Parent, cause: BranchCause) -> None:
        shares = {name: common_length(whole, ids) for name, whole in self.recorded[policy].items()}
        longest = max(shares.values(), default=0)
        assert parent.shared == longest
        if longest == 0:
            assert parent == Parent(None, 0, ParentKind.ROOT)
            return
        assert parent.name is not None
        assert shares[parent.name] == longest
        whole = {name for name, n in shares.items() if n == longest == len(self.recorded[policy][name])}
        assert (parent.kind is ParentKind.BRIDGE) == bool(whole)
        assert not whole or parent.name in whole
        assert cause in BranchCause


def words_in(history: list[SeatTurn]) -> list[tuple[str, str, bool]]:
    return [(message["role"], message["content"], ids is None) for message, ids in history]


Threads.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_random_threads_agree_with_plain_lists = Threads.TestCase


def test_the_search_for_a_parent_costs_what_is_new_and_not_what_was_recorded() -> None:
    """100 turns of 2,000 tokens."""

    def cost_of(turns: int) -> float:
        rng, recorded = random.Random(0), RecordedRequests()
        ids: list[int] = []
        last, spent = None, 0.0
        for turn in range(turns):
            ids = [*ids, *(rng.randrange(150_000) for _ in range(1_000))]
            began = time.process_time()
            parent = recorded.parent_of(ids, last, 0 if last is None else recorded.length_of(last))
            ids = [*ids, *(rng.randrange(150_000) for _ in range(1_000))]
            recorded.add(str(turn), ids, parent)
            spent += time.process_time() - began
            last = str(turn)
            assert parent.kind is (ParentKind.BRIDGE if turn else ParentKind.ROOT)
        return spent

    few, many = min(cost_of(25) for _ in range(5)), min(cost_of(100) for _ in range(5))
    assert many < 16 * few, (
        "linear in the turns but for the copy of a prompt's ids; all pairs would be 64 times as much"
    )
