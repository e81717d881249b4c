"""Exact arithmetic shared by the claims: integers and fractions, sympy's symbols, mpmath where there are roots."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
import sympy
from hypothesis import strategies as st

Rational = Fraction | int
Vector = Sequence[Rational]
Number = Any  # a Fraction, int, mpmath or sympy number; formulas are exact for each

# drawn by searches: an entry of either sign, two of them, a positive entry
ENTRY = st.integers(-4, 4)
PAIR = st.tuples(ENTRY, ENTRY)
GAIN = st.integers(1, 4)
# a search in floating point counts only violations larger than this
BEYOND_ROUNDOFF = 1e-9
# mpmath's working precision, unless a working needs more
DIGITS = 30


def energy(scores: Sequence[Any], tau: Any = 1) -> Any:
    """-tau log sum_j exp(score_j / tau), the energy of one head, at mpmath's working precision."""
    return -tau * mpmath.log(mpmath.fsum(mpmath.exp(s / mpmath.mpf(tau)) for s in scores))


def weights(scores: Sequence[Any], tau: Any = 1) -> list[Any]:
    """The attention weights softmax_j(score_j / tau), at the precision of mpmath."""
    raw = [mpmath.exp(s / mpmath.mpf(tau)) for s in scores]
    return [r / mpmath.fsum(raw) for r in raw]


def show(value: Any, digits: int = 6) -> str:
    """Whole numbers and fractions as they are, others to some digits, vectors in brackets."""
    if isinstance(value, tuple | list):
        return f"({', '.join(show(entry, digits) for entry in value)})"
    if isinstance(value, Fraction | int):
        return str(value)
    return str(mpmath.nstr(value, digits)).removesuffix(".0")


def simplified(*expressions: Any) -> tuple[str, bool]:
    """Simplified symbolic expressions as text, and whether they all vanish; if clearly not, numbers instead."""
    numbers = [_somewhere(e) for e in expressions]
    if any(number is not None and abs(number) > BEYOND_ROUNDOFF for number in numbers):
        return f"not zero, somewhere {', '.join(map(str, numbers))}", False  # it may never simplify
    simple = [sympy.simplify(sympy.expand(e)) for e in expressions]
    return ", ".join(map(str, simple)), all(e == 0 for e in simple)


def _somewhere(expression: Any) -> Any:
    """Its value with a different number for every letter; None if that is not a number."""
    letters = sorted(sympy.sympify(expression).free_symbols, key=str)
    value = sympy.N(expression.subs({v: sympy.Rational(n, 3) for n, v in enumerate(letters, 1)}), 6)
    return value if value.is_number and value.is_finite else None


def dot(a: Vector, b: Vector) -> Fraction:
    """The inner product a . b, exactly."""
    return sum((Fraction(p) * q for p, q in zip(a, b, strict=True)), Fraction(0))


def silu(z: Number) -> Number:
    """z / (1 + e^-z), at mpmath's working precision."""
    return z / (1 + mpmath.exp(-z))
