"""Context policies on whole episodes: the model's new history, and that none of its replies is lost or added."""

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampler.core.history.history import CLEARED, NOTES, History, Round, discard_all_tools
from sampler.core.history.repetition import MIN_LOOP_CHARS, tail_repeats
from sampler.core.rendering import ahead
from sampler.core.rendering.template import ChatTemplate
from sampler.scorers import Score, ScoringRequest, register_scorer
from sampler.settings import SamplerConfig
from shared.documents.states import BranchCause, DispatchStatus
from shared.store import Store
from tests.sampler.boxes import Box, start_box
from tests.sampler.chats import chat
from tests.sampler.context_episodes import (
    AGENT_SUMMARY,
    ANSWER,
    PAGES,
    QUERY,
    SUMMARY,
    Played,
    check_token_exactness,
    played,
)
from tests.sampler.families import FAMILIES, Call, Reply
from tests.sampler.test_mcp_sampler import calls

TEMPLATE = chat("qwen")
BUDGET = {"context_budget_tokens": 1600}
TOOLS: dict[str, Any] = {"new_context": "discard_all_tools"} | BUDGET
ALL: dict[str, Any] = {"new_context": "discard_all"} | BUDGET
BROWSE: dict[str, Any] = ALL | {"context_summary": "browse_agent"}
SAME = "Once more.\n" + calls("add", a=1, b=2)
OTHER = "And this.\n" + calls("add", a=3, b=4)
LOOP = "I think so. " + "again and again, " * 30 + "…"
COMPRESS = {"repetition_early_stop_times": 3, "enable_repetition_compress": True}


Play = Callable[..., Awaitable[Played]]


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    box = start_box()
    yield box
    box.kill()


@pytest.fixture
def play(store: Store, box: Box) -> Play:
    """`played` with a real database and a real tool server."""
    return partial(played, store, box.server)


def shown(prompt: Sequence[int]) -> str:
    return TEMPLATE.decode(prompt)


