"""What is read of a stored episode for what-if questions, and when a replay agrees."""

from dataclasses import replace

import numpy as np
import pytest

from shared.errors import ConfigError, DataError
from shared.store import Store
from tandem.what_if.replayed import Replay, ReplayedTurn, at_full_weight, print_replay
from tandem.what_if.sampled import read_episode
from tests.shared.episodes import whole_run

RECORD = "main:train:0:t0:0:1"


async def test_the_exact_ids_before_each_reply_are_read_with_their_log_probs_and_versions(store: Store) -> None:
    await whole_run(store)
    episode = await read_episode(store, RECORD)
    found = [(turn.prompt, turn.ids, turn.versions.tolist()) for turn in episode.turns]
    assert found == [
        ([1, 2, 3], [4, 5, 6], [3, 3, 4]),
        ([1, 2, 3, 4, 5, 6, 7, 8], [9, 10], [3, 4]),
        ([1, 2, 3, 4, 5, 11], [12], [4]),
    ]
    assert episode.turns[1].logprobs.tolist() == pytest.approx([-0.9, -1.0])
    assert episode.turn(2) is episode.turns[2]
    with pytest.raises(ConfigError, match="no sampled turn 3; its sampled turns are: 0, 1, 2"):
        episode.turn(3)


async def test_turns_that_other_weights_sampled_are_left_out_with_the_reason(store: Store) -> None:
    await whole_run(store)
    dispatches = store.database["dispatched_sampling_tasks"]
    await dispatches.update_one({"_id": f"{RECORD}:2"}, {"$set": {"sampled_by": "guide"}})
    episode = await read_episode(store, RECORD)
    assert ([turn.number for turn in episode.turns], episode.left_out) == ([0, 1], ["turn 2: sampled by policy guide"])
    await dispatches.update_many({"record": RECORD}, {"$set": {"sampled_by": "guide"}})
    with pytest.raises(DataError, match="has no tokens that policy main sampled: turn 0: sampled by policy guide"):
        await read_episode(store, RECORD)


async def test_documents_that_contradict_each_other_are_refused(store: Store) -> None:
    await whole_run(store)
    dispatches = store.database["dispatched_sampling_tasks"]
    await dispatches.update_one({"_id": f"{RECORD}:1"}, {"$set": {"weight_versions": [[3, 1]]}})
    with pytest.raises(DataError, match="2 log-probs and 1 versions of 2 tokens"):
        await read_episode(store, RECORD)
    await dispatches.update_one({"_id": f"{RECORD}:1"}, {"$set": {"shared_length": 99}})
    with pytest.raises(DataError, match="contradict each other: turn 1: shares 99 tokens"):
        await read_episode(store, RECORD)


async def test_nothing_compared_is_no_agreement(store: Store) -> None:
    await whole_run(store)
    episode = await read_episode(store, RECORD)
    nothing = [ReplayedTurn(turn, np.full(len(turn.ids), np.nan, dtype=np.float32)) for turn in episode.turns]
    assert not Replay(episode, "nothing", nothing).agrees(1e9)
    same = [ReplayedTurn(turn, turn.logprobs + np.float32(0.01)) for turn in episode.turns]
    assert Replay(episode, "the same", same).agrees(0.011)
    assert not Replay(episode, "the same", same).agrees(0.009)


@pytest.mark.parametrize("side", ["stored", "found"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
async def test_a_log_prob_that_is_no_number_is_a_difference(store: Store, side: str, value: float) -> None:
    """One of a damaged document, or of damaged weights, among others that agree."""
    await whole_run(store)
    episode = await read_episode(store, RECORD)
    turn = episode.turns[0]
    damaged = turn.logprobs.copy()
    damaged[1] = value
    stored, found = (damaged, turn.logprobs) if side == "stored" else (turn.logprobs, damaged)
    replayed = Replay(episode, "", [ReplayedTurn(replace(turn, logprobs=stored), at_full_weight(found))])
    assert (replayed.compared, replayed.largest, replayed.agrees(1e9)) == (3, np.inf, False)
    assert [at for _, at in replayed.biggest(1)] == [1]
    assert print_replay(replayed, 1e9, 3, lambda ids: "", as_json=True) == 1
    assert print_replay(replayed, 1e9, 3, lambda ids: "", as_json=False) == 1
