"""The audit's look at tokens: what the dispatches say was asked and sampled, against the tree that the trainer reads.

A dispatch's prompt is the first `shared_length` tokens of its parent's prompt + reply, then its own `prompt_ids`. The path
to its last sampled node must be that prompt and its reply: ids, who sampled them, log-probs bit for bit, versions.

    record   dispatch 0:  p p p | a a        tree  p-p-p-a-a-t-t-b
             dispatch 1:  (5 shared) t t | b        0..4 sampled by 0, 7 by 1
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.audit_report import AuditReport, Check
from shared.documents import DBRecordData, DispatchedSamplingTask, SampledResponse
from shared.errors import DataError
from shared.packed import unpack_floats, unpack_ints
from shared.trees import Float32, Int32, RecordTree

NOBODY = -1  # in `sources` and `versions`: not sampled, but prompt, template or tool result


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A context in order, one entry per token: in a dispatch's words, or in the tree's."""

    token_ids: Int32
    sources: Int32  # index in the data's dispatches of the one that sampled it
    logprobs: Float32
    versions: Int32

    def head(self, n: int) -> "TokenRow":
        return TokenRow(self.token_ids[:n], self.sources[:n], self.logprobs[:n], self.versions[:n])


def audit_tokens(report: AuditReport, data: DBRecordData, dispatches: Mapping[str, DispatchedSamplingTask]) -> None:
    """Compare one record's tree with its dispatches."""
    try:
        tree = data.tree()
    except ValueError as exc:
        report.look(Check.TOKENS, False, f"{data.id}: its tree contradicts itself: {exc}")
        return
    _audit_summary(report, data, tree)
    ends = _run_starts(tree)
    covered_N = np.zeros(tree.num_tokens, dtype=bool)
    rows: dict[str, TokenRow] = {}
    sources = {d.id: k for k, d in enumerate(data.dispatches)}
    for k, used in enumerate(data.dispatches):
        try:
            expected = _row_of(used.id, dispatches, sources, rows)
        except DataError as exc:
            report.look(Check.TOKENS, False, f"{data.id}: {exc}")
            continue
        if data.group_size > 0:
            _audit_advantage(report, used.id, used.advantage, dispatches[used.id].advantage)
        nodes = np.flatnonzero(tree.dispatches_N == k)
        if len(nodes) == 0:
            found = int(np.count_nonzero(expected.sources == k))
            report.look(Check.SAMPLED, found == 0, f"{used.id}: {found} sampled tokens, and none in the tree")
            continue
        path = _path(tree, ends, int(nodes[-1]))
        covered_N[path] = True
        _compare(report, used.id, k, expected, _row_of_path(tree, path), nodes, path)
    extra = int(np.count_nonzero(~covered_N))
    report.look(Check.TOKENS, extra == 0, f"{data.id}: {extra} tokens of the tree lead to no dispatch's reply")


def _audit_summary(report: AuditReport, data: DBRecordData, tree: RecordTree) -> None:
    expected = DBRecordData.tree_fields(tree)
    for name in ("num_tokens", "num_trained_tokens", "min_version", "max_version"):
        found = getattr(data, name)
        report.look(Check.SUMMARY, found == expected[name], f"{data.id}: {name} {found}; the tree has {expected[name]}")


def _audit_advantage(report: AuditReport, dispatch_id: str, used: float, stored: float | None) -> None:
    right = stored is not None and math.isclose(used, stored, rel_tol=1e-9, abs_tol=1e-12)
    report.look(Check.ADVANTAGES, right, f"{dispatch_id}: trained with advantage {used}; the dispatch has {stored}")


# ---------------------------------------------------------------------- what the dispatches say


def _row_of(
    dispatch_id: str,
    dispatches: Mapping[str, DispatchedSamplingTask],
    sources: Mapping[str, int],
    rows: dict[str, TokenRow],
) -> TokenRow:
    """Prompt and reply of a dispatch, joined along its parents; `rows` keeps those made. Raises DataError."""
    wanted: list[DispatchedSamplingTask] = []
    at: str | None = dispatch_id
    while at is not None and at not in rows:
        if at not in dispatches:
            raise DataError(f"dispatch {at} does not exist in this record, and {dispatch_id} needs it")
        if len(wanted) > len(dispatches):
            raise DataError(f"the parents of dispatch {dispatch_id} go in a circle")
        wanted.append(dispatches[at])
        at = dispatches[at].parent
    for dispatch in reversed(wanted):
        parent = rows[dispatch.parent] if dispatch.parent is not None else None
        rows[dispatch.id] = _joined(dispatch, parent, sources.get(dispatch.id, NOBODY))
    return rows[dispatch_id]


