"""The page of a group: its attempts side by side, where they part, and its prefix tree with what merging saved."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shared.documents import DBRecordData, DispatchTokens, Record, Task
from shared.documents.base import Document as Model
from shared.episodes.images import EpisodeImage, EpisodeImages, Part, is_digest
from shared.errors import DataError, MalformedDocument
from shared.store.views.groups import (
    MOST_ATTEMPTS,
    MOST_TURNS,
    attempts_query,
    data_query,
    neighbours,
    task_query,
    turns_query,
)
from shared.store.views.query import Document, Query
from shared.store.views.rollouts import turn_query
from shared.tokens.flatten import flatten, tree_of
from shared.tokens.image_span import ImageSpan, placeholders
from shared.tokens.merging import LossRules, MergeCounts, insert_all, merge_counts
from shared.tokens.record_tree import RecordTree
from shared.tokens.trie import runs
from tandem.viewer.images import known_images
from tandem.viewer.page_request import NotThere, PageRequest
from tandem.what_if.sampled import Spell, speller

SIDE_BY_SIDE = 32  # attempts whose turns are compared
MOST_TREE_TOKENS = 400_000  # of a group's records together
MOST_BRANCHES = 400  # of a tree that are shown
SPELT_TOKENS = 40


@dataclass(frozen=True, slots=True)
class TurnCell:
    """One turn of one attempt. `letter`: attempts with the same one said and did the same up to and in this turn."""

    letter: str
    dispatch: str
    turn: int
    status: str
    tokens: int
    chars: int
    text: str
    advantage: float | None
    calls: list[Document]
    images: list[EpisodeImage]  # that its prompt added
    error: str | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class GroupAttempt:
    record: Record
    data: DBRecordData | None
    seconds: float | None
    parts_at: int | None  # the first turn in which it differs from the most frequent beginning


@dataclass(frozen=True, slots=True)
class GroupView:
    task: Task
    query: list[Part]  # texts and images of the question; empty: it is a text
    attempts: list[GroupAttempt]
    rows: list[list[TurnCell | None]]  # by turn, then by attempt
    left_out: int  # attempts that are not side by side
    cut: bool  # not every turn was read
    lost_turns: int  # that the attempts name and the database does not have; 0 if not every turn was read
    has_origin: bool  # the turn that a fork goes on from is stored; True of a group that is none
    previous: str | None  # the group before it in the order of the tasks
    following: str | None
    queries: list[Query]


async def group_page(request: PageRequest) -> GroupView:
    gid, database = request.id("gid"), request.store.database
    task, records, data, queries = await read_group(request, gid)
    ended = [record for record in records if record.traj or record.num_turns][:SIDE_BY_SIDE]
    turns = turns_query([record.id for record in ended])
    documents = await turns.run(database)
    cut = len(documents) == MOST_TURNS
    tokens = {image["sha256"]: image["count"] for d in documents for image in d.get("images", ())}
    known = EpisodeImages.of([], task.payload.query_blocks)
    images, images_queries = await known_images(request.store, replace(known, tokens=tokens))
    columns = {record.id: [_cell(d, images) for d in documents if d["record"] == record.id] for record in ended}
    lettered, parts_at = _lettered(columns)
    longest = max(map(len, lettered.values()), default=0)
    shown = [r for r in records if r.id in lettered]
    previous, following = await neighbours(database, task.policy, task.split, task.seq)
    return GroupView(
        task=task,
        query=images.parts(task.payload.query_blocks),
        attempts=[
            GroupAttempt(r, data.get(r.id), seconds_of(r.created_at, r.finished_at), parts_at.get(r.id))
            for r in records
        ],
        rows=[[lettered[r.id][k] if k < len(lettered[r.id]) else None for r in shown] for k in range(longest)],
        left_out=len(records) - len(shown),
        cut=cut,
        lost_turns=0 if cut else len({name for r in ended for name in r.traj} - {d["_id"] for d in documents}),
        has_origin=task.payload.fork is None or bool(await turn_query(task.payload.fork.dispatch).run(database)),
        previous=previous,
        following=following,
        queries=[*queries, turns, *images_queries],
    )


async def read_group(request: PageRequest, gid: str) -> tuple[Task, list[Record], dict[str, DBRecordData], list[Query]]:
    """The group's documents; data of the task's own policy, by record."""
    database = request.store.database
    queries = [task_query(gid), attempts_query(gid), data_query(gid)]
    tasks, records, data = [await query.run(database) for query in queries]
    if not tasks:
        raise NotThere(f"run {request.run.name} has no group {gid[:200]!r}")
    task = Task.from_mongo(tasks[0])
    own = [d for d in _read(DBRecordData, data) if d.policy == task.policy]
    return task, _read(Record, records), {d.record: d for d in own}, queries


def _read(model: type[Any], documents: list[Document]) -> list[Any]:
    """Those that fit their model; `tandem audit` names the others."""
    models: list[Model] = []
    for document in documents:
        try:
            models.append(model.from_mongo(document))
        except MalformedDocument:
            continue
    return models


def seconds_of(start: Any, end: Any) -> float | None:
    return (end - start).total_seconds() if start and end else None


def _cell(d: Document, images: EpisodeImages) -> TurnCell:
    return TurnCell(
        letter="",
        dispatch=d["_id"],
        turn=d["turn"],
        status=str(d["status"]),
        tokens=int(d["tokens"]),
        chars=int(d["chars"]),
        text=d["text"],
        advantage=d.get("advantage"),
        calls=[{**c, "arguments": json.dumps(c.get("arguments"), ensure_ascii=False, default=str)} for c in d["calls"]],
        images=[images.image(one["sha256"]) for one in d.get("images", ()) if is_digest(one["sha256"])],
        error=d.get("error"),
        seconds=seconds_of(d.get("created_at"), d.get("finished_at")),
    )


def _lettered(columns: dict[str, list[TurnCell]]) -> tuple[dict[str, list[TurnCell]], dict[str, int]]:
    """Cells with their letters, and where each attempt leaves the most frequent way."""
    so_far: dict[str, tuple[Any, ...]] = dict.fromkeys(columns, ())
    lettered: dict[str, list[TurnCell]] = {record: [] for record in columns}
    parts_at: dict[str, int] = {}
    for k in range(max(map(len, columns.values()), default=0)):
        there = [record for record in columns if k < len(columns[record])]
        for record in there:
            cell = columns[record][k]
            content = (cell.text, cell.chars, str([(c.get("name"), c.get("arguments")) for c in cell.calls]))
            so_far[record] = (hash((so_far[record], content)),)
        ways = Counter(so_far[record] for record in there)
        letters = {way: _letter(n) for n, (way, _) in enumerate(ways.most_common())}
        for record in there:
            lettered[record].append(replace(columns[record][k], letter=letters[so_far[record]]))
            if letters[so_far[record]] != "A":
                parts_at.setdefault(record, k)
    return lettered, parts_at


def _letter(number: int) -> str:
    return chr(65 + number % 26) + (str(number // 26) if number >= 26 else "")


# ---------------------------------------------------------------------- the prefix tree


@dataclass(frozen=True, slots=True)
class Branch:
    """Tokens without a branch between them. `slots`: of the attempts that run through it; `sampled`: of its tokens, those that a
    reply of at least one attempt has."""

    depth: int
    tokens: int
    sampled: int
    slots: list[int]
    text: str
    images: list[EpisodeImage]  # that begin in it


@dataclass(frozen=True, slots=True)
class TreeView:
    task: Task
    counts: MergeCounts | None  # of the records that the trainer forwards
    every: MergeCounts | None  # of all records of the group
    rules: LossRules
    branches: list[Branch]
    num_branches: int
    problems: list[str]
    spelt: bool
    queries: list[Query]


async def tree_page(request: PageRequest) -> TreeView:
    gid = request.id("gid")
    task, records, data, queries = await read_group(request, gid)
    answered = [r for r in records if r.num_tokens or r.traj]
    problems = []
    if sum(data[r.id].num_tokens if r.id in data else r.num_tokens for r in answered) > MOST_TREE_TOKENS:
        problems.append(f"the group has more than {MOST_TREE_TOKENS:,} tokens; its tree is not drawn")
        answered = []
    tokens = await request.store.records.tokens_of([r.id for r in answered]) if answered else {}
    trees: list[RecordTree] = []
    slots = []
    for record in answered[:MOST_ATTEMPTS]:
        try:
            trees.append(_tree(record, data.get(record.id), tokens[record.id]))
            slots.append(record.traj_id)
        except (DataError, MalformedDocument) as exc:
            problems.append(str(exc))
    rules = await loss_rules(request, task.policy)
    in_step = [tree for tree in trees if tree.record_id in data and data[tree.record_id].group_size > 0]
    spell = await speller(request.store, task.policy)
    placed = [span for tree in trees for span in tree.images]
    known = replace(EpisodeImages.of([], task.payload.query_blocks), tokens={s.sha256: s.count for s in placed})
    images, images_queries = await known_images(request.store, known)
    branches = branches_of(trees, slots, spell, images)
    return TreeView(
        task=task,
        counts=merge_counts(in_step, rules) if in_step else None,
        every=merge_counts(trees, LossRules()) if trees else None,
        rules=rules,
        branches=branches[:MOST_BRANCHES],
        num_branches=len(branches),
        problems=problems,
        spelt=any(branch.text for branch in branches),
        queries=[*queries, *images_queries],
    )


def _tree(record: Record, data: DBRecordData | None, tokens: list[DispatchTokens]) -> RecordTree:
    if data is not None:
        return tree_of(data, tokens)
    return flatten(record.id, tokens, {d.id: 0.0 for d in tokens})


async def loss_rules(request: PageRequest, policy: str) -> LossRules:
    """Of the trainer's last start."""
    config = await request.store.settings.of_trainer(request.run, policy)
    return LossRules(
        bool(config.get("drop_zero_advantage", False)),
        float(config.get("minimal_advantage", 0.0)),
        bool(config.get("skip_non_positive_advantage", False)),
    )


