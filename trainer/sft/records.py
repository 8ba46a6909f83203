"""Supervised data from a run: its good records with exactly the sampled ids (rejection-sampling fine-tuning).

    record_data of the run ─▶ filter, counted by reason ─▶ OUTPUT/records.jsonl ─▶ the trees of a step, read when it is prepared

The selection is made once and stored; a resume trains on the same records, even if the run has recorded more since. Records
that settlement or the trainer set aside are candidates too: a group without variance gives no policy gradient, but imitation
does not compare.
"""

import dataclasses
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from shared.documents import DBRecordData
from shared.errors import ConfigError, DataError
from shared.files.written_file import write_text_whole
from shared.tokens.flatten import tree_of
from shared.tokens.record_tree import RecordTree
from shared.truncation import WHOLE
from trainer.data.images import RecordImages, TowerImages, first_records, inputs_of
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.sft.config import RecordFilter

log = logging.getLogger(__name__)

CHOICE_FILE = "records.jsonl"


@dataclasses.dataclass(frozen=True, slots=True)
class RecordSelection:
    """Selected records, newest task first, and the number of records that each rule excluded."""

    records: list[DBRecordData]
    excluded: dict[str, int]

    def __str__(self) -> str:
        counts = [f"{count} left out: {reason}" for reason, count in self.excluded.items()]
        trained = sum(data.num_trained_tokens for data in self.records)
        return "; ".join([f"{len(self.records)} records chosen, {trained} trained tokens", *counts])


def choose(candidates: Sequence[DBRecordData], criteria: RecordFilter, max_tokens: int) -> RecordSelection:
    """Apply the rules in order; a record is counted by the first rule that it fails."""
    excluded: Counter[str] = Counter()
    passed = []
    for data in sorted(candidates, key=lambda data: (-data.seq, data.id)):
        reason = _refusal(data, criteria, max_tokens)
        if reason:
            excluded[reason] += 1
        else:
            passed.append(data)
    chosen = _best_of_each_group(passed) if criteria.best_of_group else passed
    selection = chosen[: criteria.max_records or None]
    excluded["not the best of its group"] = len(passed) - len(chosen)
    excluded[f"beyond max_records={criteria.max_records}"] = len(chosen) - len(selection)
    return RecordSelection(selection, dict(+excluded))


def _refusal(data: DBRecordData, criteria: RecordFilter, max_tokens: int) -> str | None:
    if criteria.source is not None and data.source not in criteria.source:
        return f"source is not {' or '.join(criteria.source)}"
    if data.reward < criteria.min_score:
        return f"score below min_score={criteria.min_score:g}"
    if data.num_trained_tokens == 0:
        return "no trained token"
    if data.num_tokens > max_tokens:
        return f"longer than max_tokens={max_tokens}"
    return None


def _best_of_each_group(passed: Sequence[DBRecordData]) -> list[DBRecordData]:
    best: dict[str, DBRecordData] = {}
    for data in passed:
        other = best.setdefault(data.task, data)
        if (-data.reward, data.num_trained_tokens) < (-other.reward, other.num_trained_tokens):
            best[data.task] = data
    return list(best.values())


class Records:
    """The selected records as training data. Every rank must create one."""

    def __init__(
        self,
        bridge: StoreBridge,
        criteria: RecordFilter,
        folder: Path,
        parallel: Parallel,
        max_tokens: int,
        images: RecordImages,
    ) -> None:
        """Raises ConfigError if no record passes, DataError if the selection cannot be written."""
        self._bridge = bridge
        self._images = images
        self._held: TowerImages = {}
        self._file = folder / CHOICE_FILE
        if parallel.is_main and not self._file.exists():
            choice = choose(bridge(bridge.store.data.find({"policy": criteria.policy})), criteria, max_tokens)
            log.info("run %s: %s", criteria.run, choice)
            _write(self._file, choice)
        lines = self._file.read_text(encoding="utf-8").splitlines() if parallel.is_main else None
        self._ids: list[str] = [json.loads(line)["record"] for line in parallel.broadcast_object(lines)]

    def __len__(self) -> int:
        return len(self._ids)

    def trees(self, indices: Sequence[int]) -> list[RecordTree]:
        """Load the trees. Raises DataError for a record that was deleted or changed since selection, and for one whose images are
        spoilt or missing; ConfigError for images and a model of text.
        """
        ids = [self._ids[index] for index in indices]
        try:
            loaded = self._bridge(self._bridge.store.data.load(ids))
        except KeyError as exc:
            raise DataError(f"{self._file}: record {exc} is no longer in the run; choose again elsewhere") from exc
        tokens = self._bridge(self._bridge.store.records.tokens_of(ids))
        trees = [imitated(tree_of(data, tokens[data.id])) for data in loaded]
        self._held = self._images.of(trees, first_records(trees))
        return trees

    def pixels(self, sha256: str) -> Mapping[str, npt.NDArray[Any]]:
        """What the vision tower reads of an image of the last `trees`."""
        return inputs_of(self._held, sha256)


def imitated(tree: RecordTree) -> RecordTree:
    """The same tokens for cross entropy: weight 1 each, in the whole distribution at temperature 1."""
    dispatches = tuple(
        dataclasses.replace(d, advantage=1.0, temperature=1.0, truncation=WHOLE) for d in tree.dispatches
    )
    return dataclasses.replace(tree, dispatches=dispatches)


def _write(path: Path, choice: RecordSelection) -> None:
    if not choice.records:
        reasons = "; ".join(f"{count} {reason}" for reason, count in choice.excluded.items())
        raise ConfigError(f"no record passes: {reasons or 'the run has no training data of this policy'}")
    lines = [
        json.dumps({"record": data.id, "source": data.source, "score": data.reward}, ensure_ascii=False)
        for data in choice.records
    ]
    write_text_whole(path, "\n".join(lines) + "\n")
