"""The simulator of `python -m scripts.bench.schedule`, against small cases worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from scripts.bench.schedule import parsed
from scripts.bench.scheduling.engine import EngineModel, Request, SimulatedEngine
from scripts.bench.scheduling.order import Order
from scripts.bench.scheduling.simulator import Policy, RunModel, SimulatedOutcome, Simulator
from scripts.bench.scheduling.workload import (
    SimulatedEpisode,
    SimulatedGroup,
    SimulatedTurn,
    Workload,
    sampled_tokens,
    synthetic,
)
from shared.errors import ConfigError

ALONE = EngineModel(step_s=1.0)  # one token a second for each request, at any number of requests
EVERY = [
    *(Policy(order) for order in Order),
    Policy(extra=2),
    Policy(Order.LONGEST, extra=1),
    Policy(drain=True),
]


def one_turn(*outputs: int, prompt: int = 4) -> Workload:
    """Groups of one episode of one turn."""
    episodes = [SimulatedEpisode((SimulatedTurn(prompt, prompt, output),)) for output in outputs]
    return Workload(tuple(SimulatedGroup(f"t{i}", "s", (episode,)) for i, episode in enumerate(episodes)))


def played(workload: Workload, run: RunModel, policy: Policy | None = None) -> SimulatedOutcome:
    return Simulator(workload, run, policy).run()


def ends(engine: SimulatedEngine, arrivals: dict[float, Request]) -> dict[float, Request]:
    """{time: the request that ended then}"""
    ended: dict[float, Request] = {}
    while True:
        end, listed = engine.next_end(), min(arrivals, default=None)
        now = min(time for time in (end, listed) if time is not None) if (end, listed) != (None, None) else None
        if now is None:
            return ended
        engine.advance(now)
        if now == end and (request := engine.pop_ended()) is not None:
            ended[now] = request
        elif listed is not None:
            engine.arrive(arrivals.pop(listed))


# ---------------------------------------------------------------------- an engine


def test_requests_share_an_engine_whose_step_grows_with_them() -> None:
    """Alone a token takes 2 s, of two requests 3 s. A has one of its 2 when B comes at 2, and the other at 5. B has one of its
    3 then: the other two take 2 s each."""
    first, second = Request(4, 0, 2), Request(4, 0, 3)
    assert ends(SimulatedEngine(EngineModel(1.0, 1.0)), {0.0: first, 2.0: second}) == {5.0: first, 9.0: second}


def test_a_prefill_stops_those_that_decode() -> None:
    """Half a second for each of B's 4 fresh tokens: A's third token comes 2 s late, and B's first with it."""
    first, second = Request(4, 0, 3), Request(4, 4, 1)
    engine = SimulatedEngine(EngineModel(1.0, prefill_s=0.5))
    assert ends(engine, {0.0: first, 2.0: second}) == {5.0: second}
    assert first.versions == second.versions | {0: 3}


@pytest.mark.parametrize(
    "model", [EngineModel(1.0, capacity=1), EngineModel(1.0, kv_tokens=12)], ids=["capacity", "KV cache"]
)
def test_a_full_engine_takes_a_request_when_another_has_ended(model: EngineModel) -> None:
    first, second = Request(4, 0, 3), Request(4, 0, 2)  # 7 and 6 tokens of the cache
    assert ends(SimulatedEngine(model), {0.0: first, 1.0: second}) == {3.0: first, 5.0: second}


def test_a_request_that_is_larger_than_the_cache_runs_alone() -> None:
    request = Request(40, 0, 3)
    assert ends(SimulatedEngine(EngineModel(1.0, kv_tokens=12)), {0.0: request}) == {3.0: request}


def test_the_work_of_a_request_before_its_first_token_is_shared() -> None:
    """3 tokens' time that give none: weights that come meanwhile sample all of the reply."""
    request, engine = Request(4, 0, 2), SimulatedEngine(EngineModel(1.0, request_tokens=3))
    engine.arrive(request)
    engine.advance(2.0)
    engine.update(1, drain=False)
    assert ends(engine, {}) == {5.0: request}
    assert request.versions == {1: 2}


# ---------------------------------------------------------------------- a run