def branches_of(trees: list[RecordTree], slots: list[int], spell: Spell, images: EpisodeImages) -> list[Branch]:
    """In depth-first order, as an indented list reads."""
    if not trees:  # no attempt has tokens, or none can be read
        return []
    layout, node_of_token = insert_all(trees, range(len(trees)))
    parents_N = layout.parents_N.astype(np.int32)
    sampled_N = np.zeros(len(parents_N), dtype=bool)
    through: dict[int, list[int]] = {}
    begins: dict[int, ImageSpan] = {}
    features_N = np.zeros(len(parents_N), dtype=bool)
    for t, nodes in node_of_token.items():
        for span in trees[t].images:
            features_N[nodes[placeholders(trees[t], span)]] = True
            begins[int(nodes[span.first])] = span
        sampled_N[nodes[trees[t].dispatches_N >= 0]] = True
        for node in np.unique(nodes).tolist():
            through.setdefault(node, []).append(slots[t])
    branches: list[Branch] = []
    depth_of_last: dict[int, int] = {-1: -1}
    for start, stop in _edges(parents_N, through):
        depth = depth_of_last.get(int(parents_N[start]), -1) + 1
        depth_of_last[stop - 1] = depth
        text = spell(layout.ids_N[np.flatnonzero(~features_N[start:stop])[:SPELT_TOKENS] + start].tolist())
        own = [images.image(begins[node].sha256) for node in sorted(begins.keys() & range(start, stop))]
        branches.append(Branch(depth, stop - start, int(sampled_N[start:stop].sum()), through[start], text, own))
    return branches


def _edges(parents_N: Any, through: dict[int, list[int]]) -> list[tuple[int, int]]:
    """Runs of the tree, cut where an attempt ends in the middle of one."""
    edges = []
    for start, stop in runs(parents_N):
        begun = start
        for node in range(start + 1, stop):
            if len(through[node]) != len(through[node - 1]):
                edges.append((begun, node))
                begun = node
        edges.append((begun, stop))
    return edges
