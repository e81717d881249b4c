"""Claims about the error of the updates in floating point (docs/mathematics.md §16)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
from hypothesis import strategies as st

from cemverify.claims.base import Claim
from cemverify.claims.evidence import Counterexample, Derivation, Properties, Search, Working, working
from cemverify.claims.exact import DIGITS, Number, dot


def claims() -> Iterator[Claim]:
    """The section's claims."""
    yield from _roundoff()


# --- section 16 ------------------------------------------------------------------------------------------


def _roundoff() -> Iterator[Claim]:
    example = (
        "In two dimensions h = (1, 1), (1, -1) and x = (S, y) have the logits S + y and S - y and the update "
        "(1, tanh y). When the logits alone are rounded to float32 and all else is exact, its error"
    )
    yield Claim(
        id="16-square-root",
        source="ours: a usual tolerance",
        statement=(
            "The relative error of an attention update in floating point is at most a small multiple of the unit "
            "roundoff times the square root of the dimension."
        ),
        formula="|error| <= c u sqrt(n) |F|, here with c = 16",
        condition=(
            "the logits are of order one; at fixed n the error grows in proportion to the largest logit S, and the "
            "example exceeds the tolerance at S = 128"
        ),
        proof=(
            "A logit of size S is rounded by up to u S, which multiplies a softmax weight by up to e^(u S), whatever "
            f"the dimension. {example} is proportional to u S. Products of many terms do add errors that grow with "
            "n, as sqrt(n) or less where they average out."
        ),
        evidence=(
            Properties(("precision/attention/float32", "precision/attention/bfloat16"), examples=20),
            Derivation("D = R = J = 2, W_Q = W_K = I, tau = 1, S up to 8", _small_logits),
            Counterexample("the same, S = 2^7", _large_logits),
            Search(
                "the same, S = 2^k and y = a/7",
                st.tuples(st.integers(0, 14), st.integers(1, 6)),
                violates=lambda c: _roundoff_of_logits(2 ** c[0], c[1]) > _TOLERANCE * mpmath.sqrt(2),
                size=lambda c: c[0],
                largest=7,
            ),
        ),
    )
    yield Claim(
        id="16-logits",
        source="ours",
        statement="The relative error of an attention update is at most a few u (1 + S), S the largest |logit|.",
        formula="|error| <= c u (1 + S) |F|; c = 4 in float32 and 1 in bfloat16",
        condition=(
            "what F sums does not cancel: |F| is of the order of sum_k sum_j a_kij |beta_kj|, as with dense "
            "normal weights"
        ),
        proof=(
            "To first order each logit is off by a few u S and each softmax weight by that relative to itself; the "
            "two matrix products add a few u. So |error| is at most a few u (1 + S) times the sum of the absolute "
            f"values, which |F| can fall short of without limit. {example} is bounded by u (1 + S) from S = 1 to "
            "S = 2^20. A second head with beta = (-1, 0) for both tokens leaves (0, tanh y) of the update, and the "
            "relative error grows like 1 / y."
        ),
        evidence=(
            Properties(("precision/attention/float32", "precision/attention/bfloat16"), examples=20),
            Derivation("the two-token example for S up to 2^20", _proportional_to_logits),
            Counterexample("the same with a second head that cancels, S = 1, y near 2^-12", _heads_cancel),
            Search(
                "the same, S = 1, y = (a/7) 2^-k",
                st.tuples(st.integers(0, 20), st.integers(1, 6)),
                violates=lambda c: _roundoff_of_logits(1, c[1], halvings=c[0], cancels=True) > 8,
                size=lambda c: c[0],
                largest=10,
            ),
        ),
    )
    yield Claim(
        id="16-mlp",
        source="ours",
        statement="The relative error of an MLP update is a few u: no softmax multiplies the roundoff.",
        formula="|error| <= c u |F|; c = 16 in float32 and 3 in bfloat16",
        condition="no sum cancels, as with dense normal weights",
        proof=(
            "SiLU's relative condition number, |x sigma'(x) / sigma(x)|, grows with -x only where its value is "
            "negligible in the sum. What remains are two matrix products and one product of the hidden units, whose "
            "errors average out for dense normal weights. Where a sum cancels, rounding its terms may leave nothing "
            "of it."
        ),
        evidence=(
            Properties(("precision/mlp/float32", "precision/mlp/bfloat16"), examples=20),
            Counterexample("D = 2, M = 1: a gate W h that cancels to 2^-24", _gate_cancels),
            Search(
                "W = (1 + 2^-a, -1 - 2^-b), h = (1 + 2^-a, 1)",
                st.tuples(st.integers(1, 20), st.integers(1, 20)),
                violates=lambda c: _gate_in_float32(*c)[0] != 0 and _gate_error(*c) > 2**20,
                size=max,
                largest=12,
            ),
        ),
    )


_TOLERANCE = 16


