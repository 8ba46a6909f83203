"""A scorer reads the bounded conversation: each message once, even if a history was sent repeatedly."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler.core.episode.episode import play
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.rendering.reply_message import reply_words
from sampler.core.rendering.transcript import Transcript
from sampler.scorers import Score, ScoringRequest, register_scorer
from shared.documents import TaskPayload
from shared.documents.states import Termination
from shared.store import Store
from tests.sampler.episodes import resources, says
from tests.sampler.test_new_messages import FORMS, OPENINGS, TURNS, Message, assistant, system, user
from tests.sampler.test_new_messages import Episode as Sent
from tests.sampler.test_two_policies import Debate, debate
from tests.shared.builders import claim, import_tasks, make_task

READ: list[ScoringRequest] = []


@register_scorer("tests_transcript", needs_answer=False)
async def reading(request: ScoringRequest) -> Score:
    READ.append(request)
    return Score(1.0)


@given(OPENINGS, TURNS, st.sampled_from(sorted(FORMS)), st.booleans())
@settings(max_examples=100, deadline=None)
def test_sending_the_whole_history_and_sending_only_new_messages_give_the_same_transcript(
    opening: list[Message], turns: list[tuple[str, list[Message]]], form: str, restarts: bool
) -> None:
    transcript, episode = Transcript(), Sent(opening)
    transcript.received(opening, restart=False)
    whole = list(opening)
    for text, new in turns:
        reply = episode.hear(text)
        replied(transcript, reply, text)
        whole += [FORMS[form](reply, text), *new]
        episode.send(new)
        transcript.received(whole if restarts else new, restart=restarts)
    assert list(transcript.messages()) == episode.whole


def replied(transcript: Transcript, message: Message, text: str) -> None:
    transcript.replied(message, reply_words(message, text, "</think>"))


def told(transcript: Transcript, *messages: Message, restart: bool = False) -> None:
    transcript.received(messages, restart=restart)


def test_only_unseen_messages_of_a_cut_history_are_new() -> None:
    transcript = Transcript()
    told(transcript, system(), user("q"))
    first, second = assistant("one"), assistant("two")
    replied(transcript, first, "one")
    told(transcript, user("a long result"))
    replied(transcript, second, "two")
    told(transcript, system(), user("q"), first, user("[removed]"), second, user("next"), restart=True)
    told(transcript, system(), user("q\n\nNotes: nothing"), restart=True)
    said = ["Be brief.", "q", "one", "a long result", "two", "next", "q\n\nNotes: nothing"]
    assert [message["content"] for message in transcript.messages()] == said


def test_the_transcript_is_unaffected_by_later_changes_of_the_samplers_messages() -> None:
    transcript, message = Transcript(), user("q")
    told(transcript, message)
    reply = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}
    replied(transcript, reply, "")
    message["content"] = "changed"
    reply["tool_calls"][0]["function"]["arguments"]["x"] = 2  # type: ignore[index]  # a list of dicts
    first, second = transcript.messages()
    assert (first["content"], second["tool_calls"][0]["function"]["arguments"]) == ("q", {"x": 1})


@given(st.lists(st.integers(0, 400), max_size=40), st.integers(1, 2000))
@settings(max_examples=50, deadline=None)
def test_a_transcript_is_bounded_and_states_the_number_of_dropped_messages(sizes: list[int], most: int) -> None:
    transcript = Transcript(most)
    opening = [system(), user("q")]
    told(transcript, *opening)
    messages = [user(f"{at}:" + "x" * size) for at, size in enumerate(sizes)]
    for message in messages:
        told(transcript, message)
    *begin, rest = [*transcript.messages()[:2], list(transcript.messages()[2:])]
    assert begin == opening
    left_out = len(messages) - len([m for m in rest if m["role"] == "user"])
    gap = [system(f"[{left_out} messages are left out here]")] if left_out else []
    assert rest == [*gap, *messages[left_out:]]
    assert rest[-1:] == messages[-1:]
    assert sum(len(str(m)) for m in messages[left_out:]) <= most or left_out >= len(messages) - 1


# ---------------------------------------------------------------------- whole episodes


class Talker(AsyncSampler):
    async def run(self) -> Termination:
        await self.create_chat_completions(self.opening_messages())
        assert [message["role"] for message in self.conversation][-2:] == ["user", "assistant"]
        await self.create_chat_completions([user("Sure?")])
        return Termination.ANSWERED


@pytest.mark.parametrize("scorer", [None, "tests_transcript"])
async def test_the_scorer_of_a_custom_sampler_gets_the_conversation(store: Store, scorer: str | None) -> None:
    READ.clear()
    payload = TaskPayload(query="2+2?", answer="4", scorer=scorer)
    await store.tasks.insert_new([make_task(0, num_generations=1).model_copy(update={"payload": payload})])
    options: dict[str, Any] = {"default_scorer": "tests_transcript", "answer_instruction": "none"}
    async with resources(store, says("It is 4."), **options) as shared:
        assert await play(Talker(shared, await claim(store))) == 1.0
    (request,) = READ
    assert request.messages == (user("2+2?"), assistant("It is 4."), user("Sure?"), assistant("It is 4."))
    assert request.reply == request.messages[-1]["content"]


async def test_a_reply_with_a_malformed_call_appears_as_sampled(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    text = 'I look.\n<tool_call>\n{"name": }\n</tool_call>'
    async with resources(store, says(text)) as shared:
        sampler = Talker(shared, await claim(store))
        assert await play(sampler) is not None
    assert contents([m for m in sampler.conversation if m["role"] == "assistant"]) == [text, text]


async def test_the_conversation_is_that_of_the_tasks_own_policy(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with debate(store) as shared:
        sampler = Debate(shared, await claim(store))
        assert await play(sampler) is not None
    assert contents(sampler.conversation) == ["round 0", "four", "round 1", "four"]


def contents(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]