def synchronous(**values: Any) -> RunModel:
    model = RunModel(ALONE, groups_per_step=1, steps=2, places=1, max_staleness=0, train_s=4.0, publish_s=1.0)
    return replace(model, **values)


def test_a_synchronous_run_takes_the_sum_of_its_parts() -> None:
    """3 s of sampling, 4 of training, 1 of publishing; then 2 and 4."""
    outcome = played(one_turn(3, 2), synchronous())
    assert outcome.step_ends == [7.0, 14.0]
    assert outcome.seconds == 14.0
    assert outcome.engine_busy_s == outcome.running_s == 5.0
    assert outcome.staleness == {0: 5}


def test_one_step_ahead_samples_while_the_trainer_trains() -> None:
    """The second episode runs from 3 to 5, and is trained from 7 to 11, a step old."""
    outcome = played(one_turn(3, 2), synchronous(max_staleness=1))
    assert outcome.step_ends == [7.0, 11.0]
    assert outcome.staleness == {0: 3, 1: 2}


def test_a_reply_goes_on_with_new_weights_after_its_tokens_are_prefilled_again() -> None:
    """It begins at 3; the weights come at 5, when it has 2 tokens and a prompt of 4: 6 · 0.5 s of prefill, then 3 tokens more."""
    engine = replace(ALONE, prefill_s=0.5)
    workload = Workload(tuple(replace(group, episodes=(_warm(group.episodes[0]),)) for group in one_turn(3, 5).groups))
    outcome = played(workload, synchronous(engine=engine, max_staleness=1, train_s=1.0))
    assert outcome.step_ends == [4.0, 12.0]
    assert outcome.recomputed == 6
    assert outcome.staleness == {0: 3 + 3, 1: 2}


def test_a_draining_engine_ends_the_reply_with_the_weights_that_began_it() -> None:
    """At 4, when the second has 4 of its 5 tokens. The third waits until 5, and both are trained a step later."""
    run = synchronous(max_staleness=1, train_s=1.0, publish_s=0.0, steps=3, places=2)
    drained, continued = (played(one_turn(3, 5, 2), run, Policy(drain=drain)) for drain in (True, False))
    assert drained.staleness == {0: 3, 1: 5 + 2}
    assert continued.staleness == {0: 3 + 1, 1: 4 + 2}
    assert (drained.seconds, continued.seconds) == (8.0, 7.0)


def test_the_longest_first_ends_a_step_sooner() -> None:
    """Two places, and episodes of 1, 1 and 2 s: in order they take 3 s, the longest first 2."""
    run = synchronous(groups_per_step=3, steps=1, places=2, train_s=0.0)
    assert played(one_turn(1, 1, 2), run).seconds == 3.0
    assert played(one_turn(1, 1, 2), run, Policy(Order.ORACLE)).seconds == 2.0


def test_longest_first_learns_from_the_sources_that_were_played() -> None:
    """The second step has the long source last: it is known by then, and goes first."""
    groups = one_turn(1, 1, 6, 1, 1, 6).groups
    named = tuple(replace(group, source="long" if i % 3 == 2 else "short") for i, group in enumerate(groups))
    run = synchronous(groups_per_step=3, places=2, train_s=0.0, publish_s=0.0)
    in_order, longest = (played(Workload(named), run, Policy(order)) for order in (Order.TASK, Order.LONGEST))
    assert in_order.step_ends == [7.0, 14.0]
    assert longest.step_ends == [7.0, 13.0]


def test_an_extra_slot_ends_a_group_and_what_is_cancelled_is_counted() -> None:
    """Of episodes of 5 and 2 tokens the group needs one: at 2 the longer one is cancelled, with 2 of its tokens sampled."""
    long, short = (SimulatedEpisode((SimulatedTurn(4, 4, output),)) for output in (5, 2))
    workload = Workload((SimulatedGroup("t", "s", (long,), spares=(short,)),))
    outcome = played(workload, synchronous(steps=1, places=2, train_s=0.0), Policy(extra=1))
    assert (outcome.seconds, outcome.trained, outcome.cancelled) == (2.0, 2, 2)
    assert (outcome.trained_lengths, outcome.slot_lengths) == ([2], [5, 2])


