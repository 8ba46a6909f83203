"""The short form of `python -m tests.sampler.gateway.drift`: conversations that change their histories in all its ways."""

import pytest

from shared.store import Store
from tests.sampler.gateway.drifting import DRIFTS, RandomEngine, Rng, compared, conversed, drifted, episode_of

SAME = ["none", "reordered json", "dropped reasoning", "whitespace", "text in blocks"]  # say the same


@pytest.mark.parametrize("kind", DRIFTS)
async def test_every_trained_token_was_sampled_in_its_context(store: Store, kind: str) -> None:
    found = await drifted(store, kind, seed=3)
    assert found.sampled > 0
    assert found.wrong == 0
    assert found.tree <= found.flat
    if kind in SAME:
        assert set(found.causes) == {"first", "continued"}
        assert found.tree < found.flat / 2


async def test_the_comparison_finds_a_token_in_another_context(store: Store) -> None:
    """Control: the same episode, compared with an engine that had got one other id, and with one that had sampled one."""
    engine = RandomEngine(Rng(5))
    _, dispatches = await episode_of(store, engine, lambda talk: conversed(talk, DRIFTS["rewritten text"]), 5)
    assert compared(dispatches, engine).wrong == 0
    first = next(iter(engine.sampled))
    prompt, reply = engine.sampled[first]
    for other in (([*prompt[:-1], prompt[-1] + 1], reply), (prompt, [reply[0] + 1, *reply[1:]])):
        engine.sampled[first] = other
        assert compared(dispatches, engine).wrong == len(reply)
