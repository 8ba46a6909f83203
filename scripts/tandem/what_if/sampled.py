"""The sampled tokens of a stored episode, turn by turn, as an engine or the trainer has to see them again.

record, dispatches ─▶ EpisodeState ─▶ one SampledTurn for each reply of the policy, with the exact ids before it
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shared.documents import DispatchedSamplingTask, Record
from shared.documents.packed import unpack_floats, unpack_ints
from shared.episodes.state import EpisodeState, TurnState
from shared.errors import ConfigError, DataError
from shared.store import Store
from shared.tokens.expert_span import ExpertSpan
from shared.tokens.flatten import distribution_of_logprobs
from shared.tokens.image_span import ImageSpan
from shared.truncation import Truncation

Spell = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """One reply. `ids`, `logprobs` and `versions` have one entry for each sampled token. `logprobs` are of the distribution at
    `temperature` that `truncation` leaves. `images`: of the prompt. `experts`: of prompt and reply."""

    number: int
    temperature: float
    prompt: list[int]
    ids: list[int]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    dispatch: DispatchedSamplingTask
    truncation: Truncation
    images: Sequence[ImageSpan] = ()
    experts: Sequence[ExpertSpan] = ()


@dataclass(frozen=True, slots=True)
class SampledEpisode:
    """`turns`: those of the record's own policy. `left_out`: the other replies, each with the reason."""

    record: Record
    turns: Sequence[SampledTurn]
    left_out: Sequence[str]

    def turn(self, number: int) -> SampledTurn:
        """Raises ConfigError."""
        match = next((turn for turn in self.turns if turn.number == number), None)
        if match is None:
            has = ", ".join(str(turn.number) for turn in self.turns) or "none"
            raise ConfigError(f"record {self.record.id}: no sampled turn {number}; its sampled turns are: {has}")
        return match


async def read_episode(store: Store, record_id: str) -> SampledEpisode:
    """Raises ConfigError for a record that does not exist, DataError for one without sampled tokens."""
    record = await store.records.get(record_id)
    if record is None:
        raise ConfigError(f"run {store.run}: no record {record_id!r}; `tandem show {store.run}` lists the latest ones")
    state = EpisodeState(record, (await store.records.dispatches_of([record.id]))[record.id])
    if state.problems:
        raise DataError(f"record {record.id}: its documents contradict each other: {state.problems[0]}")
    turns, omitted = [], []
    for turn in state.turns:
        reason = _left_out(turn, record)
        if reason is not None:
            omitted.append(f"turn {turn.number}: {reason}")
        else:
            turns.append(_sampled(state, turn))
    if not turns:
        why = f": {omitted[0]}" if omitted else ""
        raise DataError(f"record {record.id} has no tokens that policy {record.policy} sampled{why}")
    return SampledEpisode(record, turns, omitted)


def _left_out(turn: TurnState, record: Record) -> str | None:
    if turn.dispatch.played_by is not None:
        return "an API model took it; it has no token ids"
    if not turn.output_ids:
        return "no reply"
    if turn.policy != record.policy:
        return f"of policy {turn.policy}"
    if turn.dispatch.sampled_by is not None:
        return f"sampled by policy {turn.dispatch.sampled_by}"
    return None


def _sampled(state: EpisodeState, turn: TurnState) -> SampledTurn:
    dispatch = turn.dispatch
    assert dispatch.response is not None, "it has sampled ids"
    logprobs = unpack_floats(dispatch.response.output_logprobs)
    versions = np.repeat(
        np.array([version for version, _ in dispatch.weight_versions], dtype=np.int32),
        np.array([count for _, count in dispatch.weight_versions], dtype=np.int64),
    )
    ids = unpack_ints(dispatch.response.output_ids).tolist()
    if not len(ids) == len(logprobs) == len(versions):
        raise DataError(
            f"dispatch {dispatch.id}: {len(logprobs)} log-probs and {len(versions)} versions of {len(ids)} tokens"
        )
    # Engines report the log-probs of greedy replies (temperature 0) at temperature 1.
    temperature = float(dispatch.sampling_params.get("temperature", 1.0)) or 1.0
    known = (logprobs, versions, dispatch, distribution_of_logprobs(dispatch))
    path = _path(state, turn)
    return SampledTurn(
        turn.number, temperature, state.prompt_of(turn.number), ids, *known, _images(path), _experts(path)
    )


def _path(state: EpisodeState, turn: TurnState) -> list[tuple[TurnState, int]]:
    """The turn and those before it whose tokens it begins with, the first one first, each with how many of its tokens."""
    turns = {one.number: one for one in state.turns}
    path = [(turn, turn.length)]
    while (parent := path[0][0].parent) is not None:
        path.insert(0, (turns[parent], min(path[0][1], path[0][0].shared)))
    return path


def _images(path: Sequence[tuple[TurnState, int]]) -> list[ImageSpan]:
    spans: list[ImageSpan] = []
    for turn, count in path:
        own = [ImageSpan(i.sha256, turn.shared + i.first, i.count, i.grid) for i in turn.dispatch.images]
        spans += [span for span in own if span.first < count]
    return spans


def _experts(path: Sequence[tuple[TurnState, int]]) -> list[ExpertSpan]:
    """A token that several turns computed keeps those of the first."""
    spans: list[ExpertSpan] = []
    for turn, count in path:
        stored = turn.dispatch.routed_experts
        if stored is not None and stored.first < count:
            spans.append(ExpertSpan(stored, -1, stored.first, min(stored.count, count - stored.first)))
    return spans


async def speller(store: Store, policy: str) -> Spell:
    """Ids as text, if this machine has the files of version 0 and the tokenizers package; else as nothing."""
    try:
        first = await store.versions.get(policy, 0)
    except DataError:  # it has none, or one that is malformed: ids are shown without their text
        return lambda ids: ""
    path = Path(first.path) / "tokenizer.json"
    if not (path.is_file() and find_spec("tokenizers")):
        return lambda ids: ""
    return _speller(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)  # a large vocabulary takes half a second to read
def _speller(path: Path, changed_ns: int) -> Spell:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))
