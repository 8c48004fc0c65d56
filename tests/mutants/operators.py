"""Every small change to a module that could weaken a rule in it.

Rules here: what is changed depends on the source alone, and a mutant's name stays the same when lines move; prose
(docstrings, messages, annotations) is left alone, because no rule depends on its words.
"""

from __future__ import annotations

import ast
from collections import Counter
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SHOWN = 90
_AROUND = 25

_BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OTHERS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_QUANTIFIERS = {"any": "all", "all": "any", "min": "max", "max": "min"}
# Methods that bring text into one spelling.
_NORMALIZERS = frozenset({"lower", "strip", "removesuffix", "removeprefix"})
# Keywords of a class that say how it is made, not what it means.
_OF_CLASSES = frozenset({"kw_only", "tag"})
# Values of these are sentences for people.
_PROSE = frozenset({"detail", "reason", "message"})


class Mutant(NamedTuple):
    """A changed module.

    Attributes:
        module: its name without the package.
        where: the qualified name of the function that differs, or "" for what is evaluated when it is imported.
        name: what was changed, in words that stay the same when lines move.
        line: where that is now.
        source: the whole module, changed.
    """

    module: str
    where: str
    name: str
    line: int
    source: str


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    tree = ast.parse(source)
    seen: Counter[str] = Counter()
    for place in _places(tree, _Place(owner="", scope="", context=tree)):
        shown = _text(place.shown)
        kept = place.get()
        for variant in _variants(place, kept):
            place.put(variant)
            other = _text(variant if place.shown is kept else place.shown)
            name = f"{module}.{place.scope or '<module>'}: {' => '.join(_differing(shown, other))}"
            changed = ast.unparse(ast.fix_missing_locations(tree))
            place.put(kept)
            seen[name] += 1
            unique = name if seen[name] == 1 else f"{name} #{seen[name]}"
            yield Mutant(module, place.owner, unique, getattr(place.context, "lineno", 0), changed)


class _Place:
    """Where a node hangs: `parent.field` or `parent.field[at]`."""

    def __init__(  # noqa: PLR0917 - a value with names for its parts
        self, owner: str, scope: str, context: ast.AST, parent: ast.AST | None = None, field: str = "", at: int = -1
    ) -> None:
        self.owner, self.scope, self.context = owner, scope, context
        self.parent, self.field, self.at = parent, field, at

    @property
    def shown(self) -> ast.AST:
        """The part of the source that tells what is changed: a statement, or the expression around a small thing."""
        return self.context

    def get(self) -> Any:
        held = getattr(self.parent, self.field)
        return held if self.at < 0 else held[self.at]

    def put(self, node: Any) -> None:
        if self.at < 0:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.at] = node


def _text(node: ast.AST) -> str:
    """A statement's first line, or an expression."""
    return ast.unparse(ast.fix_missing_locations(node)).split("\n", 1)[0]


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _differing(one: str, other: str) -> tuple[str, str]:
    """Two texts, or where they are long, what differs and some of what is around it."""
    if max(len(one), len(other)) <= MAX_SHOWN:
        return one, other
    before = _common(one, other)
    after = _common(one[before:][::-1], other[before:][::-1])
    begin = max(0, before - _AROUND)
    return tuple(
        ("..." if begin else "")
        + text[begin : len(text) - max(0, after - _AROUND)]
        + ("..." if after > _AROUND else "")
        for text in (one, other)
    )


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _left_alone(parent: ast.AST, field: str, node: ast.AST) -> bool:  # noqa: PLR0911 - a list of exceptions
    """Whether a rule cannot depend on the node."""
    if field in {"annotation", "returns", "decorator_list"} or _is_docstring(node):
        return True
    if isinstance(parent, ast.Raise) and field in {"exc", "cause"}:
        return True
    if any(
        isinstance(one, ast.If) and isinstance(one.test, ast.Name) and one.test.id == "TYPE_CHECKING"
        for one in (parent, node)
    ):
        return True
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
        return True  # a type, which nothing looks at where values are taken
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id in {"detail", "_WHY", "__all__"}
    if isinstance(parent, ast.ClassDef) and isinstance(node, ast.keyword) and node.arg in _OF_CLASSES:
        return True
    return isinstance(node, ast.keyword) and node.arg in _PROSE


