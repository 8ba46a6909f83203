"""A sampler that sends the whole conversation instead of only new messages is refused at once with the remedy;
one that sends only new messages never is, even if they repeat."""

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler.core.episode.episode import play
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.parsers import get_parser
from sampler.core.rendering.new_messages import SentMessages
from sampler.core.rendering.reply_message import message_of, reply_words, with_call_ids
from sampler.scorers import Score
from shared.documents.states import BranchCause, RecordStatus, SlotStatus, Termination
from shared.errors import ConfigError
from shared.store import Store
from tandem.audit.run import audit
from tandem.commands.run_status import read_status
from tests.sampler.episodes import ended, resources, says
from tests.sampler.test_two_policies import debate
from tests.shared.builders import claim, import_tasks

Message = dict[str, Any]
CALL = '\n<tool_call>\n{"name": "lookup", "arguments": {"x": "A"}}\n</tool_call>'
REFUSED = "send only what is new since the last reply, or restart=True with the whole history"


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def system(text: str = "Be brief.") -> Message:
    return {"role": "system", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Episode:
    """What a sampler sends and hears, without an engine. `whole`: the history, as samplers keep it that send all of it."""

    def __init__(self, opening: Sequence[Message], restart: bool = False) -> None:
        self.sent = SentMessages("main")
        self.whole: list[Message] = list(opening)
        self.texts: dict[int, str] = {}  # of replies, by their place
        self.sent.send(opening, restart=restart)

    def hear(self, text: str) -> Message:
        message = message_of(with_call_ids(get_parser("hermes")(text, ()), len(self.texts)))
        self.texts[len(self.whole)] = text
        self.whole.append(message)
        self.sent.replied(message, reply_words(message, text, "</think>"))
        return message

    def send(self, messages: Sequence[Message], restart: bool = False) -> None:
        self.sent.send(messages, restart=restart)
        self.whole += messages


# ---------------------------------------------------------------------- both directions

SAID = st.sampled_from(["continue", "What is A?", "It is 4.", "You hit a wall."])
REPLIES = st.builds(
    lambda thought, text, call: thought + text + call,
    st.sampled_from(["", "<think>\nhm\n</think>\n\n"]),
    st.sampled_from(["It is 4.", "continue", "Yes.", " spaced \n", ""]),
    st.sampled_from(["", CALL]),
)
USERS = st.lists(SAID.map(user), max_size=3)
EXAMPLE = st.builds(lambda text: [user("An example:"), assistant(text), user("So go on.")], SAID)
OPENINGS = st.builds(
    lambda system, example, users, last: [*system, *example, *users, user(last)],
    st.sampled_from([[], [system()]]),
    st.one_of(st.just([]), EXAMPLE),
    USERS,
    SAID,
)
RESULTS = st.lists(SAID.map(lambda text: {"role": "tool", "tool_call_id": "call_0", "content": text}), max_size=2)
NEW = st.builds(
    lambda results, users, example, last: [*results, *users, *example, user(last)],
    RESULTS,
    USERS,
    st.one_of(st.just([]), EXAMPLE.map(lambda example: [user("Now another one."), *example])),
    SAID,
)
TURNS = st.lists(st.tuples(REPLIES, NEW), max_size=5)


def episode_of(opening: Sequence[Message], turns: Sequence[tuple[str, list[Message]]], last: str) -> Episode:
    episode = Episode(opening)
    for text, new in turns:
        episode.hear(text)
        episode.send(new)
    episode.hear(last)
    return episode


@given(OPENINGS, TURNS, REPLIES, NEW, st.booleans())
@settings(max_examples=200, deadline=None)
def test_new_messages_are_never_refused_even_if_repeated(
    opening: list[Message], turns: list[tuple[str, list[Message]]], last: str, new: list[Message], restarts: bool
) -> None:
    episode = episode_of(opening, turns, last)
    if restarts:
        episode.send([*opening, episode.whole[-1], *new], restart=True)
        episode.hear(last)
    episode.send(new)


def as_client(message: Message, text: str) -> Message:
    """As a client's `model_dump()` has it."""
    calls = copy.deepcopy(message.get("tool_calls") or [])
    for call in calls:
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return {"refusal": None, "role": "assistant", "content": message["content"], "tool_calls": calls or None} | {
        name: value for name, value in message.items() if name == "reasoning_content"
    }


FORMS: dict[str, Callable[[Message, str], Message]] = {
    "the object": lambda message, text: message,
    "a copy": lambda message, text: copy.deepcopy(message),
    "as a client gives it": as_client,
    "its text": lambda message, text: assistant(text),
    "its text, stripped": lambda message, text: assistant(text.strip()),
    "its text without reasoning": lambda message, text: assistant(text.rpartition("</think>")[2]),
}


def kept(episode: Episode, form: Callable[[Message, str], Message]) -> list[Message]:
    return [form(m, episode.texts[at]) if at in episode.texts else m for at, m in enumerate(episode.whole)]


@given(OPENINGS, TURNS, REPLIES, NEW, st.sampled_from(sorted(FORMS)), st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_a_repeated_conversation_is_refused_from_any_starting_point(
    opening: list[Message], turns: list[tuple[str, list[Message]]], last: str, new: list[Message], form: str, cut: int
) -> None:
    """All of it, or its end, at least the last reply; the replies in any of the forms in which samplers keep them."""
    episode = episode_of(opening, turns, last)
    whole = kept(episode, FORMS[form])
    with pytest.raises(ConfigError, match=REFUSED):
        episode.send([*whole[min(cut, len(whole) - 1) :], *new])
    episode.send(new)


@given(OPENINGS, TURNS, REPLIES, NEW)
@settings(max_examples=100, deadline=None)
def test_a_history_with_rewritten_replies_is_refused_because_of_its_opening(
    opening: list[Message], turns: list[tuple[str, list[Message]]], last: str, new: list[Message]
) -> None:
    episode = episode_of(opening, turns, last)
    with pytest.raises(ConfigError, match=REFUSED):
        episode.send([*kept(episode, lambda message, text: assistant("[shortened]")), *new])


# ---------------------------------------------------------------------- one by one


@pytest.mark.parametrize(
    ("opening", "new", "found"),
    [
        ([system(), user("q")], [system(), user("q2")], "message 1 of 2 is the earlier system message"),
        ([user("q")], [user("q"), assistant("other"), user("q2")], "the first 1 of 3 are the episode's opening"),
        ([user("q")], [user("q"), {"role": "tool", "content": "5"}], "the first 1 of 2 are the episode's opening"),
        ([user("q")], [assistant("Yes."), user("q2")], "message 1 of 2 is the model's own reply 1"),
        ([user("q")], [user("q"), assistant("Yes."), user("q2")], "message 2 of 3 is the model's own reply 1"),
        ([system(), user("q")], [user("q"), assistant("Yes.")], "message 2 of 2 is the model's own reply 1"),
    ],
)
def test_the_error_names_the_repeated_message(opening: list[Message], new: list[Message], found: str) -> None:
    episode = Episode(opening)
    episode.hear("Yes.")
    with pytest.raises(ConfigError, match=f"^messages repeat what was sent: {found}; {REFUSED} .policy main.$"):
        episode.send(new)


@pytest.mark.parametrize(
    "new",
    [
        [user("q")],
        [user("q"), user("q")],
        [user("q"), user("and a hint")],
        [user("another"), assistant("Yes."), user("so?")],
        [system("Now be long."), user("q")],
    ],
)
def test_repeating_a_question_is_not_a_history(new: list[Message]) -> None:
    episode = Episode([user("q")])
    for _ in range(3):
        episode.hear("Yes.")
        episode.send(new)


def test_openings_and_omitted_replies_of_earlier_histories_are_recognized() -> None:
    episode = Episode([system("One."), user("q")])
    reply = episode.hear("Yes.")
    episode.send([system("Two."), user("notes")], restart=True)
    episode.hear("No.")
    for repeated in ([system("One."), user("q")], [user("now"), reply], [system("Two."), user("notes")]):
        with pytest.raises(ConfigError, match=REFUSED):
            episode.send(repeated)
    episode.send([system("One."), user("q"), reply], restart=True)


# ---------------------------------------------------------------------- whole episodes


class HistoryKeeper(AsyncSampler):
    """As samplers for AgentRL and most chat APIs are written: one list, which grows and is sent at every call."""

    restart = False
    policy: str | None = None

    async def run(self) -> Termination:
        messages = [system(), user(self.task.payload.query)]
        for _ in range(3):
            turn = await self.create_chat_completions(messages, restart=self.restart, policy=self.policy)
            assert turn is not None
            messages.append({"role": "assistant", "content": turn.text})
            messages += [{"role": "tool", "tool_call_id": c.id, "content": "5"} for c in turn.parsed.tool_calls]
            messages.append(user("continue"))
        return Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        return Score(1.0)


class WithRestart(HistoryKeeper):
    restart = True


class ToTheJudge(HistoryKeeper):
    policy = "judge"


class Looker(HistoryKeeper):
    async def run(self) -> Termination:
        await self.create_chat_completions([user("q")])
        self.prompt_tokens([user("q"), assistant("It is 4."), user("continue")])
        return Termination.ANSWERED


class Peeker(HistoryKeeper):
    """Looks at a history before it decides against it."""

    async def run(self) -> Termination:
        other = [system("Two."), user("notes")]
        await self.create_chat_completions([system(), user("q")])
        self.prompt_tokens(other, restart=True)
        await self.create_chat_completions(other)
        return Termination.ANSWERED


async def test_prompt_tokens_does_not_count_as_sending(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says("It is 4.")) as shared:
        assert await play(Peeker(shared, await claim(store))) == 1.0


@pytest.mark.parametrize("sampler", [HistoryKeeper, ToTheJudge, Looker])
async def test_an_episode_that_resends_its_history_fails_with_the_reason_and_is_not_retried(
    store: Store, sampler: type[AsyncSampler]
) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with debate(store) as shared:
        played = sampler(shared, await claim(store))
        assert await play(played) is None
        record, slot, dispatches = await ended(store, played)
        assert (record.status, record.score, record.termination) == (RecordStatus.FAILED, None, "misconfigured")
        assert len(dispatches) == 1, "the second request was not sent"
        assert (slot.status, slot.error) == (SlotStatus.FAILED, record.error)
        assert (record.error or "").startswith("MessagesRepeat: messages repeat what was sent: ")
        (failed,) = (await read_status(store)).failed_attempts
        assert (failed["termination"], failed["attempts"]) == ("misconfigured", 1)
        assert REFUSED in failed["example"][:200], "as far as `tandem status` shows it"


async def test_with_restart_the_same_sampler_plays_and_its_replies_keep_their_ids(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says("It is 4." + CALL)) as shared:
        sampler = WithRestart(shared, await claim(store))
        assert await play(sampler) == 1.0
    _, _, dispatches = await ended(store, sampler)
    assert [d.branch_cause for d in dispatches] == [BranchCause.CLEAN, *[BranchCause.CONTEXT_POLICY] * 2]
    lengths = [d.usage["prompt"] + d.usage["completion"] for d in dispatches]
    assert [d.shared_length for d in dispatches] == [0, *lengths[:2]], "nothing is encoded again"
    assert (await audit(store, running=True)).ok
