"""Routed experts in a record's token tree: which of its nodes the rows of a request's array belong to.

    request 0   [sys q] a0 a1             rows of sys, q, a0; not of a1, which the engine did not compute
    request 1   [… a1 tool] a2            rows of a1 (`before`), tool; a1 has got its experts now

A node that several requests computed keeps the experts of the first: where the engine reused its cache, they are the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shared.documents.expert_array import Experts
from shared.documents.routed_experts import RoutedExperts

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ExpertSpan:
    """The first row of `stored` belongs to node `before`, unless that is -1; the others to nodes `start`, `start` + 1, …

    `rows`: how many of the rows, from the first on, belong to the record. None: all.
    """

    stored: RoutedExperts
    before: int
    start: int
    rows: int | None = None


class _WithExperts(Protocol):
    @property
    def record_id(self) -> str: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def experts(self) -> tuple[ExpertSpan, ...]: ...


def check_experts(record: _WithExperts) -> None:
    """Raises ValueError for rows outside of the record, and for arrays with another number of choices."""
    for span in record.experts:
        where = f"record {record.record_id}: routed experts {span.stored.sha256[:12]}"
        if not -1 <= span.before < record.num_tokens or not 0 <= span.start <= _stop(span) <= record.num_tokens:
            raise ValueError(f"{where}: of nodes {span.start} to {_stop(span) - 1}, the record has {record.num_tokens}")
        if span.stored.choices != record.experts[0].stored.choices:
            raise ValueError(
                f"{where}: {span.stored.choices} choices of a token; expected {record.experts[0].stored.choices}, as in its "
                "first request"
            )


def _stop(span: ExpertSpan) -> int:
    count = span.stored.count if span.rows is None else span.rows
    return span.start + count - (span.before >= 0)


def experts_of_record(record: _WithExperts, arrays: Mapping[str, Experts]) -> tuple[Experts, Bool]:
    """[tokens, choices] and which tokens have any, of a record with spans; zeros where there are none."""
    widest = np.result_type(*(arrays[span.stored.sha256].dtype for span in record.experts))
    experts_NC, given_N = (
        np.zeros((record.num_tokens, record.experts[0].stored.choices), dtype=widest),
        np.zeros(record.num_tokens, dtype=bool),
    )
    for span in record.experts:
        rows, nodes = arrays[span.stored.sha256], np.arange(span.start, _stop(span))
        if span.before >= 0:
            nodes = np.concatenate([[span.before], nodes])
        new = ~given_N[nodes]
        experts_NC[nodes[new]], given_N[nodes] = rows[: len(nodes)][new], True
    return experts_NC, given_N
