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

# what searches draw: an entry of either sign, two of them, a positive entry
ENTRY = st.integers(-4, 4)
PAIR = st.tuples(ENTRY, ENTRY)
GAIN = st.integers(1, 4)
# a search in floating point counts a violation only from here on
BEYOND_ROUNDOFF = 1e-9


def energy(scores: Sequence[Any], tau: Any = 1) -> Any:
    """-tau log sum_j exp(score_j / tau), one head's energy, at mpmath's working precision."""
    return -tau * mpmath.log(mpmath.fsum(mpmath.exp(s / mpmath.mpf(tau)) for s in scores))


def weights(scores: Sequence[Any], tau: Any = 1) -> list[Any]:
    """softmax_j(score_j / tau)."""
    raw = [mpmath.exp(s / mpmath.mpf(tau)) for s in scores]
    return [r / mpmath.fsum(raw) for r in raw]


def shown(value: Any, digits: int = 6) -> str:
    """Whole numbers and fractions as they are, others to some digits, vectors in brackets."""
    if isinstance(value, tuple | list):
        return f"({', '.join(shown(entry, digits) for entry in value)})"
    if isinstance(value, Fraction | int):
        return str(value)
    return str(mpmath.nstr(value, digits)).removesuffix(".0")


def simplified(*expressions: Any) -> tuple[str, bool]:
    """Symbolic expressions simplified, as text, and whether they all vanish."""
    simple = [sympy.simplify(sympy.expand(e)) for e in expressions]
    return ", ".join(map(str, simple)), all(e == 0 for e in simple)


def largest_entry(case: Any) -> float:
    """The largest absolute value in nested tuples of integers."""
    return max(map(largest_entry, case)) if isinstance(case, tuple) else abs(case)


def dot(a: Vector, b: Vector) -> Fraction:
    """a . b, exactly."""
    return sum((Fraction(p) * q for p, q in zip(a, b, strict=True)), Fraction(0))


def moved(x: Vector, direction: Vector, eta: Rational = 1) -> tuple[Fraction, ...]:
    """x + eta direction."""
    return tuple(Fraction(a) + eta * b for a, b in zip(x, direction, strict=True))


def jacobian_at_zero(out: Vector, values: Vector, betas: Sequence[Vector]) -> tuple[tuple[Fraction, ...], ...]:
    """d/dx of out sum_j softmax_j(beta_j . x) value_j at x = 0, where all weights are 1/J: exactly."""
    J = len(betas)
    mean = [Fraction(sum(b), J) for b in zip(*betas, strict=True)]
    slopes = [
        sum((Fraction(v) * (b[m] - mean[m]) / J for v, b in zip(values, betas, strict=True)), Fraction(0))
        for m in range(len(mean))
    ]
    return tuple(tuple(o * slope for slope in slopes) for o in out)


def symmetric(M: Sequence[Vector]) -> bool:
    """Whether M equals its transpose, exactly."""
    return all(M[a][b] == M[b][a] for a in range(len(M)) for b in range(a))
