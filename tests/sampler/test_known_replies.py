"""The model's own replies keep their sampled ids in every history that an episode is given."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler.core.episode.episode import play
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.history.history import CLEARED
from sampler.core.rendering.context import Context
from sampler.core.rendering.known_replies import SampledReplies
from sampler.core.rendering.template import ChatTemplate
from sampler.scorers import Score
from shared.documents.states import Termination
from shared.episodes.state import EpisodeState
from shared.store import Store
from tandem.audit.run import audit
from tests.sampler.chats import NAMED, small_tokenizer
from tests.sampler.conversations import TOOLS
from tests.sampler.episodes import TEMPLATE, ended, resources, samples
from tests.sampler.families import FAMILIES, Call, Family, Reply
from tests.sampler.settling import settle_next
from tests.sampler.test_template_families import MODES, as_spelled, name_of
from tests.shared.builders import claim, import_tasks

EXAMPLE = Path(__file__).parents[2] / "assets" / "example"
QUESTION = {"role": "user", "content": "What is A?"}
OTHER = {"role": "user", "content": "What is something else?"}
Message = dict[str, Any]


class Episode:
    """`replies`: the turns' messages; `answers`: what followed each; `spelled`: of each reply the ids of its text, or of
    the end of its call, as no tokenizer would give them."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.replies: list[Message] = []
        self.answers: list[list[Message]] = []
        self.spelled: list[list[int]] = []
        context.start([QUESTION])

    def say(self, text: str, message: Message, answers: list[Message]) -> None:
        output = as_spelled(self.context, text)
        kept = as_spelled(self.context, message["content"]) if message["content"] else output[-5:]
        self.replies.append(message)
        self.answers.append(answers)
        self.spelled.append(kept)
        self.context.extend([*output, self.context.format.end_ids[0]], answers, message)

    def history(self, *rounds: int) -> list[Message]:
        return [QUESTION, *(message for at in rounds for message in (self.replies[at], *self.answers[at]))]

    def restarted(self, history: list[Message]) -> list[int]:
        self.context.restart(history)
        return list(self.context.ids)

    def shows(self, at: int) -> bool:
        ids, kept = self.context.ids, self.spelled[at]
        return any(ids[i : i + len(kept)] == kept for i in range(len(ids)))


def played(family: Family, mode: str) -> Episode:
    """Three replies as the family's models write them, the second of which calls a tool."""
    episode = Episode(Context(family.template(mode), TOOLS))
    call = Call(family.call_id(0, "lookup"), "lookup", {"x": "A"})
    result = {"role": "tool", "name": "lookup", "tool_call_id": call.id, "content": "5"}
    again = {"role": "user", "content": "And now?"}
    messages = [QUESTION]
    for content, calls, answer in (("Let us begin.", [], again), ("", [call], result), ("It is five.", [], again)):
        thinks = mode in family.thinks and (family.after_result or messages[-1]["role"] != "tool")
        reply = Reply(content, "Hmm, well." if thinks else "", calls)
        written = family.written(mode, messages, TOOLS, reply)
        episode.say(written.text, family.message(mode, reply), [answer])
        messages += [episode.replies[-1], answer]
    return episode


def with_the_bundled_template() -> Episode:
    template = ChatTemplate.build(small_tokenizer(), (EXAMPLE / "chat_template.jinja").read_text(), NAMED)
    episode = Episode(Context(template, TOOLS))
    for content in ("Let us begin.", "It is five.", "Five, I say."):
        episode.say(content, {"role": "assistant", "content": content}, [{"role": "user", "content": "And now?"}])
    return episode


def check_that_histories_come_and_go(episode: Episode) -> None:
    whole = episode.history(0, 1, 2)
    first = episode.restarted(whole)
    assert all(map(episode.shows, range(3)))
    for between in ([OTHER], episode.history(2), episode.history(0)):
        episode.restarted(between)
        assert episode.restarted(whole) == first
    episode.restarted([OTHER])
    cleared = [{**message, "content": CLEARED} if message["role"] == "tool" else message for message in whole]
    episode.restarted(cleared)
    assert all(map(episode.shows, range(3))), "a history that is compacted"
    episode.restarted(episode.history(1, 2))
    assert [episode.shows(at) for at in range(3)] == [False, True, True]


