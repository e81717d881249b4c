"""Claims about the error of the updates in floating point (docs/mathematics.md §16)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import mpmath
import numpy as np
from hypothesis import strategies as st

from cemverify.claims.arguments import Instance, Search, Working, properties, working
from cemverify.claims.base import Claim, ours
from cemverify.claims.exact import DIGITS, dot


class _Logits(NamedTuple):
    """The logits S + y and S - y, S = 2^exponent and y = (sevenths / 7) 2^-halvings; a second head may cancel."""

    exponent: int
    sevenths: int
    halvings: int = 0
    cancels: bool = False


_SEVENTHS = st.integers(1, 6)


def claims() -> Iterator[Claim]:
    """Every claim about roundoff, each with its arguments."""
    yield Claim(
        id="16-logits",
        source=ours("a tolerance for updates"),
        rests=("precision/attention/float32", "precision/attention/bfloat16"),
        statement="The relative error of an attention update is at most a few u (1 + S), S the largest |logit|.",
        formula="|error| <= c u (1 + S) |F|; c = 4 in float32 and 1 in bfloat16",
        condition=(
            "the terms that F sums do not cancel: |F| is of the order of sum_k sum_j a_kij |beta_kj|, as with dense "
            "normal weights"
        ),
        within=lambda case: not case.cancels,
        finding=(
            "To first order each logit is off by a few u S, and each softmax weight by as much relative to itself; "
            "the two matrix products add a few u. So |error| is at most a few u (1 + S) times the sum of the "
            "absolute values, and |F| can be smaller than that sum by any factor. In two dimensions, h = (1, 1), "
            "(1, -1) and x = (S, y) give the logits S + y and S - y and the update (1, tanh y). If only the logits "
            "are rounded to float32, its error is bounded by u (1 + S). A second head with beta = (-1, 0) for both "
            "tokens leaves (0, tanh y) of the update, and the relative error grows like 1 / y."
        ),
        advice="`tolerance = 4 * eps * (1 + logits.abs().max()) * update.norm()`, and check for cancellation first",
        holds_for=partial(_stays_within, factor=1),
        arguments=(
            Search(
                "S = 2^k up to 2^20 and y in sevenths",
                st.builds(_Logits, st.integers(0, 20), _SEVENTHS, st.just(0), st.just(False)),
            ),
            properties("precision/attention/float32", "precision/attention/bfloat16"),
            Instance("a second head that cancels, S = 1, y near 2^-12", _Logits(0, 2, 10, cancels=True)),
            Search(
                "a second head that cancels, S = 1, y = (a/7) 2^-k",
                st.builds(_Logits, st.just(0), _SEVENTHS, st.integers(0, 20), st.just(True)),
                outside=True,
            ),
        ),
    )
    yield Claim(
        id="16-mlp",
        source=ours("a tolerance for updates"),
        rests=("precision/mlp/float32", "precision/mlp/bfloat16"),
        statement="The relative error of an MLP update is a few u: no softmax multiplies the roundoff.",
        formula="|error| <= c u |F|; c = 16 in float32 and 3 in bfloat16",
        condition="no sum cancels, as with dense normal weights",
        within=lambda case: case[2] > 0,
        finding=(
            "SiLU's relative condition number, |x sigma'(x) / sigma(x)|, grows with -x only where its value is "
            "negligible in the sum. What remains are two matrix products and one product of the hidden units, whose "
            "errors average out for dense normal weights. Where a sum cancels, rounding its terms may leave nothing "
            "of it."
        ),
        advice="`tolerance = 16 * eps * update.norm()`",
        holds_for=partial(_gate_is_accurate, factor=1),
        arguments=(
            Search("a gate of two terms of one sign", _gates(1)),
            properties("precision/mlp/float32", "precision/mlp/bfloat16"),
            Instance("D = 2, M = 1: a gate W h that cancels to 2^-24", (12, 11, -1)),
            Search("a gate of two terms that cancel", _gates(-1), outside=True),
        ),
    )


def _gates(sign: int) -> st.SearchStrategy[tuple[int, int, int]]:
    return st.tuples(st.integers(1, 20), st.integers(1, 20), st.just(sign))


def _stays_within(case: _Logits, *, factor: Fraction | int) -> Working:
    """The error of (1, tanh y), or (0, tanh y), when the logits S + y and S - y are rounded to float32."""
    S = 2**case.exponent
    y = np.float32(case.sevenths) / np.float32(7) * np.float32(2.0**-case.halvings)
    first, second = np.float32(S) + y, np.float32(S) - y
    difference = (Fraction(float(first)) - Fraction(float(second))) / 2  # y, up to the rounding of the two
    with mpmath.workdps(DIGITS):
        exact, actual = mpmath.tanh(mpmath.mpf(float(y))), mpmath.tanh(mpmath.mpmathify(difference))
        error = abs(actual - exact) / mpmath.sqrt(exact**2 + (not case.cancels)) * 2**24
        allowed = 4 * (1 + mpmath.mpf(S)) * float(factor)
    return working(
        f"S = {S}, y = ({case.sevenths}/7) 2^-{case.halvings} in float32; the logits are S + y and S - y, rounded",
        f"F = ({0 if case.cancels else 1}, tanh y): relative error {mpmath.nstr(error, 4)} u, at most "
        f"{mpmath.nstr(allowed, 4)} u: {bool(error <= allowed)}",
        comes_out=error <= allowed,
    )


def _gate_is_accurate(case: tuple[int, int, int], *, factor: Fraction | int) -> Working:
    """W h for W = (1 + 2^-a, sign (1 + 2^-b)), h = (1 + 2^-a, 1): exact, and with each operation rounded."""
    a, b, sign = case
    W, h = (1 + Fraction(1, 2**a), sign * (1 + Fraction(1, 2**b))), (1 + Fraction(1, 2**a), Fraction(1))
    first, second = (np.float32(float(w)) * np.float32(float(v)) for w, v in zip(W, h, strict=True))
    exact, actual = dot(W, h), Fraction(float(first + second))
    error = abs(actual - exact) / abs(exact) * 2**24 if exact else Fraction(0)
    return working(
        f"W = (1 + 2^-{a}, {'' if sign > 0 else '-'}(1 + 2^-{b})), h = (1 + 2^-{a}, 1): W h = {exact}, in float32 "
        f"{actual}",
        f"the update is V^T (W h) sigma(V x), so its relative error is {float(error):.4g} u at least; at most "
        f"{float(16 * factor):g} u: {error <= 16 * factor}",
        comes_out=error <= 16 * factor,
    )
