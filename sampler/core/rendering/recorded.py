"""The answered requests of one policy in one episode, as token ids, and the search for a new request's parent.

    A    X X X X | a a            segments     X X X X ─ a a ─ y y | b        A ends behind a a, B behind b
    B    X X X X   a a   y y | b                   └─ z | c                   C ends behind c
    C    X X X X   z | c

A request's parent is the recorded request that shares the longest prefix of ids with it: a bridge if that is its whole prompt
and reply, a fork if it is a part, a root if there is none. A search follows the segments, so its cost depends on the tokens
of the request and not on the number of requests; one that continues the thread's last request reads only its new tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sampler.core.rendering.turn_format import common_length
from shared.documents.states import ParentKind


@dataclass(frozen=True, slots=True)
class Parent:
    """`name`: the dispatch whose first `shared` tokens of prompt and reply a request begins with; None: root."""

    name: str | None
    shared: int
    kind: ParentKind


@dataclass(slots=True, eq=False)
class _Segment:
    """Ids between two places where requests part or end. `through`: a request that contains it; `ended`: one that ends here.
    `length`: of everything from the start to its end."""

    ids: list[int]
    length: int
    through: str | None
    ended: str | None = None
    next: dict[int, "_Segment"] = field(default_factory=dict)


class RecordedRequests:
    def __init__(self) -> None:
        self._root = _Segment([], 0, None)
        self._ends: dict[str, _Segment] = {}

    def parent_of(self, ids: Sequence[int], last: str | None = None, shared: int = 0) -> Parent:
        """The parent of a request. `last`: the thread's last request, with which it shares at least `shared` ids.

        Of several that share the same prefix: one that ends there, or else `last`, or else the first recorded.
        """
        start = self._start(last, shared)
        at, matched, inside = self._follow(start, ids[start.length :], start.length)
        if matched == 0:
            return Parent(None, 0, ParentKind.ROOT)
        if inside is None and at.ended is not None:
            return Parent(at.ended, matched, ParentKind.BRIDGE)
        if last is not None and shared == matched:
            return Parent(last, matched, ParentKind.FORK)
        return Parent((inside or at).through, matched, ParentKind.FORK)

    def add(self, name: str, prompt: Sequence[int], parent: Parent, output: Sequence[int] = ()) -> None:
        """Record a request, that `parent_of` has given this parent, and its reply."""
        start = self._start(parent.name, parent.shared)
        first, length = start.length, len(prompt) + len(output)
        new_ids = [*prompt[first:], *output[max(0, first - len(prompt)) :]]
        at, matched, inside = self._follow(start, new_ids, first)
        if inside is not None:
            at = self._split(at, inside, matched - at.length)
        if matched < length:
            segment = _Segment(new_ids[matched - first :], length, name)
            at.next[segment.ids[0]] = segment
            at = segment
        at.ended = at.ended or name
        self._ends[name] = at

    def length_of(self, name: str) -> int:
        return self._ends[name].length

    def _start(self, name: str | None, shared: int) -> _Segment:
        end = self._ends.get(name) if name is not None else None
        return end if end is not None and end.length == shared else self._root

    def _follow(self, at: _Segment, ids: Sequence[int], first: int) -> tuple[_Segment, int, _Segment | None]:
        """The last segment that a request contains, the number of its ids found, and the segment that they are partly in.
        `ids`: those of the request from position `first` on, where `at` ends."""
        length = first + len(ids)
        while at.length < length and (further := at.next.get(ids[at.length - first])) is not None:
            here = ids[at.length - first : further.length - first]
            if here != further.ids:
                return at, at.length + common_length(here, further.ids), further
            at = further
        return at, at.length, None

    def _split(self, at: _Segment, below: _Segment, count: int) -> _Segment:
        """Cut `below` after `count` ids. It stays the lower part, so that ends that point to it stay right."""
        upper = _Segment(below.ids[:count], at.length + count, below.through)
        below.ids = below.ids[count:]
        upper.next[below.ids[0]] = below
        at.next[upper.ids[0]] = upper
        return upper
