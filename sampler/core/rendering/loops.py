"""Finds the loops of a chat template that a later rendering may go on with, and rewrites them so that it can.

    {% for message in messages %}           {% for message, loop_view in loop_from(0, messages, lists, names) %}
      {{ … loop.first … messages[0] … }} ─▶   {{ … loop_view.first … loop_view["messages"][0] … }}
    {% endfor %}                            {% endfor %}

What one pass of such a loop writes depends on nothing but
  * its item and `loop`, of which it reads `first`, `last`, `index`, `index0`, `previtem` and `nextitem` alone;
  * messages at an index, which the rewritten loop notes as it reads them;
  * the other names in its body, and in the macros of the template, whose values the rewritten loop gets at its beginning. Of
    these only namespaces change on the way.
A loop of another kind stays as it is, and is rendered whole, and so does every loop of a template that imports, includes,
inherits, or draws random numbers. `sampler.core.rendering.resumed` renders the rewritten template.
"""

from collections.abc import Iterator, Sequence

from jinja2 import Environment, nodes
from jinja2.visitor import NodeTransformer

LOOP_FROM, VIEW = "tandem_loop_from", "tandem_loop_view"
_MESSAGES, _LOOP = "messages", "loop"
_READABLE = frozenset(("first", "last", "index", "index0", "previtem", "nextitem"))
_FOREIGN = (
    nodes.ImportedName, nodes.Import, nodes.FromImport, nodes.Include, nodes.Extends, nodes.Block,
    nodes.ContextReference, nodes.DerivedContextReference, nodes.InternalName, nodes.EnvironmentAttribute,
)  # fmt: skip
_STATEFUL = frozenset(("cycler", "joiner", "lipsum"))  # globals that remember, or draw
_DRAWING = frozenset(("random", "shuffle"))  # filters


def resumable_tree(environment: Environment, template_text: str) -> nodes.Template | None:
    """The template with its loops rewritten; None: it has none that can be."""
    unsuitable = set[int]()
    while True:
        tree = environment.parse(template_text)
        macros = _macros(tree)
        if macros is None or next(tree.find_all(_FOREIGN), None) is not None or _names(tree) & _STATEFUL:
            return None
        if any(one.name in _DRAWING for one in tree.find_all(nodes.Filter)):
            return None
        places = [
            (statements, at)
            for statements in _bodies(tree.body)
            for at, statement in enumerate(statements)
            if isinstance(statement, nodes.For)
        ]
        try:
            for number, (statements, at) in enumerate(places):
                if number not in unsuitable:
                    statements[at] = _rewritten(statements[at], number, macros)
        except _Unsuitable:
            unsuitable.add(number)  # the loop is half rewritten: begin again, without it
        else:
            tree.set_environment(environment)
            return tree if len(unsuitable) < len(places) else None


def _macros(tree: nodes.Template) -> dict[str, nodes.Macro] | None:
    """By name; None: a name has two, or one stands in another statement, whose variables it may see."""
    macros = {one.name: one for one in tree.body if isinstance(one, nodes.Macro)}
    return macros if len(macros) == len(list(tree.find_all(nodes.Macro))) else None


def _bodies(statements: list[nodes.Node]) -> Iterator[list[nodes.Node]]:
    """Lists of statements whose text goes directly to the rendering."""
    yield statements
    for statement in statements:
        if isinstance(statement, nodes.If):
            for branch in (statement, *statement.elif_):
                yield from _bodies(branch.body)
            yield from _bodies(statement.else_)


class _Unsuitable(Exception):
    """A loop reads what cannot be noted."""