def result(size: int) -> str:
    """The end of the result of the tool `big`."""
    return ("0123456789" * (size // 10))[: size - 3][-20:] + "END"


READ: list[Sequence[Mapping[str, Any]]] = []  # by the scorer below


@register_scorer("tests_reading", needs_answer=False)
async def reading(request: ScoringRequest) -> Score:
    READ.append(request.messages)
    return Score(1.0)


@pytest.mark.parametrize("policy", [{}, TOOLS, ALL, BROWSE], ids=["none", "tools", "all", "browse agent"])
async def test_a_scorer_reads_the_whole_conversation_including_removed_parts(
    play: Play, policy: dict[str, Any]
) -> None:
    READ.clear()
    episode = await play([*PAGES[:4], ANSWER], default_scorer="tests_reading", **policy)
    (messages,) = READ
    assert messages[-1] == {"role": "assistant", "content": ANSWER}
    replies = [message for message in messages if message["role"] == "assistant"]
    assert [d.response.text for d in episode.dispatches if d.response] == [as_text(reply) for reply in replies]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    notes = [message for message in messages if NOTES in str(message["content"])]
    assert bool(notes) == (policy.get("new_context") == "discard_all")
    assert len(messages) == 1 + len(replies) + len(results) + len(notes)
    told = [m["content"] for d in episode.dispatches for m in d.messages if m["role"] == "tool"]
    assert results == [content for content in dict.fromkeys(told) if content != CLEARED]


def as_text(reply: Mapping[str, Any]) -> str:
    made = [calls(call["function"]["name"], **call["function"]["arguments"]) for call in reply.get("tool_calls", ())]
    return "\n".join([reply["content"], *made])


# ---------------------------------------------------------------------- too long


async def test_without_a_policy_the_context_grows_to_its_end(play: Play) -> None:
    episode = await play([*PAGES, ANSWER])
    assert episode.record.termination == "length_limit"
    assert {d.branch_cause for d in episode.dispatches} == {BranchCause.CLEAN}
    check_token_exactness(episode)


async def test_prompt_tokens_returns_the_exact_length_and_changes_nothing(play: Play) -> None:
    alone = await play([*PAGES[:3], ANSWER])
    watched = await play([*PAGES[:3], ANSWER], number=1, new_context="discard_all")
    assert watched.prompts == alone.prompts
    longest = len(alone.prompts[-1])
    fits = await play([*PAGES[:3], ANSWER], number=2, new_context="discard_all", context_budget_tokens=longest)
    assert fits.prompts == alone.prompts
    over = await play([*PAGES[:3], ANSWER], number=3, new_context="discard_all", context_budget_tokens=longest - 1)
    assert over.prompts != alone.prompts


@pytest.mark.parametrize("policy", [TOOLS, ALL], ids=["tools", "all"])
async def test_long_results_are_encoded_in_threads(
    play: Play, policy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are only counted, too."""
    encode, threads = ChatTemplate.encode, []

    def noted(template: ChatTemplate, text: str) -> list[int]:
        if "0123456789" * 30 in text:
            threads.append(threading.current_thread())
        return encode(template, text)

    monkeypatch.setattr(ahead, "LONG_CHARS", 300)
    monkeypatch.setattr(ChatTemplate, "encode", noted)
    await play([*PAGES, ANSWER], **policy)
    assert threads
    assert threading.main_thread() not in threads


async def test_discard_all_tools_keeps_replies_and_only_unread_results(play: Play) -> None:
    episode = await play([*PAGES, ANSWER], **TOOLS)
    assert (episode.record.termination, episode.record.answer) == ("answered", "1234")
    assert all(len(prompt) <= BUDGET["context_budget_tokens"] for prompt in episode.prompts)
    first = next(i for i, d in enumerate(episode.dispatches) if d.branch_cause is BranchCause.CONTEXT_POLICY)
    branch = episode.dispatches[first]
    before, after = episode.prompts[first - 1] + episode.outputs[first - 1], episode.prompts[first]
    assert before[: branch.shared_length] == after[: branch.shared_length]
    assert after[len(episode.prompts[0]) :][: len(episode.outputs[0])] == episode.outputs[0], (
        "the ids that were sampled"
    )
    assert shown(after).count(CLEARED) == first - 1
    assert all(f"Page {n}." in shown(after) for n in range(first))
    sizes = (500, 700, 900, 1100, 600)
    for at, prompt in enumerate(episode.prompts[1:]):
        assert result(sizes[at]) in shown(prompt), "every result is read once"
    check_token_exactness(episode)


async def test_the_summary_of_discard_all_is_a_normal_reply_and_replaces_the_history(play: Play) -> None:
    episode = await play([*PAGES, ANSWER], **ALL)
    assert (episode.record.termination, episode.record.answer) == ("answered", "1234")
    at = next(i for i, d in enumerate(episode.dispatches) if d.branch_cause is BranchCause.CONTEXT_POLICY)
    asked, branch = episode.dispatches[at - 1], episode.dispatches[at]
    assert asked.branch_cause is BranchCause.CLEAN
    assert asked.response is not None
    assert asked.response.text == SUMMARY
    tree = episode.tree
    assert int((tree.trained_N & (tree.dispatches_N == at - 1)).sum()) == len(episode.outputs[at - 1]), "trained"
    assert f"{QUERY}\n\n{NOTES}\n{SUMMARY}<|im_end|>" in shown(episode.prompts[at])
    assert "Page" not in shown(episode.prompts[at])
    assert branch.shared_length > len(TEMPLATE.encode(shown(episode.prompts[0]).partition(QUERY)[0]))
    assert len(tree.leaves()) == 1 + [d.branch_cause for d in episode.dispatches].count(BranchCause.CONTEXT_POLICY)
    check_token_exactness(episode)


async def test_a_browse_agents_summary_costs_the_policy_no_reply(play: Play) -> None:
    episode = await play([*PAGES, ANSWER], **BROWSE)
    assert episode.record.termination == "answered"
    assert len(episode.outputs) == len(PAGES) + 1
    at = next(i for i, d in enumerate(episode.dispatches) if d.branch_cause is BranchCause.CONTEXT_POLICY)
    assert f"{NOTES}\n{AGENT_SUMMARY}<|im_end|>" in shown(episode.prompts[at])
    assert "[Agent]: Page 0." in episode.agent_prompts[0]
    assert QUERY in episode.agent_prompts[0]
    check_token_exactness(episode)


async def test_a_summary_is_not_an_answer_and_a_history_that_does_not_fit_ends_the_episode(play: Play) -> None:
    summary = "<answer>9</answer>" + "5" * 380
    options = {"new_context": "discard_all", "context_budget_tokens": 600}
    episode = await play([*PAGES, ANSWER], summary=summary, **options)
    assert (episode.record.termination, episode.record.answer) == ("length_limit", None)
    assert [d.response.text for d in episode.dispatches if d.response] == [PAGES[0], summary]
    check_token_exactness(episode)


async def test_the_newest_results_are_dropped_if_a_summary_would_not_fit_after_them(play: Play) -> None:
    pages = [calls("big", n_chars=600), calls("big", n_chars=2000), ANSWER]
    episode = await play(pages, new_context="discard_all", max_tokens=3000)
    assert CLEARED in shown(episode.prompts[2])
    assert episode.record.termination == "answered"
    check_token_exactness(episode)


@pytest.mark.parametrize("options", [TOOLS, ALL], ids=["discard_all_tools", "discard_all"])
@pytest.mark.parametrize("name", ["qwen3", "mistral_nemo", "deepseek_v31", "glm45", "kimi_k2", "llama31"])
async def test_every_template_renders_the_new_history_token_for_token(
    play: Play, name: str, options: dict[str, Any]
) -> None:
    family = FAMILIES[name]
    mode = next(iter(family.modes))
    question = [{"role": "user", "content": QUERY}]
    thought = "Let me see." if mode in family.thinks else ""
    said = [Reply("", thought, [Call(family.call_id(n, "big"), "big", {"n_chars": 500})]) for n in range(4)]
    replies = [family.written(mode, question, [], reply).text for reply in said]
    episode = await play(
        [*replies, f"{thought}</think>{ANSWER}" if thought else ANSWER],
        template=family.template(mode),
        parser=family.parser,
        **options | {"context_budget_tokens": 1400},
    )
    assert episode.record.termination == "answered"
    assert BranchCause.CONTEXT_POLICY in {d.branch_cause for d in episode.dispatches}
    check_token_exactness(episode)


# ---------------------------------------------------------------------- in circles


async def test_a_reply_repeated_too_often_ends_the_episode_without_calling_its_tools(play: Play) -> None:
    """Regardless of its reasoning."""
    replies = [SAME, OTHER, f"<think>\nOnce more?\n</think>\n\n{SAME}", SAME]
    episode = await play(replies, repetition_early_stop_times=3)
    assert episode.record.termination == "repetition"
    done, repeated = DispatchStatus.COMPLETED, DispatchStatus.REPEAT_ERROR
    assert [d.status for d in episode.dispatches] == [done, done, repeated, repeated]
    assert [len(d.tool_calls) for d in episode.dispatches] == [1, 1, 1, 0]
    check_token_exactness(episode)


@pytest.mark.parametrize("options", [TOOLS, ALL], ids=["discard_all_tools", "discard_all"])
async def test_compression_removes_repetitions_and_the_episode_continues(play: Play, options: dict[str, Any]) -> None:
    replies = [SAME, OTHER, SAME, SAME, OTHER, ANSWER]
    episode = await play(replies, **options, **COMPRESS)
    assert (episode.record.termination, episode.record.answer) == ("answered", "1234")
    branches = [i for i, d in enumerate(episode.dispatches) if d.branch_cause is BranchCause.CONTEXT_POLICY]
    after = shown(episode.prompts[branches[0]])
    assert (after.count("Once more."), after.count("And this.")) == (1, 1), "for the summary they are still there, once"
    assert len(episode.prompts[branches[-1]]) < len(episode.prompts[branches[0] - 1])
    check_token_exactness(episode)


@pytest.mark.parametrize(
    ("options", "termination"),
    [
        ({}, "length_limit"),
        ({"repetition_early_stop_times": 3}, "repetition"),
        ({"repetition_early_stop_times": 31}, "length_limit"),
        (TOOLS | COMPRESS, "answered"),
        (ALL | COMPRESS, "answered"),
    ],
    ids=["not looked for", "early stop", "not so often", "discard_all_tools", "discard_all"],
)
async def test_a_reply_that_never_ends_because_it_repeats_itself(
    play: Play, options: dict[str, Any], termination: str
) -> None:
    episode = await play([LOOP, ANSWER], **options)
    assert episode.record.termination == termination
    if termination == "answered":
        assert episode.prompts[1] == episode.prompts[0], "asked again, as if it had not been said"
        assert len(episode.tree.leaves()) == 2
    check_token_exactness(episode)


@given(st.text("ab", max_size=30), st.text("abc", min_size=1, max_size=12), st.integers(1, 60), st.integers(0, 11))
@example("x", "abc", 70, 1)
@example("", "a", MIN_LOOP_CHARS, 0)
@example("x", "abc" * 30, 2, 20)
def test_tail_repeats_equals_a_plain_search(head: str, piece: str, times: int, cut: int) -> None:
    text = head + piece * times + piece[: cut % len(piece)]
    most = 1
    for period in range(1, len(text)):
        length = period
        while length < len(text) and text[-length - 1] == text[-length - 1 + period]:
            length += 1
        if length >= MIN_LOOP_CHARS:
            most = max(most, length // period)
    assert tail_repeats(text) == most
    assert most >= times or len(piece) * times < MIN_LOOP_CHARS


# ---------------------------------------------------------------------- pure parts


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(1, 300), st.integers(0, 20))
def test_discard_all_tools_removes_as_little_as_necessary(sizes: list[int], budget: int, opening: int) -> None:
    rounds = tuple(
        Round({"role": "assistant", "content": "r" * 5}, ({"role": "tool", "content": "t" * size},), str(i))
        for i, size in enumerate(sizes)
    )
    history = History(({"role": "user", "content": "o" * opening},), rounds)

    def tokens(of: History) -> int:
        return sum(len(m["content"]) // (10 if m["content"] == CLEARED else 1) for m in of.messages())

    found = discard_all_tools(history, tokens, budget)
    kept = len(found.rounds)
    assert [one.reply for one in found.rounds] == [one.reply for one in rounds[len(rounds) - kept :]]
    assert not kept or tokens(found) <= budget
    assert all(m["content"] == CLEARED for one in found.rounds[:-1] for m in one.answers)
    if kept and found.rounds[-1] != rounds[-1]:
        assert tokens(History(history.opening, rounds[-1:])) > budget, "the newest results would have fitted"
    if 0 < kept < len(rounds):
        one_more = (rounds[len(rounds) - kept - 1].cleared(), *found.rounds)
        assert tokens(History(history.opening, one_more)) > budget // 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_budget_tokens": 100}, "context_budget_tokens needs a context policy"),
        ({"enable_repetition_compress": True, "repetition_early_stop_times": 2}, "needs a context policy"),
        (TOOLS | {"enable_repetition_compress": True}, "needs repetition_early_stop_times"),
        (TOOLS | {"context_summary": "browse_agent"}, "only new_context=discard_all writes a summary"),
        (TOOLS | {"max_tokens": 1000}, "expected at most max_tokens - max_new_tokens = 488"),
    ],
)
def test_meaningless_combinations_of_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplerConfig(run="r", db_connection_string="x", model_name_or_path="m", **options)
