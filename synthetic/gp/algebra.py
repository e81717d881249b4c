"""The small language for priors: names, parameters, sums and products.

    rbf(lengthscale=2) + 0.1 * linear
    changepoint(rbf, periodic(lengthscale=10, period=2), location=0.2)
    mypackage.kernels:MyKernel(smoothness=3)

The grammar is Python's, restricted to sums, products, calls and numbers, except that names may have hyphens, dots and
a colon. Kernels nest at most 20 deep, a prior names at most 100, and the size of a number is 0 or from 1e-30 to 1e30.

This file reads the grammar; `synthetic.gp.priors` gives the names their meaning.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cemverify.console.errors import UsageError

# More than any study needs; each kernel costs a pass over every pair of points.
DEEPEST, MOST_KERNELS = 20, 100

# Beyond these a covariance overflows or vanishes in float64.
SMALLEST, LARGEST = 1e-30, 1e30

Value = float | tuple[float, ...]

_NAME = r"[A-Za-z_][\w.]*(?:-[A-Za-z]\w*)*(?::[A-Za-z_][\w.]*)?"  # matern-like-this, package.module:object
_TOKEN = re.compile(
    rf"(?P<number>(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)|(?P<name>{_NAME})|(?P<sign>[-+*(),=\[\]\s])|(?P<rest>.)",
    re.IGNORECASE | re.ASCII,
)
_EXAMPLE = "a prior is written like rbf(lengthscale=2)+0.1*linear"


@dataclass(frozen=True)
class Named:
    """A named kernel; `inner` are the kernels that it is built from."""

    name: str
    inner: tuple[Expression, ...] = ()
    parameters: Mapping[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        inside = [*map(str, self.inner), *(f"{name}={_text(value)}" for name, value in self.parameters.items())]
        return f"{self.name}({', '.join(inside)})" if inside else self.name


@dataclass(frozen=True)
class Product:
    """A product in the algebra of priors: a number times one kernel or several."""

    scale: float
    factors: tuple[Expression, ...]

    def __str__(self) -> str:
        numbers = [] if self.scale == 1 else [_text(self.scale)]
        return "*".join([*numbers, *(f"({f})" if isinstance(f, Sum) else str(f) for f in self.factors)])


@dataclass(frozen=True)
class Sum:
    """A sum in the algebra of priors, of two kernels or more."""

    terms: tuple[Expression, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms))


Expression = Named | Product | Sum


def parse(text: str) -> Expression:
    """The expression that a text stands for."""
    reader = _PriorReader(text)
    return reader.sum(reader.tree())


class _PriorReader:
    """Reads a text by Python's parser; each name is replaced by underscores of its length, so positions stay."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()

    def tree(self) -> ast.expr:
        """The syntax tree of the text."""
        kernels = len(re.findall(rf"{_NAME}(?![\w.:-])(?!\s*=)", self.text, re.ASCII))
        if kernels > MOST_KERNELS:
            raise UsageError(f"prior {_cut(self.text)} names {kernels} kernels; {MOST_KERNELS} is the most")
        try:
            return ast.parse(_TOKEN.sub(self.plain, self.text), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            at = max(1, getattr(error, "offset", None) or 1) - 1
            raise self.complaint(at, "this cannot be read") from error

    def plain(self, token: re.Match[str]) -> str:
        """A token as Python reads it."""
        if token.lastgroup == "rest":
            raise self.complaint(token.start(), "this cannot be read")
        return "_" * len(token[0]) if token.lastgroup == "name" else re.sub(r"\s", " ", token[0])

    def complaint(self, at: int, why: str) -> UsageError:
        """The error about a position in the text."""
        where = f"at {_cut(self.text[at:])}" if self.text[at:].strip() else "at its end"
        return UsageError(f"prior {_cut(self.text)}: {where}, {why}; {_EXAMPLE}")

    def words(self, node: ast.expr | ast.keyword) -> str:
        """The text at the position of a node."""
        return self.text[node.col_offset : node.end_col_offset]

    def sum(self, node: ast.expr, depth: int = 1) -> Expression:
        """A sum of products, or one of them."""
        if depth > DEEPEST:
            raise UsageError(f"prior {_cut(self.text)} is nested too deeply; {DEEPEST} levels is the most")
        terms = [self.product(term, depth) for term in _flat(node, ast.Add)]
        return terms[0] if len(terms) == 1 else Sum(tuple(terms))

    def product(self, node: ast.expr, depth: int) -> Expression:
        """A product of numbers and kernels."""
        scale, factors = 1.0, []
        for factor in _flat(node, ast.Mult):
            if isinstance(factor, ast.Constant | ast.UnaryOp):
                scale *= self.number(factor)
            else:
                factors.append(self.factor(factor, depth))
        if not factors:
            why = "a number alone is not a kernel (write a constant as 2*constant, a parameter as lengthscale=2)"
            raise self.complaint(node.col_offset, why)
        if not SMALLEST <= scale <= LARGEST:
            raise UsageError(
                f"prior {_cut(self.text)}: a kernel can be multiplied by positive numbers only, not by {scale:g}; "
                f"numbers are from {SMALLEST:g} to {LARGEST:g}"
            )
        return factors[0] if scale == 1 and len(factors) == 1 else Product(scale, tuple(factors))

    def factor(self, node: ast.expr, depth: int) -> Expression:
        """A kernel, or a sum in parentheses."""
        match node:
            case ast.Name():
                return Named(self.words(node))
            case ast.BinOp(op=ast.Add() | ast.Mult()):
                return self.sum(node, depth + 1)
            case ast.Call(func=ast.Name() as name):
                parameters: dict[str, Value] = {}
                for keyword in node.keywords:
                    key = self.words(keyword).partition("=")[0].strip()
                    if key in parameters:
                        raise UsageError(f"prior {_cut(self.text)}: {key} is given twice; give it once")
                    parameters[key] = self.value(keyword.value)
                return Named(self.words(name), tuple(self.sum(part, depth + 1) for part in node.args), parameters)
        raise self.complaint(node.col_offset, "expected a kernel")

    def value(self, node: ast.expr) -> Value:
        """A number or a list of numbers."""
        return tuple(map(self.number, node.elts)) if isinstance(node, ast.List) else self.number(node)

    def number(self, node: ast.expr) -> float:
        """A number, possibly with a minus sign."""
        match node:
            case ast.Constant():
                return float(self.words(node))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as size):
                return -float(self.words(size))
        raise self.complaint(node.col_offset, "expected a number or [a list of numbers]")


def _flat(node: ast.expr, operator: type[ast.operator]) -> list[ast.expr]:
    """The terms of a sum or factors of a product, which Python's tree nests to the left."""
    terms: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, operator):
        terms.insert(0, node.right)
        node = node.left
    return [node, *terms]


def _cut(text: str) -> str:
    """A prior as messages quote it."""
    return repr(text) if len(text) <= 80 else f"{text[:60]!r}..."


def _text(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value).removesuffix(".0")
