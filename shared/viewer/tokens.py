"""The page of a rollout's tokens, one turn at a time, coloured by a figure of the documents.

A figure that no document has is not made up: `NOT_STORED` says what to do for it.
"""

import math
from dataclasses import dataclass
from typing import Any

from shared.documents import DataDispatch, DBRecordData
from shared.documents.packed import unpack_floats, unpack_ints
from shared.documents.run import PolicyVersion
from shared.episodes.state import TurnState
from shared.episodes.stored import StoredEpisode
from shared.store.views.query import Query
from shared.store.views.rollouts import turn_query
from shared.store.views.steps import step_query, versions_query
from shared.tokens.merging import LossRules
from shared.viewer.asked import BadQuestion, NotThere, PageRequest
from shared.viewer.group import loss_rules
from shared.viewer.rollout import episode_of
from shared.what_if.sampled import Spell, speller

MOST_SHOWN = 2_000  # tokens on one page
SHADES = 9
LOWEST_LOGPROB = -6.0  # this and less have the strongest shade; shades grow with the square root, as most are near 0
COLOURS = ("logprob", "advantage", "version", "staleness", "mask", "step")
NOT_STORED = {
    "engine–trainer difference": "the trainer computes its own log-probs in the step and keeps their means by step: "
    "loss/mismatch_mean_nats of the steps below. By token: python -m trainer.verify --run RUN recomputes them with the "
    "weights that sampled",
    "importance weight": "exp of that difference, with the trainer's own clipping: kept as means by step (loss/ratio…, "
    "loss/ess_fraction), not by token",
}
STEP_METRICS = ("loss/mismatch_mean_nats", "loss/ess_fraction", "loss/k3_mean", "loss/loss")


@dataclass(frozen=True, slots=True)
class Token:
    """`shade`: 0 to SHADES, of the chosen colour. `sampled`: False for a token of the prompt."""

    place: int
    id: int
    text: str
    sampled: bool
    logprob: float | None
    version: int | None
    staleness: list[int]  # at each step that trained it
    shade: int


@dataclass(frozen=True, slots=True)
class TokensView:
    record: str
    task: str
    turn: int
    turns: list[int]
    dispatch: str
    colour: str
    colours: tuple[str, ...]
    tokens: list[Token]
    first: int
    total: int
    prompt: int  # tokens of the turn that it did not sample
    shared: int  # tokens before these, of earlier turns
    chosen: Token | None
    call: int | None  # the tool call that the turn made, if it made one
    advantage: float | None
    is_trained: bool
    why_not: str
    steps: list[int]
    step_metrics: dict[int, dict[str, float | None]]
    policy: str
    spelt: bool
    not_stored: dict[str, str]
    queries: list[Query]


async def tokens_page(asked: PageRequest) -> TokensView:
    episode = await episode_of(asked)
    turn = _turn(episode, asked.number("turn", episode.state.turns[0].number if episode.state.turns else 0))
    colour = asked.text("by", "logprob") or "logprob"
    if colour not in COLOURS:
        raise BadQuestion(f"by is {colour[:80]!r}; expected {', '.join(COLOURS)}")
    data = next((d for d in episode.data if d.policy == turn.policy), None)
    entry = next((d for d in data.dispatches if d.id == turn.dispatch.id), None) if data else None
    steps = data.trained_steps if data else []
    versions = [version for version, _ in turn.dispatch.weight_versions]
    query = versions_query(turn.policy, versions)
    published = [PolicyVersion.from_mongo(document) for document in await query.run(asked.store.database)]
    first = asked.number("first", 0)
    prompt = unpack_ints(turn.dispatch.prompt_ids).tolist()
    advantage = turn.dispatch.advantage if entry is None else entry.advantage
    why_not = _why_not(turn, data, entry, loss_rules(asked, turn.policy))
    is_trained = not why_not
    shade = _shades(colour, versions, advantage, is_trained, steps)
    spell = await speller(asked.store, turn.policy)
    behind = {v.version: [v.staleness(step - 1) for step in steps] for v in published}
    rows = [Token(k, i, spell([i]), False, None, None, [], 0) for k, i in enumerate(prompt)]
    rows += _sampled(turn, len(prompt), spell, behind, shade)
    chosen = asked.number("token", -1, least=-1)
    if chosen >= 0 and not first <= chosen < first + MOST_SHOWN:
        first = chosen // MOST_SHOWN * MOST_SHOWN
    shown = rows[first : first + MOST_SHOWN]
    return TokensView(
        record=episode.record.id,
        task=episode.record.task,
        turn=turn.number,
        turns=[one.number for one in episode.state.turns],
        dispatch=turn.dispatch.id,
        colour=colour,
        colours=COLOURS,
        tokens=shown,
        first=first,
        total=len(rows),
        prompt=len(prompt),
        shared=turn.shared,
        chosen=next((token for token in shown if token.place == chosen), None),
        call=0 if turn.dispatch.tool_calls else None,
        advantage=advantage,
        is_trained=is_trained,
        why_not=why_not,
        steps=steps,
        step_metrics={step: await _metrics(asked, turn.policy, step) for step in steps},
        policy=turn.policy,
        spelt=any(token.text for token in shown),
        not_stored=NOT_STORED,
        queries=[turn_query(turn.dispatch.id), query, *(step_query(turn.policy, step) for step in steps)],
    )


