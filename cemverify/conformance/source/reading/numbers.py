"""The numbers in code: where an answer may change, and so where to test.

Literal numbers and expressions of them alone (`2**10`, `4 * 256`, `BLOCK + 1`), also by the names of constants of
the module, of default arguments and of variables that a function closes over. A number in a comparison is the most
telling; next come slices, ranges and limits.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import Any

from cemverify.conformance.source.reading.own import SourceFile

COMPARED, LIMIT, OTHER, TABLE = range(4)  # how telling a number is; numbers outside functions come last
_LIMITS = {"range", "arange", "min", "max", "minimum", "maximum", "clip", "clamp", "clamp_", "split", "chunk"}
_LARGEST = 1e9
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}

Value = int | float


@dataclass(frozen=True)
class Number:
    """A number in the code."""

    value: float  # without its sign
    telling: int  # how telling it is: the smaller, the more
    guards: frozenset[tuple[str, int]] = frozenset()  # tests of branches that compare it, as (path, line)
    words: frozenset[str] = frozenset()  # what it is compared with, as names, attributes and "shape[1]"


def numbers_in(files: Iterable[SourceFile], functions: Mapping[str, Any] | None = None) -> tuple[Number, ...]:
    """The numbers in these files, each value once, the most telling first.

    Args:
        functions: their closed-over variables have values too.
    """
    numbers: dict[float, Number] = {}
    for file in files:
        bound: dict[str, set[Value | None]] = {}  # names, as in `block = 64` and `def f(block=64)`
        for name, node in _bindings(file.tree):
            bound.setdefault(name, set()).add(None if node is None else _folded(node, {}))
        alone = {name: value for name, (value, *more) in bound.items() if value is not None and not more}
        named = {**alone, **file.names, **_closed_over((functions or {}).values(), file.path)}
        for value, telling, line, words in _Reader(named).read(file.tree):
            guard = frozenset({(file.path, line)}) if line else frozenset()
            before = numbers.get(value, Number(value, telling))
            numbers[value] = Number(value, min(telling, before.telling), before.guards | guard, before.words | words)
    return tuple(sorted(numbers.values(), key=lambda number: (number.telling, number.value)))


@dataclass
class _Reader:
    """Reads the numbers of a tree, given the values of names that stand for numbers."""

    named: Mapping[str, Value]
    numbers: list[tuple[float, int, int, frozenset[str]]] = field(default_factory=list)
    words: frozenset[str] = frozenset()

    def read(self, tree: ast.Module) -> list[tuple[float, int, int, frozenset[str]]]:
        """Value, how telling, the line of the branch whose test contains it, or 0, and what it is compared with."""
        self._within(tree, TABLE, 0)
        return self.numbers

    def _within(self, node: ast.AST, telling: int, line: int) -> None:
        value: Value | None = _folded(node, self.named) if isinstance(node, ast.expr) else None
        if value is not None:
            if math.isfinite(value) and 0 < abs(value) <= _LARGEST:
                self.numbers.append((abs(float(value)), telling, line, self.words))
            if isinstance(node, ast.BinOp):  # the parts of a product may matter too
                for part in (node.left, node.right):
                    self._within(part, max(telling, OTHER), 0)
            return
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                telling = OTHER
            case ast.If(test) | ast.While(test) | ast.IfExp(test):
                self._within(test, telling, test.lineno)
                for child in ast.iter_child_nodes(node):
                    if child is not test:
                        self._within(child, telling, line)
                return
            case ast.Compare():
                self._beside(node, COMPARED, line)
                return
            case ast.Subscript(ast.Attribute(attr="shape") as shape):
                self._within(shape, telling, line)  # the index of the axis says nothing
                return
            case ast.Slice():
                telling = min(telling, LIMIT)
            case ast.Call(ast.Attribute(attr="min" | "max")):  # usually over an axis
                telling = min(telling, LIMIT)
            case ast.Call(ast.Name(name) | ast.Attribute(attr=name)) if name in _LIMITS:
                self._beside(node, min(telling, LIMIT), line)
                return
        for child in ast.iter_child_nodes(node):
            self._within(child, telling, line)

    def _beside(self, node: ast.AST, telling: int, line: int) -> None:
        """Reads numbers that are compared with, or limit, what is beside them."""
        before, self.words = self.words, frozenset(_words(node))
        for child in ast.iter_child_nodes(node):
            self._within(child, telling, line)
        self.words = before


def _words(node: ast.AST) -> Iterator[str]:
    """Names, attributes, keys and axes of shapes in an expression."""
    match node:
        case ast.Subscript(ast.Attribute(attr="shape"), axis):
            yield f"shape[{ast.unparse(axis)}]"
            return
        case ast.Name(name) | ast.Attribute(attr=name) | ast.Constant(str(name)):
            yield name
    for child in ast.iter_child_nodes(node):
        yield from _words(child)


def _folded(node: ast.expr, named: Mapping[str, Value]) -> Value | None:
    """The value of an expression of numbers and names of numbers; None for any other."""
    match node:
        case ast.Constant(bool()):
            return None
        case ast.Constant(int() | float() as value):
            return value
        case ast.Name(name):
            return named.get(name)
        case ast.UnaryOp(ast.USub(), operand):
            positive = _folded(operand, named)
            return None if positive is None else -positive
        case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
            a, b = _folded(left, named), _folded(right, named)
            if a is None or b is None or (isinstance(sign, ast.Pow) and (abs(b) > 64 or abs(a) > 64)):
                return None
            try:
                made = _OPERATORS[type(sign)](a, b)
            except (ArithmeticError, ValueError):
                return None
            return made if isinstance(made, int | float) and abs(made) <= _LARGEST else None
    return None


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """Every name that is bound to a value, with the expression; None if it is bound to anything else."""
    assigned: set[ast.expr] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign([ast.Name(name) as target], value) | ast.AnnAssign(ast.Name(name) as target, _, value):
                assigned.add(target)
                yield name, value
            case ast.arguments():
                positional = [*node.posonlyargs, *node.args]
                defaults = [None] * (len(positional) - len(node.defaults)) + list(node.defaults)
                for argument, default in (
                    *zip(positional, defaults, strict=True),
                    *zip(node.kwonlyargs, node.kw_defaults, strict=True),
                ):
                    yield argument.arg, default
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in assigned:
            yield node.id, None


def _closed_over(functions: Iterable[Any], path: str) -> dict[str, Value]:
    """The numbers that functions of a file close over, by name."""
    values: dict[str, Value] = {}
    for function in functions:
        if isinstance(function, FunctionType) and function.__code__.co_filename == path:
            cells: tuple[CellType, ...] = function.__closure__ or ()
            for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
                try:
                    value = cell.cell_contents
                except ValueError:  # it is still empty
                    continue
                if type(value) in (int, float):
                    values[name] = value
    return values
