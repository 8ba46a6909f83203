"""Renders a conversation that another one continues: each loop over messages goes on where its last rendering differs.

    last    system  user  reply  result
    now     system  user  reply  result  reply  result
                                 └─ the first pass that the new messages may change: all before it is of the last rendering

Of each pass of a loop it is noted where its text begins, the values of namespaces then, and how far the passes before it have
read in the messages.

Promise: the text is that of a whole rendering, byte for byte. A pass is left out only if everything that it reads
(`sampler.core.rendering.loops`) is what it read before: the very same message objects, equal texts and numbers, namespaces with
equal values. What stands before and behind the loops is rendered each time. The first `_CHECKED` renderings of a process that
go on, and one in `_CHECKED_ONE_IN` after that, are compared with a whole one; a template that differs is rendered whole from
then on.
"""

import logging
import operator
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import BuiltinMethodType
from typing import Any

import jinja2
from jinja2.runtime import Macro, Undefined
from jinja2.utils import Namespace

from sampler.core.rendering.loops import LOOP_FROM, resumable_tree

log = logging.getLogger(__name__)

_CHECKED = 32
_CHECKED_ONE_IN = 256
_SCALARS = (str, int, float, bool, type(None))
_ATTRIBUTES = "_Namespace__attrs"  # jinja2 has no other way to all of them
_BEYOND = 1 << 62  # how far a pass reads that depends on where the list ends
_State = tuple[tuple[tuple[str, Any], ...], ...]  # of namespaces: their names and values


@dataclass(slots=True)
class _Loop:
    """One loop as it was rendered: its text is that of `rendering` from `at` on. Of pass i: `begins[i]`, where its text begins
    in that; `states[i]`, the namespaces before it; `needs[i]`, how many of `items`, and of each of `lists`, all passes before it
    depend on. One more entry is for the end."""

    items: list[Any]
    lists: dict[str, list[Any]]
    names: list[Any]
    at: int
    begins: list[int]
    states: list[_State]
    needs: list[tuple[int, ...]]
    rendering: str = ""

    def first_changed(self, items: list[Any], lists: Mapping[str, list[Any]]) -> int:
        """The first pass that must be rendered again."""
        same = [_common(self.items, items), *(_common(old, lists[name]) for name, old in self.lists.items())]
        at = min(len(self.needs) - 1, same[0])
        while at and any(map(operator.gt, self.needs[at], same)):
            at -= 1
        return at


@dataclass(slots=True)
class RenderMemory:
    """Of one conversation. `skipped`: characters of its last rendering that are of an earlier one."""

    loops: Mapping[int, _Loop] = field(default_factory=dict)
    skipped: int = 0


class ResumableTemplate:
    """`template`: renders whole."""

    def __init__(self, environment: jinja2.Environment, template: jinja2.Template, template_text: str) -> None:
        tree = resumable_tree(environment, template_text)
        self._whole = template
        self._resumable = None if tree is None else environment.from_string(tree)
        self._checked = 0

    @property
    def is_resumable(self) -> bool:
        return self._resumable is not None

    def render(self, values: Mapping[str, Any], memory: RenderMemory) -> str:
        """The text, which `memory` holds for the next rendering. Raises what the template raises."""
        if self._resumable is None:
            return self._whole.render(values)
        loops = _Loops(memory.loops)
        context = self._resumable.new_context({**values, LOOP_FROM: loops})
        for piece in self._resumable.root_render_func(context):
            loops.pieces.append(piece)
        text = "".join(loops.pieces)
        for loop in loops.rendered.values():
            loop.rendering = text
        memory.loops, memory.skipped = loops.rendered, loops.skipped
        if loops.skipped and self._is_checked() and text != (whole := self._whole.render(values)):
            log.error("a chat template cannot be rendered in parts: each prompt is rendered whole from now on")
            self._resumable, memory.skipped = None, 0
            return whole
        return text

    def _is_checked(self) -> bool:
        self._checked += 1
        return self._checked <= _CHECKED or random.randrange(_CHECKED_ONE_IN) == 0


