"""The audit of tokens: compares prompts and replies of the dispatches with the tree that the trainer builds from them.

The tree must have the digest of settlement. A dispatch's prompt is the first `shared_length` tokens of its parent's prompt +
reply, then its own `prompt_ids`. The path to its last sampled node must equal that prompt and its reply: ids, sampling
dispatch, log-probs bit for bit, versions.

    record   dispatch 0:  p p p | a a        tree  p-p-p-a-a-t-t-b
             dispatch 1:  (5 shared) t t | b        0..4 sampled by 0, 7 by 1
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.documents import DBRecordData, DispatchedSamplingTask
from shared.documents.packed import unpack_floats, unpack_ints
from shared.errors import DataError
from shared.tokens.flatten import data_fields, tree_of
from shared.tokens.record_tree import Float32, Int32, RecordTree
from tandem.audit.digests import TreeSummary, summary_of
from tandem.audit.report import AuditReport, Check

NOT_SAMPLED = -1  # in `sources` and `versions`: a prompt, template or tool token


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A context in order, one entry per token: from a dispatch, or from the tree."""

    token_ids: Int32
    sources: Int32  # index, in the data's dispatches, of the one that sampled it
    logprobs: Float32
    versions: Int32

    def head(self, n: int) -> "TokenRow":
        return TokenRow(self.token_ids[:n], self.sources[:n], self.logprobs[:n], self.versions[:n])


def audit_tokens(report: AuditReport, data: DBRecordData, dispatches: Mapping[str, DispatchedSamplingTask]) -> None:
    """Check that a record's dispatches still give the tree of settlement, and that the tree matches them."""
    summary = summary_of(data, dispatches)
    if summary is None or not _is_settlements(data, summary):
        audit_rebuilt_tree(report, data, dispatches)
        return
    report.expect(Check.SUMMARY, True, n=5 if data.versions else 4)
    report.expect(Check.TOKENS, True, n=summary.paths + summary.replies + 1)
    report.expect(Check.SAMPLED, True, n=summary.sampled + len(data.dispatches) - summary.replies)
    report.expect(Check.LOGPROBS, True, n=summary.sampled)
    report.expect(Check.VERSIONS, True, n=summary.sampled)
    _audit_advantages(report, data, dispatches)


def _is_settlements(data: DBRecordData, summary: TreeSummary) -> bool:
    versions = summary.versions
    bounds = (versions[0], versions[-1]) if versions else (-1, -1)
    return (
        summary.digest == data.digest
        and (data.num_tokens, data.num_trained_tokens) == (summary.num_tokens, summary.num_trained_tokens)
        and (data.min_version, data.max_version) == bounds
        and data.versions in ([], versions)
    )


def audit_rebuilt_tree(
    report: AuditReport, data: DBRecordData, dispatches: Mapping[str, DispatchedSamplingTask]
) -> None:
    """The same, token by token, with the tree that the trainer builds: what is wrong, and where."""
    try:
        tree = tree_of(data, list(dispatches.values()))
    except (DataError, ValueError) as exc:
        report.expect(Check.TOKENS, False, str(exc))
        return
    _audit_summary(report, data, tree)
    _audit_advantages(report, data, dispatches)
    compare(report, tree, [dispatches[used.id] for used in data.dispatches])


def compare(report: AuditReport, tree: RecordTree, dispatches: Sequence[DispatchedSamplingTask]) -> None:
    """Compare the tree with each of its dispatches, whose rows are assembled independently."""
    ends = _run_starts(tree)
    covered_N = np.zeros(tree.num_tokens, dtype=bool)
    rows: dict[str, TokenRow] = {}
    for k, dispatch in enumerate(dispatches):
        rows[dispatch.id] = expected = _row_of(dispatch, k, rows)
        nodes = np.flatnonzero(tree.dispatches_N == k)
        if len(nodes) == 0:
            num_sampled = int(np.count_nonzero(expected.sources == k))
            report.expect(
                Check.SAMPLED, num_sampled == 0, f"{dispatch.id}: {num_sampled} sampled tokens, but none in the tree"
            )
            continue
        path = _path(tree, ends, int(nodes[-1]))
        covered_N[path] = True
        _compare(report, dispatch.id, k, expected, _row_of_path(tree, path), nodes, path)
    extra = int(np.count_nonzero(~covered_N))
    report.expect(Check.TOKENS, extra == 0, f"{tree.record_id}: {extra} tokens of the tree lead to no dispatch's reply")