def _turn(episode: StoredEpisode, number: int) -> TurnState:
    for turn in episode.state.turns:
        if turn.number == number:
            return turn
    raise NotThere(f"{episode.record.id} has no turn {number}")


def _sampled(turn: TurnState, first: int, spell: Spell, behind: dict[int, list[int]], shade: Any) -> list[Token]:
    response = turn.dispatch.response
    if response is None:
        return []
    logprobs = unpack_floats(response.output_logprobs).tolist()
    versions = [version for version, n in turn.dispatch.weight_versions for _ in range(n)]
    found = []
    for k, identity in enumerate(turn.output_ids):
        logprob = logprobs[k] if k < len(logprobs) else None
        version = versions[k] if k < len(versions) else None
        steps = behind.get(version, []) if version is not None else []
        level = shade(logprob, version, steps)
        found.append(Token(first + k, identity, spell([identity]), True, logprob, version, steps, level))
    return found


def _shades(colour: str, versions: list[int], advantage: float | None, is_trained: bool, steps: list[int]) -> Any:
    """A function from a sampled token's (log-prob, version, staleness) to its shade."""
    order = {version: n % SHADES + 1 for n, version in enumerate(sorted(set(versions)))}

    def shade(logprob: float | None, version: int | None, behind: list[int]) -> int:
        if colour == "logprob":
            return (
                0
                if logprob is None
                else 1 + round((SHADES - 1) * math.sqrt(min(1.0, max(0.0, logprob / LOWEST_LOGPROB))))
            )
        if colour == "version":
            return order.get(version, 0) if version is not None else 0
        if colour == "staleness":
            return 1 + min(SHADES - 1, max(behind)) if behind else 0
        if colour == "advantage":
            return 0 if not advantage else SHADES if advantage > 0 else 1
        return SHADES if (is_trained if colour == "mask" else bool(steps)) else 0

    return shade


def _why_not(turn: TurnState, data: DBRecordData | None, entry: DataDispatch | None, rules: LossRules) -> str:
    """Why the turn's tokens have no loss; empty if they have one."""
    if data is not None and entry is not None and entry.trained:
        return rules.why_left_out(entry.advantage, [d.advantage for d in data.dispatches if d.trained])
    if data is None:
        return "the episode has no training data"
    if turn.dispatch.sampled_by is not None:
        return f"context: sampled by policy {turn.dispatch.sampled_by}"
    if turn.dispatch.response is None or turn.is_open:
        return "the request was not answered"
    return data.reason or "settlement masked it"


async def _metrics(asked: PageRequest, policy: str, step: int) -> dict[str, float | None]:
    logged = await asked.store.steps.metrics_of(policy, step, asked.run.starts.get(policy, []))
    return {name: logged[name] for name in STEP_METRICS if name in logged}