class _Loops:
    """The loops of one rendering. `pieces`: of its text so far, to which the renderer adds each as it comes."""

    def __init__(self, before: Mapping[int, _Loop]) -> None:
        self.pieces: list[str] = []
        self.rendered: dict[int, _Loop] = {}
        self.skipped = 0
        self._before = before

    def __call__(
        self, number: int, items: Any, lists: dict[str, Any], names: list[Any]
    ) -> "Iterator[tuple[Any, _View]]":
        """What the rewritten loop `number` goes through."""
        if type(items) is not list or any(type(one) is not list for one in lists.values()):
            items = list(items)
            view = _View(items, lists)
            for view.index0, item in enumerate(items):
                yield item, view
            return
        namespaces = [one for one in names if isinstance(one, Namespace)]
        known = [_state([one]) if isinstance(one, Namespace) else one for one in names]
        loop = self._before.get(number)
        at = loop.first_changed(items, lists) if loop is not None and _all_same(loop.names, known) else 0
        pieces, begin, position = self.pieces, sum(map(len, self.pieces)), 0
        begins, states, needs = list[int](), list[_State](), list[tuple[int, ...]]()
        view = _View(items, {name: _Noted(one) for name, one in lists.items()})
        if loop is not None and at:
            position = loop.begins[at]
            pieces.append(loop.rendering[loop.at : loop.at + position])
            self.skipped += position
            _restore(namespaces, loop.states[at])
            begins, states, needs = loop.begins[:at], loop.states[:at], loop.needs[:at]
            view.read_before(loop.needs[at])
        last = len(pieces)
        for index in range(at, len(items)):
            begins.append(position)
            states.append(_state(namespaces))
            needs.append(view.needs)
            view.index0 = index
            yield items[index], view
            position += sum(map(len, pieces[last:]))
            last = len(pieces)
        begins.append(position)
        states.append(_state(namespaces))
        needs.append(view.needs)
        self.rendered[number] = _Loop(items, lists, known, begin, begins, states, needs)


class _View:
    """What a loop's body reads of `loop` and of lists, which are noted: see `loops`."""

    __slots__ = ("_before", "_items", "_lists", "_passes", "_reach", "index0")

    def __init__(self, items: list[Any], lists: Mapping[str, Any]) -> None:
        self._items = items
        self._lists = lists
        self._reach = 0
        self._passes = 0
        self.index0 = -1

    def read_before(self, needs: tuple[int, ...]) -> None:
        self._reach = needs[0]
        for noted, reach in zip(self._lists.values(), needs[1:], strict=True):
            noted.reach = reach

    @property
    def needs(self) -> tuple[int, ...]:
        """After the pass at `index0`."""
        return (max(self._reach, self.index0 + 1), *(noted.reach for noted in self._lists.values()))

    def __getitem__(self, name: str) -> Any:
        return self._lists[name]

    @property
    def index(self) -> int:
        return self.index0 + 1

    @property
    def first(self) -> bool:
        return self.index0 == 0

    @property
    def last(self) -> bool:
        return not self._has(self.index0 + 1)

    @property
    def previtem(self) -> Any:
        return self._items[self.index0 - 1] if self.index0 else Undefined("there is no previous item")

    @property
    def nextitem(self) -> Any:
        has_next = self._has(self.index0 + 1)
        return self._items[self.index0 + 1] if has_next else Undefined("there is no next item")

    def _has(self, index: int) -> bool:
        has = index < len(self._items)
        self._reach = max(self._reach, index + 1 if has else _BEYOND)
        return has


class _Noted:
    """A list, of which only items at an index are read. `reach`: how many of its items all passes so far depend on."""

    __slots__ = ("_items", "reach")

    def __init__(self, items: list[Any]) -> None:
        self._items = items
        self.reach = 0

    def __getitem__(self, index: Any) -> Any:
        is_inside = isinstance(index, int) and 0 <= index < len(self._items)
        self.reach = max(self.reach, index + 1 if is_inside else _BEYOND)
        return self._items[index]


def _state(namespaces: list[Namespace]) -> _State:
    return tuple([tuple(_values(one).items()) for one in namespaces])


def _restore(namespaces: list[Namespace], state: _State) -> None:
    for one, values in zip(namespaces, state, strict=True):
        _values(one).clear()
        _values(one).update(values)


def _values(namespace: Namespace) -> dict[str, Any]:
    values: dict[str, Any] = getattr(namespace, _ATTRIBUTES)
    return values


def _common(old: list[Any], new: list[Any]) -> int:
    """How many items at the beginning are the same objects: equal ones may have other marks."""
    if len(old) <= len(new) and all(map(operator.is_, old, new)):
        return len(old)
    return next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a is not b), min(len(old), len(new)))


def _all_same(old: list[Any], new: list[Any]) -> bool:
    return len(old) == len(new) and all(map(_is_same, old, new))


def _is_same(old: Any, new: Any) -> bool:
    """Whether a template reads the same of both. A macro is the template's; values of other types are the same as objects."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if type(old) is tuple:  # the state of a namespace
        return len(old) == len(new) and all(map(_is_same, old, new))
    if isinstance(old, Undefined | Macro):
        return True
    return type(old) in (*_SCALARS, BuiltinMethodType) and bool(old == new)