def _rewritten(loop: nodes.Node, number: int, macros: dict[str, nodes.Macro]) -> nodes.For:
    """Raises _Unsuitable."""
    assert isinstance(loop, nodes.For), "the caller chooses loops"
    if loop.test is not None or loop.else_ or loop.recursive or not isinstance(loop.target, nodes.Name):
        raise _Unsuitable
    lists = sorted({_MESSAGES} | ({loop.iter.name} if isinstance(loop.iter, nodes.Name) else set()))
    of_macros = _names_of_macros(loop.body, macros)
    if (of_macros | _stored(loop.body)) & {*lists, _LOOP}:
        raise _Unsuitable
    free = sorted((set().union(*map(_names, loop.body)) - {*lists, loop.target.name, _LOOP}) | of_macros)
    body = _Reads(lists).of(loop.body)
    line = {"lineno": loop.lineno}
    names = nodes.List([nodes.Name(name, "load", **line) for name in free], **line)
    read = nodes.Dict(
        [nodes.Pair(nodes.Const(name, **line), nodes.Name(name, "load", **line), **line) for name in lists], **line
    )
    given = [nodes.Const(number, **line), loop.iter, read, names]
    iterated = nodes.Call(nodes.Name(LOOP_FROM, "load", **line), given, [], None, None, **line)
    target = nodes.Tuple([loop.target, nodes.Name(VIEW, "store", **line)], "store", **line)
    return nodes.For(target, iterated, body, [], None, False, **line)


class _Reads(NodeTransformer):
    """Every read of `loop`, and of a list at an index, becomes one of the view. Raises _Unsuitable for any other read."""

    def __init__(self, lists: Sequence[str]) -> None:
        self._lists = lists
        self._depth = 0  # of loops inside, which have a `loop` of their own

    def of(self, body: Sequence[nodes.Node]) -> list[nodes.Node]:
        return [self.visit(statement) for statement in body]

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        if not self._depth and isinstance(node.node, nodes.Name) and node.node.name == _LOOP:
            if node.attr not in _READABLE:
                raise _Unsuitable
            return nodes.Getattr(nodes.Name(VIEW, "load", lineno=node.lineno), node.attr, "load", lineno=node.lineno)
        return self.generic_visit(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        if isinstance(node.node, nodes.Name) and node.node.name in self._lists:
            if isinstance(node.arg, nodes.Slice):
                raise _Unsuitable
            line = {"lineno": node.lineno}
            name = nodes.Const(node.node.name, **line)
            noted = nodes.Getitem(nodes.Name(VIEW, "load", **line), name, "load", **line)
            return nodes.Getitem(noted, self.visit(node.arg), "load", **line)
        return self.generic_visit(node)

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        if node.name in self._lists or (node.name == _LOOP and not self._depth):
            raise _Unsuitable
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.else_ or node.recursive:
            raise _Unsuitable
        node.iter = self.visit(node.iter)
        self._depth += 1
        node.test = None if node.test is None else self.visit(node.test)
        node.body = self.of(node.body)
        self._depth -= 1
        return node


def _names(node: nodes.Node) -> set[str]:
    """That are read in it, and namespaces that it sets."""
    read = {one.name for one in node.find_all(nodes.Name) if one.ctx == "load"}
    if isinstance(node, nodes.Name):
        read.add(node.name)
    return read | {one.name for one in node.find_all(nodes.NSRef)}


def _stored(body: Sequence[nodes.Node]) -> set[str]:
    return {one.name for node in body for one in node.find_all(nodes.Name) if one.ctx == "store"}


def _names_of_macros(body: Sequence[nodes.Node], macros: dict[str, nodes.Macro]) -> set[str]:
    """That the macros read which the body calls, and those which they call."""
    called, todo = set[str](), set().union(*map(_names, body)) & macros.keys()
    while todo:
        called |= todo
        todo = set().union(*(_names(macros[name]) for name in todo)) & macros.keys() - called
    return set().union(*(_names(macros[name]) - _parameters(macros[name]) for name in called))


def _parameters(macro: nodes.Macro) -> set[str]:
    return {one.name for one in macro.args} | {"caller", "varargs", "kwargs", _LOOP}
