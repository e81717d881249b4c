"""The small language for priors: names, parameters, sums and products.

    rbf(lengthscale=2) + 0.1 * linear
    changepoint(rbf, periodic(lengthscale=10, period=2), location=0.2)
    mypackage.kernels:MyKernel(smoothness=3)

    sum      product { "+" product }
    product  factor { "*" factor }
    factor   number | "(" sum ")" | name [ "(" argument { "," argument } ")" ]
    argument name "=" value | sum
    value    number | "[" number { "," number } "]"

Parentheses nest at most 20 deep, a prior names at most 100 kernels, and a number is 0 or from 1e-30 to 1e30 in size.

This file contains the grammar; `synthetic.gp.priors` gives the names their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cemverify.console.errors import UsageError

# Deeper kernels, and more of them, than any study has; each costs a pass over every pair of points.
DEEPEST, MOST_KERNELS = 20, 100

# Beyond these a covariance overflows or vanishes in float64.
SMALLEST, LARGEST = 1e-30, 1e30

Value = float | tuple[float, ...]

TOKEN = re.compile(
    r"(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][\w.]*(?:-[A-Za-z]\w*)*(?::[A-Za-z_][\w.]*)?)"  # matern-like-this, package.module:object
    r"|(?P<sign>[-+*(),=\[\]])"
    r"|(?P<other>\S)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Named:
    """A named kernel; `inner` are the kernels it is made of."""

    name: str
    inner: tuple[Expression, ...] = ()
    parameters: Mapping[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        inside = [*map(str, self.inner), *(f"{name}={_shown(value)}" for name, value in self.parameters.items())]
        return f"{self.name}({', '.join(inside)})" if inside else self.name


@dataclass(frozen=True)
class Product:
    """A product in the algebra of priors: a number times one kernel or several."""

    scale: float
    factors: tuple[Expression, ...]

    def __str__(self) -> str:
        numbers = [] if self.scale == 1 else [_shown(self.scale)]
        return "*".join([*numbers, *(f"({f})" if isinstance(f, Sum) else str(f) for f in self.factors)])


@dataclass(frozen=True)
class Sum:
    """A sum in the algebra of priors, of two kernels or more."""

    terms: tuple[Expression, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms))


Expression = Named | Product | Sum


def parse(text: str) -> Expression:
    """The expression that a text stands for.

    Raises:
        UsageError: the text is not a valid expression; the message says where and why.
    """
    return _Reader(text).read()


class _Reader:
    """Reads tokens from left to right; one method for each line of the grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [(str(match.lastgroup), match.group(), match.start()) for match in TOKEN.finditer(text)]
        self.at = self.depth = 0
        ahead = [text for _, text, _ in self.tokens[1:]] + [""]
        kernels = sum(kind == "name" and then != "=" for (kind, _, _), then in zip(self.tokens, ahead, strict=False))
        if kernels > MOST_KERNELS:
            raise UsageError(f"prior {_cut(text)} names {kernels} kernels; {MOST_KERNELS} is the most")

    def read(self) -> Expression:
        found = self.sum()
        if self.at < len(self.tokens):
            raise self.complaint("+, * or the end")
        return found

    def sum(self) -> Expression:
        self.depth += 1
        if self.depth > DEEPEST:
            raise UsageError(f"prior {_cut(self.text)} is nested too deeply; {DEEPEST} parentheses is the most")
        terms = [self.product()]
        while self.take("+"):
            terms.append(self.product())
        self.depth -= 1
        return terms[0] if len(terms) == 1 else Sum(tuple(terms))

    def product(self) -> Expression:
        begun = self.at
        scale, factors = 1.0, []
        while True:
            if self.kind() == "number":
                scale *= self.number()
            else:
                factors.append(self.factor())
            if not self.take("*"):
                break
        if not factors:
            self.at = begun
            raise self.complaint("a kernel, because a number alone is not one (write a constant as 2*constant)")
        if not SMALLEST <= scale <= LARGEST:
            raise UsageError(
                f"prior {_cut(self.text)}: a kernel can be multiplied by positive numbers only, not by {scale:g}; "
                f"numbers are from {SMALLEST:g} to {LARGEST:g}"
            )
        return factors[0] if scale == 1 and len(factors) == 1 else Product(scale, tuple(factors))

    def factor(self) -> Expression:
        if self.take("("):
            inside = self.sum()
            self.expect(")")
            return inside
        name = self.name("a kernel")
        inner: list[Expression] = []
        parameters: dict[str, Value] = {}
        if self.take("("):
            while not self.take(")"):
                self.argument(inner, parameters)
                if not self.take(","):
                    self.expect(")")
                    break
        return Named(name, tuple(inner), parameters)

    def argument(self, inner: list[Expression], parameters: dict[str, Value]) -> None:
        if self.kind() == "name" and self.shown(1) == "=":
            name = self.name("a parameter")
            self.expect("=")
            if name in parameters:
                raise UsageError(f"prior {_cut(self.text)}: {name} is given twice; give it once")
            parameters[name] = self.value()
        elif self.kind() == "number" and self.shown(1) in (",", ")"):
            raise self.complaint("a parameter with its name, such as lengthscale=2, or a kernel")
        else:
            inner.append(self.sum())

    def value(self) -> Value:
        if not self.take("["):
            return self.number()
        numbers = [self.number()]
        while self.take(","):
            numbers.append(self.number())
        self.expect("]")
        return tuple(numbers)

    def number(self) -> float:
        if self.kind() != "number":
            raise self.complaint("a number or [a list of numbers]")
        self.at += 1
        return float(self.tokens[self.at - 1][1])

    def name(self, what: str) -> str:
        if self.kind() != "name":
            raise self.complaint(what)
        self.at += 1
        return self.tokens[self.at - 1][1]

    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else "end"

    def shown(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else ""

    def take(self, sign: str) -> bool:
        taken = self.shown() == sign
        self.at += taken
        return taken

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            raise self.complaint(repr(sign))

    def complaint(self, expected: str) -> UsageError:
        where = f"at {_cut(self.text[self.tokens[self.at][2] :])}" if self.at < len(self.tokens) else "at its end"
        return UsageError(
            f"prior {_cut(self.text)}: {where}, expected {expected}; a prior is written like "
            "rbf(lengthscale=2)+0.1*linear"
        )


def _cut(text: str) -> str:
    """A prior as messages quote it."""
    return repr(text) if len(text) <= 80 else f"{text[:60]!r}..."


def _shown(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value).removesuffix(".0")
