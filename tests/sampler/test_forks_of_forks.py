"""Forks of forks: the tool calls and the sampled ids of all episodes before count, not those of the last one alone."""

from typing import Any

import pytest

from shared.documents import DispatchedSamplingTask, Record
from shared.documents.packed import unpack_ints
from shared.documents.states import RecordStatus, Termination
from shared.episodes.origin import read_origin
from shared.errors import ConfigError
from shared.store import Store
from tandem.audit.report import Check
from tandem.audit.run import audit
from tests.sampler import test_mcp_sampler
from tests.sampler.engines import STOP, answer
from tests.sampler.test_fork import RIGHT, claimed, forked, played
from tests.sampler.test_mcp_sampler import END, TEMPLATE, calls, episode

TOOLS = {"tools": ["add", "bump"]}
FIRST = [calls("add", a=2, b=3), calls("add", a=5, b=1), calls("add", a=1, b=1), "<answer>5</answer>"]
SECOND = [calls("add", a=6, b=6), calls("add", a=7, b=7), RIGHT]


@pytest.fixture
def by_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies are sampled letter by letter: no tokenizer would write their text with these ids."""

    def said(text: str) -> Any:
        ids = [token for letter in text for token in TEMPLATE.encode(letter)] + END
        assert ids != TEMPLATE.encode(text) + END
        return answer(ids, {"type": "stop", "matched": END[0]} | STOP)

    monkeypatch.setattr(test_mcp_sampler, "said", said)


async def two_episodes(store: Store) -> tuple[list[list[int]], Record, list[DispatchedSamplingTask], list[list[int]]]:
    """An episode of four turns, and a fork of its third one: the prompts of the first; the fork, its turns and prompts."""
    _, stored, engines = await episode(store, FIRST, TOOLS)
    asked = [body["input_ids"] for body in engines.bodies()]
    await forked(store, stored[2].id, earlier_calls="stateless")
    record, dispatches, _, bodies = await played(store, await claimed(store), list(SECOND))
    return asked, record, dispatches, [body["input_ids"] for body in bodies]


@pytest.mark.usefixtures("by_letter")
@pytest.mark.parametrize("turn", [*(pytest.param(turn, marks=pytest.mark.thorough) for turn in (0, 1)), 2])
async def test_a_fork_of_a_fork_asks_with_exactly_the_ids_of_its_turn(store: Store, turn: int) -> None:
    _, _, forks, asked = await two_episodes(store)
    await forked(store, forks[turn].id, earlier_calls="stateless")
    record, dispatches, sampler, bodies = await played(store, await claimed(store), [calls("add", a=1, b=3), RIGHT])
    assert record.status is RecordStatus.SCORED, record.error
    assert bodies[0]["input_ids"] == asked[turn]
    assert unpack_ints(dispatches[0].prompt_ids).tolist() == asked[turn]
    told = [message["role"] for message in sampler.conversation]
    assert told == ["system", "user", *["assistant", "tool"] * (2 + turn + 1), "assistant"], "each message once"
    report = await audit(store, running=True)
    assert report.results[Check.FORKED].examined == 2
    assert report.ok


async def test_tool_calls_of_every_episode_before_are_said_to_the_command_and_made_again(store: Store) -> None:
    _, _, forks, _ = await two_episodes(store)
    for turn, earlier in enumerate((2, 3, 4)):
        assert (await read_origin(store, forks[turn].id)).num_earlier_calls == earlier
    await forked(store, forks[1].id, earlier_calls="replayed")
    record, _, sampler, _ = await played(store, await claimed(store), [RIGHT])
    assert record.status is RecordStatus.SCORED, record.error
    made = [call.arguments for calls in sampler.episode.tool_calls.values() for call in calls]
    assert made == [{"a": 2, "b": 3}, {"a": 5, "b": 1}, {"a": 6, "b": 6}], "the scorer sees all of them, in order"


async def test_a_result_of_an_episode_before_that_differs_ends_the_slot(store: Store) -> None:
    _, stored, _ = await episode(store, [calls("bump"), calls("add", a=2, b=3), "<answer>5</answer>"], TOOLS)
    await forked(store, stored[1].id, earlier_calls="stateless")
    _, dispatches, *_ = await played(store, await claimed(store), [RIGHT])
    await forked(store, dispatches[0].id, earlier_calls="replayed")  # a counter tells its process, which is another
    record, dispatches, *_ = await played(store, await claimed(store), [RIGHT])
    assert (record.termination, dispatches) == (Termination.MISCONFIGURED, [])
    assert f"{stored[0].id}, call 0: bump answered" in (record.error or "")


async def test_turns_of_every_episode_before_count_towards_the_most_turns(store: Store) -> None:
    _, _, forks, _ = await two_episodes(store)
    await forked(store, forks[1].id, earlier_calls="stateless")  # three turns came before
    replies = [calls("add", a=n, b=n) for n in range(9)]
    record, *_ = await played(store, await claimed(store), replies, max_turns=5)
    assert (record.termination, record.num_turns) == (Termination.TURNS_LIMIT, 2)


async def test_calls_before_and_after_a_fork_have_ids_of_their_own(store: Store) -> None:
    """As in one conversation: templates that show ids would otherwise give two calls the same one."""
    _, _, forks, _ = await two_episodes(store)
    await forked(store, forks[1].id, earlier_calls="stateless")
    _, _, sampler, _ = await played(store, await claimed(store), [calls("add", a=8, b=8), RIGHT])
    made = [call["id"] for message in sampler.conversation for call in message.get("tool_calls", ())]
    assert len(made) == 4
    assert len(set(made)) == 4
    answered = [message["tool_call_id"] for message in sampler.conversation if message["role"] == "tool"]
    assert answered == made


async def test_a_fork_whose_ancestor_is_gone_is_refused(store: Store) -> None:
    _, record, forks, _ = await two_episodes(store)
    await store.database["records"].delete_one({"_id": record.tid.rpartition(":")[0]})
    with pytest.raises(ConfigError, match=f"has no dispatch '{record.tid}'"):
        await read_origin(store, forks[1].id)