@pytest.mark.parametrize(("family", "mode"), MODES, ids=name_of)
def test_a_reply_keeps_its_ids_after_a_history_without_it(family: Family, mode: str) -> None:
    check_that_histories_come_and_go(played(family, mode))


def test_a_reply_keeps_its_ids_with_the_template_of_the_bundled_model() -> None:
    check_that_histories_come_and_go(with_the_bundled_template())


def test_a_reply_omitted_from_the_next_history_keeps_its_ids_later() -> None:
    """Sampled, left out of the next history at once, and wanted back."""
    context = Context(FAMILIES["qwen3"].template("off"), TOOLS)
    context.start([QUESTION])
    output, reply = as_spelled(context, "It is five."), {"role": "assistant", "content": "It is five."}
    context.restart([OTHER], output, reply)
    context.restart([QUESTION, reply, OTHER])
    at = len(context.template.render_ids([QUESTION], TOOLS, True)) - len(
        context.template.encode("<think>\n\n</think>\n\n")
    )
    assert context.ids[at : at + len(output)] == output


def as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def as_openai(message: Message) -> Message:
    """As a client's `model_dump()` has it: arguments are texts, and what is not there is None."""
    calls = [
        {**call, "function": {**call["function"], "arguments": as_text(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {
        "refusal": None,
        "audio": None,
        **message,
        "content": message["content"] or None,
        "tool_calls": calls or None,
    }


COPIES: dict[str, Callable[[Message], Message]] = {
    "copied": copy.deepcopy,
    "from json": lambda message: json.loads(json.dumps(message)),
    "as a client's": as_openai,
    "stripped": lambda message: {**message, "content": f" {message['content']}\n"},
}


@pytest.mark.parametrize("made", COPIES.values(), ids=COPIES.keys())
@pytest.mark.parametrize(("family", "mode"), MODES, ids=name_of)
def test_a_copy_of_a_reply_is_the_reply(family: Family, mode: str, made: Callable[[Message], Message]) -> None:
    episode = played(family, mode)
    whole = episode.history(0, 1, 2)
    first = episode.restarted(whole)
    episode.restarted([OTHER])
    assert episode.restarted([made(m) if m["role"] == "assistant" else m for m in whole]) == first


@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_replys_raw_text_is_the_reply(mode: str) -> None:
    """As samplers append it that keep the engine's text with reasoning and calls."""
    episode = played(FAMILIES["qwen3"], mode)
    first = episode.restarted(episode.history(0, 1, 2))
    calls = (
        FAMILIES["qwen3"].written(mode, episode.history(0), TOOLS, Reply("", "Hmm, well." * (mode == "on"), CALLS)).text
    )
    episode.restarted([OTHER])
    raw = [{"role": "assistant", "content": calls} if m is episode.replies[1] else m for m in episode.history(0, 1, 2)]
    assert episode.restarted(raw) == first


CALLS = [Call("c00000000", "lookup", {"x": "A"})]


def test_messages_written_by_the_sampler_stay_text_even_if_equal_to_a_reply() -> None:
    context = Context(FAMILIES["qwen25"].template("off"))
    example = [QUESTION, {"role": "assistant", "content": "It is five."}]
    first = context.start([*example, OTHER]).added
    output = as_spelled(context, "It is five.")
    reply = {"role": "assistant", "content": "It is five."}
    context.extend([*output, context.format.end_ids[0]], [OTHER], reply)
    ids = list(context.ids)
    for history in ([*example, OTHER, reply, OTHER], [*example, OTHER, dict(reply), OTHER]):
        context.restart([OTHER])
        context.restart(history)
        assert context.ids == ids
        assert context.ids[: len(first)] == first


def test_a_reply_that_occurs_twice_in_a_history_keeps_its_ids_at_both_places() -> None:
    """Also where the template shows it in full at one place and without its reasoning at the other."""
    context = Context(FAMILIES["qwen3"].template("on"), TOOLS)
    context.start([QUESTION])
    reply = {"role": "assistant", "content": "It is five.", "reasoning_content": "Hmm, well."}
    kept, thought = as_spelled(context, "It is five."), as_spelled(context, "Hmm, well.")
    output = as_spelled(context, "<think>\nHmm, well.\n</think>\n\nIt is five.<|im_end|>")
    result = {"role": "tool", "name": "lookup", "tool_call_id": "c00000000", "content": "5"}
    context.restart([QUESTION, reply, OTHER, reply, result], output, reply)
    text = context.template.decode(context.ids)
    assert text.count("It is five.") == 2
    assert [sum(context.ids[i : i + len(p)] == p for i in range(len(context.ids))) for p in (kept, thought)] == [2, 1]


def test_of_two_replies_with_the_same_words_the_later_messages_say_which_is_meant() -> None:
    """Another thread was told the same twice; this thread was told it once, in other ids, and then shows the other's history."""
    template, known = FAMILIES["qwen25"].template("off"), SampledReplies()
    reply = {"role": "assistant", "content": "It is five."}
    other, own = Context(template, known=known), Context(template, known=known)
    other.start([QUESTION])
    for _ in range(2):
        other.extend([*as_spelled(other, "It is five."), other.format.end_ids[0]], [OTHER], dict(reply))
    own.start([QUESTION])
    own.restart(
        [QUESTION, dict(reply), OTHER, dict(reply), OTHER],
        [*template.encode("It is five."), other.format.end_ids[0]],
        reply,
    )
    assert own.ids == other.ids


rounds = st.lists(st.integers(0, 2), max_size=3)


@given(st.sampled_from(MODES), st.lists(rounds, max_size=4), rounds)
@settings(max_examples=25, deadline=None)
def test_a_historys_prompt_does_not_depend_on_earlier_histories(
    chosen: tuple[Family, str], way: list[list[int]], goal: list[int]
) -> None:
    episode = played(*chosen)
    direct = episode.context.fork()
    direct.restart(episode.history(*goal))
    for rounds_between in way:
        episode.restarted(episode.history(*rounds_between))
    assert episode.restarted(episode.history(*goal)) == direct.ids


# ---------------------------------------------------------------------- a whole episode


class Wanderer(AsyncSampler):
    """Sends a history, another history, and the first one again after a JSON round trip."""

    async def run(self) -> Termination:
        turn = await self.create_chat_completions([QUESTION])
        assert turn is not None
        await self.create_chat_completions([OTHER], restart=True)
        kept = json.loads(json.dumps(turn.message))
        await self.create_chat_completions([QUESTION, kept, OTHER], restart=True)
        return Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        return Score(float(self.claim.traj_id))


async def test_a_sampler_that_returns_to_a_history_sends_the_sampled_ids(store: Store) -> None:
    """With the model that comes with the project, whose tokenizer would not choose these ids."""
    output = [i for character in "It is five." for i in TEMPLATE.encode(character)]
    assert output != TEMPLATE.encode("It is five.")
    await import_tasks(store, 1, num_generations=2)
    async with resources(store, samples([*output, TEMPLATE.token_id("<|im_end|>") or 0])) as shared:
        for _ in range(2):
            sampler = Wanderer(shared, await claim(store))
            assert await play(sampler) is not None
        await settle_next(store, "w", shared.config)
    record, _, dispatches = await ended(store, sampler)
    sent = EpisodeState(record, dispatches).prompt_of(2)
    assert len(dispatches) == 3
    assert (dispatches[2].parent, dispatches[2].shared_length) == (
        dispatches[0].id,
        dispatches[0].usage["prompt"] + dispatches[0].usage["completion"],
    ), "it continues the first request, as if the second had never been"
    assert sent[dispatches[0].usage["prompt"] :][: len(output)] == output
    assert (await audit(store, running=True)).ok