def _joined(dispatch: DispatchedSamplingTask, parent: TokenRow | None, source: int) -> TokenRow:
    known = 0 if parent is None else len(parent.token_ids)
    if not 0 <= dispatch.shared_length <= known:
        raise DataError(f"dispatch {dispatch.id} shares {dispatch.shared_length} tokens; its parent has {known}")
    parts = [] if parent is None else [parent.head(dispatch.shared_length)]
    prompt_ids = unpack_ints(dispatch.prompt_ids)
    nobody = np.full(len(prompt_ids), NOBODY, dtype=np.int32)
    parts.append(TokenRow(prompt_ids, nobody, np.zeros(len(prompt_ids), dtype=np.float32), nobody))
    if dispatch.response is not None:
        parts.append(_reply(dispatch, dispatch.response, source))
    return TokenRow(
        np.concatenate([p.token_ids for p in parts]),
        np.concatenate([p.sources for p in parts]),
        np.concatenate([p.logprobs for p in parts]),
        np.concatenate([p.versions for p in parts]),
    )


def _reply(dispatch: DispatchedSamplingTask, response: SampledResponse, source: int) -> TokenRow:
    output_ids, logprobs = unpack_ints(response.output_ids), unpack_floats(response.output_logprobs)
    runs = [np.full(n, version, dtype=np.int32) for version, n in dispatch.weight_versions]
    versions = np.concatenate([np.empty(0, dtype=np.int32), *runs])
    if not len(output_ids) == len(logprobs) == len(versions):
        raise DataError(
            f"dispatch {dispatch.id}: {len(output_ids)} output ids, {len(logprobs)} log-probs, "
            f"{len(versions)} tokens in weight_versions"
        )
    sources = np.full(len(output_ids), source, dtype=np.int32)
    if source == NOBODY:  # its reply is no training data, only context of a later one
        return TokenRow(output_ids, sources, np.zeros_like(logprobs), sources)
    return TokenRow(output_ids, sources, logprobs, versions)


# ---------------------------------------------------------------------- what the tree says


def _run_starts(tree: RecordTree) -> npt.NDArray[np.intp]:
    """For each node the first of the unbroken chain i-1 ← i that it stands in: a path is a few slices, not a walk."""
    index_N = np.arange(tree.num_tokens)
    return np.maximum.accumulate(np.where(tree.parents_N == index_N - 1, 0, index_N))


def _path(tree: RecordTree, run_starts: npt.NDArray[np.intp], node: int) -> npt.NDArray[np.intp]:
    """Nodes from the root to `node`, both included."""
    slices = []
    while node >= 0:
        start = int(run_starts[node])
        slices.append(np.arange(start, node + 1))
        node = int(tree.parents_N[start])
    return np.concatenate(slices[::-1])


def _row_of_path(tree: RecordTree, path: npt.NDArray[np.intp]) -> TokenRow:
    return TokenRow(tree.token_ids_N[path], tree.dispatches_N[path], tree.logprobs_N[path], tree.versions_N[path])


def _compare(
    report: AuditReport,
    name: str,
    source: int,
    expected: TokenRow,
    found: TokenRow,
    nodes: npt.NDArray[np.intp],
    path: npt.NDArray[np.intp],
) -> None:
    n, m = len(found.token_ids), len(expected.token_ids)
    if not report.look(Check.TOKENS, n == m, f"{name}: {n} tokens on its path; prompt and reply have {m}"):
        return
    report.look(
        Check.TOKENS,
        bool((found.token_ids == expected.token_ids).all()),
        _difference(name, "token", found.token_ids, expected.token_ids),
        n=n,
    )
    mine = expected.sources == source
    right = bool((found.sources == expected.sources).all()) and np.array_equal(path[mine], nodes)
    right = right and np.array_equal(found.token_ids[mine], expected.token_ids[mine])
    text = f"{name}: {len(nodes)} tokens of the tree are said to be sampled by it; its reply has {mine.sum()}"
    if len(nodes) == mine.sum():
        text = _difference(name, "sampling dispatch", found.sources, expected.sources)
    report.look(Check.SAMPLED, right, text, n=len(nodes))
    bits_found, bits_expected = found.logprobs.view(np.int32), expected.logprobs.view(np.int32)
    text = _difference(name, "log-prob", found.logprobs, expected.logprobs)
    report.look(Check.LOGPROBS, bool((bits_found == bits_expected).all()), text, n=len(nodes))
    text = _difference(name, "weight version", found.versions, expected.versions)
    report.look(Check.VERSIONS, bool((found.versions == expected.versions).all()), text, n=len(nodes))


def _difference(name: str, what: str, found: Int32 | Float32, expected: Int32 | Float32) -> str:
    different = np.flatnonzero(found != expected)
    if len(different) == 0:
        return f"{name}: {what}s differ"
    at = int(different[0])
    return f"{name}: {len(different)} {what}s differ, the first at {at}: found {found[at]}, expected {expected[at]}"