def test_a_group_without_data_makes_room_for_another() -> None:
    first, second = one_turn(3, 2).groups
    outcome = played(Workload((replace(first, usable=False), second)), synchronous(steps=1, train_s=0.0))
    assert (outcome.seconds, outcome.barren, outcome.trained) == (5.0, 3, 2)


def test_a_workload_without_data_is_refused_and_not_simulated_forever() -> None:
    run = synchronous(steps=1)
    with pytest.raises(ValueError, match="none of the 2 groups"):
        played(Workload(tuple(replace(group, usable=False) for group in one_turn(3, 2).groups)), run)


def test_tools_and_starts_take_places_and_no_engine() -> None:
    """Half a second from claim to request, 1 s a turn, a tool of 5 s between them, and half a second each besides."""
    episode = SimulatedEpisode((SimulatedTurn(4, 4, 1, 5.0), SimulatedTurn(9, 5, 1)), start_s=0.5)
    engine = replace(ALONE, overhead_s=0.5)
    outcome = played(Workload((SimulatedGroup("t", "s", (episode,)),)), RunModel(engine, 1, 1, 1, 0))
    assert (outcome.seconds, outcome.engine_busy_s, outcome.playing_s) == (8.5, 2.0, 8.5)


# ---------------------------------------------------------------------- invariants


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
@pytest.mark.parametrize("max_staleness", [0, 2])
def test_no_token_is_lost_or_counted_twice(policy: Policy, max_staleness: int) -> None:
    workload = synthetic(60, 4, seed=1)
    workload = Workload(tuple(replace(one, usable=i % 5 != 0) for i, one in enumerate(workload.groups)))
    engine = EngineModel(0.01, 0.001, 0.0001, 0.02, request_tokens=5, kv_tokens=20_000, update_s=1.0, count=2)
    run = RunModel(engine, 4, 6, 20, max_staleness, train_s=5.0, settle_s=0.1, publish_s=0.5)
    outcome = played(workload, run, policy)
    assert outcome.sampled == outcome.trained + outcome.cancelled + outcome.barren + outcome.unused
    assert outcome.trained == sum(outcome.trained_lengths) == outcome.staleness.total()
    assert len(outcome.trained_lengths) == 6 * 4 * 4
    assert (outcome.cancelled > 0) == (policy.extra > 0)
    assert outcome.engine_busy_s <= 2 * outcome.seconds
    if max_staleness == 0 and not policy.extra:
        needed = [group for group in workload.groups if group.usable][: 6 * 4]
        assert outcome.trained == sampled_tokens([episode for group in needed for episode in group.episodes])


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_the_gate_bounds_the_staleness(policy: Policy) -> None:
    """Synchronous: no token is older than the weights. In order: as old as is allowed, and what engines take to follow."""
    run = RunModel(EngineModel(0.01, 0.001, update_s=1.0), 4, 6, 20, 0, train_s=5.0, publish_s=0.5)
    assert set(played(synthetic(60, 4, seed=2), run, policy).staleness) == {0}
    in_order = replace(run, max_staleness=2, in_order=True, publish_s=0.0)
    assert max(played(synthetic(60, 4, seed=2), in_order, Policy(policy.order)).staleness) <= 2


def test_equal_seeds_give_equal_results_and_others_do_not() -> None:
    run = RunModel(EngineModel(0.01, 0.001), 4, 4, 20, 1, train_s=5.0)
    once, again, other = (played(synthetic(40, 4, seed), run, Policy(Order.LONGEST)) for seed in (3, 3, 4))
    assert once == again
    assert once.seconds != other.seconds


@pytest.mark.parametrize("text", ["quickest", "task+x", "task/later"])
def test_an_unknown_policy_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected task"):
        parsed(text)


def test_a_policy_is_read_from_its_name() -> None:
    assert parsed("longest+2/drain") == Policy(Order.LONGEST, 2, drain=True)


def _warm(episode: SimulatedEpisode) -> SimulatedEpisode:
    return replace(episode, turns=tuple(replace(turn, fresh=0) for turn in episode.turns))