def _places(node: ast.AST, here: _Place) -> Iterator[_Place]:
    for field, value in ast.iter_fields(node):
        if isinstance(node, ast.arguments) and field not in {"defaults", "kw_defaults"}:
            continue
        held = value if isinstance(value, list) else [value]
        for at, child in enumerate(held):
            if not isinstance(child, ast.AST) or _left_alone(node, field, child):
                continue
            owner, scope = here.owner, here.scope
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                scope = f"{here.scope}.{node.name}" if here.scope else node.name
            if isinstance(node, ast.FunctionDef) and not owner:
                # The outermost function is what is exchanged; its defaults are evaluated outside of it.
                owner = scope if field == "body" else ""
            small = isinstance(child, ast.Constant | ast.keyword | ast.cmpop | ast.operator | ast.unaryop | ast.Name)
            context = here.context if small and not isinstance(here.context, ast.Module) else child
            if small and isinstance(node, ast.expr | ast.stmt):
                context = node
            place = _Place(owner, scope, context, node, field, at if isinstance(value, list) else -1)
            yield place
            yield from _places(child, place)


def _variants(place: _Place, node: ast.AST) -> Iterator[Any]:  # noqa: C901, PLR0912 - one branch a kind of node
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    elif isinstance(node, ast.Constant):
        # Of a table, entries are left out, which is enough.
        if not (place.scope == "" and isinstance(place.parent, ast.Set | ast.List | ast.Tuple)):
            yield from _of_constant(node)
    elif isinstance(node, ast.Compare):
        yield from _of_comparison(node)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.BoolOp(op=other, values=node.values)
        for at in range(len(node.values)):
            rest = node.values[:at] + node.values[at + 1 :]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(op=node.op, values=rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in _OTHERS:
        yield ast.BinOp(left=node.left, op=_OTHERS[type(node.op)](), right=node.right)
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    elif isinstance(node, ast.comprehension):
        for at in range(len(node.ifs)):
            yield ast.comprehension(
                target=node.target, iter=node.iter, ifs=node.ifs[:at] + node.ifs[at + 1 :], is_async=node.is_async
            )
    elif isinstance(node, ast.Set | ast.List | ast.Tuple) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        yield from _of_elements(node)


def _of_statement(node: ast.stmt) -> Iterator[ast.stmt]:
    if isinstance(node, ast.If | ast.While):
        for value in (True, False):
            if isinstance(node, ast.If) or not value:
                yield type(node)(test=ast.Constant(value), body=node.body, orelse=node.orelse)
    elif isinstance(node, ast.Raise | ast.AugAssign | ast.Delete | ast.Expr):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield ast.Return(value=ast.Constant(None))
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript):
        yield ast.Pass()
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.Break):
        yield ast.Continue()


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _of_constant(node: ast.Constant) -> Iterator[ast.Constant]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1)
    elif isinstance(value, str):
        yield ast.Constant(value + "X")
    elif isinstance(value, bytes):
        yield ast.Constant(value + b"X")


def _of_comparison(node: ast.Compare) -> Iterator[ast.expr]:
    for at, op in enumerate(node.ops):
        for table in (_BOUNDARIES, _OPPOSITES):
            if type(op) in table:
                ops = [*node.ops[:at], table[type(op)](), *node.ops[at + 1 :]]
                yield ast.Compare(left=node.left, ops=ops, comparators=node.comparators)


def _of_call(node: ast.Call) -> Iterator[ast.expr]:
    if isinstance(node.func, ast.Name) and node.func.id in _QUANTIFIERS:
        yield ast.Call(func=ast.Name(_QUANTIFIERS[node.func.id]), args=node.args, keywords=node.keywords)
    if isinstance(node.func, ast.Attribute) and node.func.attr in _NORMALIZERS:
        yield node.func.value
    for at, keyword in enumerate(node.keywords):
        if keyword.arg is not None and keyword.arg not in _PROSE:
            yield ast.Call(func=node.func, args=node.args, keywords=node.keywords[:at] + node.keywords[at + 1 :])


def _of_elements(node: ast.Set | ast.List | ast.Tuple) -> Iterator[ast.expr]:
    if len(node.elts) > 1:
        for at in range(len(node.elts)):
            rest = node.elts[:at] + node.elts[at + 1 :]
            yield ast.Set(elts=rest) if isinstance(node, ast.Set) else type(node)(elts=rest, ctx=ast.Load())