def _roundoff_of_logits(S: int, sevenths: int, halvings: int = 0, *, cancels: bool = False) -> Number:
    """Relative error of (1, tanh y), in units of u, when the logits S + y and S - y are rounded to float32.

    y is (sevenths / 7) 2^-halvings in float32. If a second head cancels, that of (0, tanh y).
    """
    y = np.float32(sevenths) / np.float32(7) * np.float32(2.0**-halvings)
    first, second = np.float32(S) + y, np.float32(S) - y
    difference = (Fraction(float(first)) - Fraction(float(second))) / 2  # y up to the rounding of the two
    with mpmath.workdps(DIGITS):
        exact = mpmath.tanh(mpmath.mpf(float(y)))
        got = mpmath.tanh(mpmath.mpf(difference.numerator) / difference.denominator)
        return abs(got - exact) / mpmath.sqrt(exact**2 + (not cancels)) * 2**24


def _law_of_sevenths(exponents: Sequence[int]) -> dict[int, Number]:
    """S: the largest such error over y = 1/7 ... 6/7."""
    return {2**k: max(_roundoff_of_logits(2**k, a) for a in range(1, 7)) for k in exponents}


def _small_logits() -> Working:
    errors = _law_of_sevenths(range(4))
    allowed = _TOLERANCE * mpmath.sqrt(2)
    held = all(error <= allowed for error in errors.values())
    return working(
        *(f"S = {S}: error {mpmath.nstr(error, 3)} u, over y = 1/7 ... 6/7" for S, error in errors.items()),
        f"all at most {_TOLERANCE} sqrt(2) u = {mpmath.nstr(allowed, 3)} u is {held}",
        comes_out=held,
    )


def _large_logits() -> Working:
    sevenths, exponents = 2, (1, 4, 7, 10, 13)
    errors = {2**k: _roundoff_of_logits(2**k, sevenths) for k in exponents}
    allowed = _TOLERANCE * mpmath.sqrt(2)
    held = bool(errors[2**7] <= allowed)
    growth = [b / a for a, b in pairwise(list(errors.values())[1:])]
    return working(
        f"y = {sevenths}/7 in float32; the logits are S + y and S - y, rounded",
        *(f"S = {S}: relative error {mpmath.nstr(error, 4)} u" for S, error in errors.items()),
        f"eight times the logit, {' and '.join(mpmath.nstr(g, 3) for g in growth)} times the error",
        f"at S = {2**7}: {mpmath.nstr(errors[2**7], 4)} u <= {_TOLERANCE} sqrt(2) u = {mpmath.nstr(allowed, 4)} u "
        f"is {held}",
        comes_out=held,
    )


def _proportional_to_logits() -> Working:
    errors = _law_of_sevenths(range(21))
    ratios = {S: error / (1 + S) for S, error in errors.items()}
    held = all(ratio <= 4 for ratio in ratios.values())
    shown = [S for S in ratios if S in (1, 2**5, 2**10, 2**15, 2**20)]
    return working(
        *(f"S = {S}: error {mpmath.nstr(errors[S], 3)} u = {mpmath.nstr(ratios[S], 2)} u (1 + S)" for S in shown),
        f"largest ratio {mpmath.nstr(max(ratios.values()), 2)}, at most 4 is {held}",
        comes_out=held,
    )


def _heads_cancel() -> Working:
    S, sevenths, halvings, c = 1, 2, 10, 4
    alone, cancelled = (_roundoff_of_logits(S, sevenths, halvings, cancels=flag) for flag in (False, True))
    held = bool(cancelled <= c * (1 + S))
    return working(
        f"S = {S}, y = ({sevenths}/7) 2^-{halvings} in float32; the logits are S + y and S - y, rounded",
        f"one head, F = (1, tanh y): relative error {mpmath.nstr(alone, 3)} u",
        f"with the second head, F = (0, tanh y): {mpmath.nstr(cancelled, 4)} u",
        f"{mpmath.nstr(cancelled, 4)} u <= {c} u (1 + S) = {c * (1 + S)} u is {held}",
        comes_out=held,
    )


def _gate_in_float32(a: int, b: int) -> tuple[Fraction, Fraction]:
    """W h for W = (1 + 2^-a, -1 - 2^-b), h = (1 + 2^-a, 1): exactly, and with each operation rounded."""
    W, h = (1 + Fraction(1, 2**a), -1 - Fraction(1, 2**b)), (1 + Fraction(1, 2**a), Fraction(1))
    first, second = (np.float32(float(w)) * np.float32(float(v)) for w, v in zip(W, h, strict=True))
    exact = dot(W, h)
    return exact, Fraction(float(first + second))


def _gate_error(a: int, b: int) -> Fraction:
    """Its relative error in units of u."""
    exact, got = _gate_in_float32(a, b)
    return abs(got - exact) / abs(exact) * 2**24


def _gate_cancels() -> Working:
    a, b, c = 12, 11, 16
    exact, got = _gate_in_float32(a, b)
    error = _gate_error(a, b)
    return working(
        f"W = (1 + 2^-{a}, -1 - 2^-{b}), h = (1 + 2^-{a}, 1), all of them float32 numbers",
        f"W h = {exact}; in float32, each operation rounded, W h = {got}",
        f"the update is V^T (W h) sigma(V x), so its relative error is {error} u at least",
        f"{error} u <= {c} u is {error <= c}",
        comes_out=error <= c,
    )