def _audit_summary(report: AuditReport, data: DBRecordData, tree: RecordTree) -> None:
    expected = data_fields(tree)
    names = ["num_tokens", "num_trained_tokens", "min_version", "max_version"]
    for name in [*names, "versions"] if data.versions else names:  # data older than this field has none
        actual = getattr(data, name)
        report.expect(
            Check.SUMMARY, actual == expected[name], f"{data.id}: {name} {actual}; the tree has {expected[name]}"
        )


def _audit_advantages(
    report: AuditReport, data: DBRecordData, dispatches: Mapping[str, DispatchedSamplingTask]
) -> None:
    for used in data.dispatches if data.group_size > 0 else ():
        _audit_advantage(report, used.id, used.advantage, dispatches[used.id].advantage)


def _audit_advantage(report: AuditReport, dispatch_id: str, used: float, stored: float | None) -> None:
    right = stored is not None and math.isclose(used, stored, rel_tol=1e-9, abs_tol=1e-12)
    report.expect(
        Check.ADVANTAGES, right, lambda: f"{dispatch_id}: trained with advantage {used}; the dispatch has {stored}"
    )


# ---------------------------------------------------------------------- rows of the dispatches


def _row_of(dispatch: DispatchedSamplingTask, source: int, rows: Mapping[str, TokenRow]) -> TokenRow:
    """Prompt and reply of a dispatch, after the part shared with its parent, which is in `rows`."""
    parts = [] if dispatch.parent is None else [rows[dispatch.parent].head(dispatch.shared_length)]
    prompt_ids = unpack_ints(dispatch.prompt_ids)
    not_sampled = np.full(len(prompt_ids), NOT_SAMPLED, dtype=np.int32)
    parts.append(TokenRow(prompt_ids, not_sampled, np.zeros(len(prompt_ids), dtype=np.float32), not_sampled))
    assert dispatch.response is not None, "a tree is made of answered dispatches"
    output_ids = unpack_ints(dispatch.response.output_ids)
    versions = [np.full(n, version, dtype=np.int32) for version, n in dispatch.weight_versions]
    parts.append(
        TokenRow(
            output_ids,
            np.full(len(output_ids), source, dtype=np.int32),
            unpack_floats(dispatch.response.output_logprobs),
            np.concatenate([np.empty(0, dtype=np.int32), *versions]),
        )
    )
    return TokenRow(
        np.concatenate([p.token_ids for p in parts]),
        np.concatenate([p.sources for p in parts]),
        np.concatenate([p.logprobs for p in parts]),
        np.concatenate([p.versions for p in parts]),
    )


# ---------------------------------------------------------------------- rows of the tree


def _run_starts(tree: RecordTree) -> npt.NDArray[np.intp]:
    """For each node the first of its unbroken chain i-1 ← i: a path is then a few slices instead of a walk."""
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


# 7 parameters: two rows of tokens, and where they lie in the tree
def _compare(
    report: AuditReport,
    name: str,
    source: int,
    expected: TokenRow,
    actual: TokenRow,
    nodes: npt.NDArray[np.intp],
    path: npt.NDArray[np.intp],
) -> None:
    n, m = len(actual.token_ids), len(expected.token_ids)
    if not report.expect(Check.TOKENS, n == m, f"{name}: {n} tokens on its path; prompt and reply have {m}"):
        return
    report.expect(
        Check.TOKENS,
        bool((actual.token_ids == expected.token_ids).all()),
        _difference(name, "token", actual.token_ids, expected.token_ids),
        n=n,
    )
    mine = expected.sources == source
    right = bool((actual.sources == expected.sources).all()) and np.array_equal(path[mine], nodes)
    right = right and np.array_equal(actual.token_ids[mine], expected.token_ids[mine])
    text = f"{name}: {len(nodes)} tokens of the tree are marked as sampled by it; its reply has {mine.sum()}"
    if len(nodes) == mine.sum():
        text = _difference(name, "sampling dispatch", actual.sources, expected.sources)
    report.expect(Check.SAMPLED, right, text, n=len(nodes))
    bits_actual, bits_expected = actual.logprobs.view(np.int32), expected.logprobs.view(np.int32)
    text = _difference(name, "log-prob", actual.logprobs, expected.logprobs)
    report.expect(Check.LOGPROBS, bool((bits_actual == bits_expected).all()), text, n=len(nodes))
    text = _difference(name, "weight version", actual.versions, expected.versions)
    report.expect(Check.VERSIONS, bool((actual.versions == expected.versions).all()), text, n=len(nodes))


def _difference(name: str, what: str, actual: Int32 | Float32, expected: Int32 | Float32) -> str:
    different = np.flatnonzero(actual != expected)
    if len(different) == 0:
        return f"{name}: {what}s differ"
    at = int(different[0])
    return f"{name}: {len(different)} {what}s differ, the first at {at}: found {actual[at]}, expected {expected[at]}"
