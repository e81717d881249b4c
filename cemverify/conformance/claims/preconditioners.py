"""Claims about preconditioners: Eq. 12 and 13, App. C.4 (docs/mathematics.md §5, §6)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import mpmath
from hypothesis import strategies as st

from cemverify.conformance.claims.base import Claim
from cemverify.conformance.claims.evidence import Counterexample, Properties, Search, Working, working


def claims() -> Iterator[Claim]:
    """The section's claims."""
    yield Claim(
        id="5-per-head",
        source="Eq. 12",
        statement="Each head may have a positive definite preconditioner of its own; the step still descends.",
        formula="P_k > 0 for all k  =>  sum_k P_k g_k is a descent direction for sum_k g_k",
        condition="all heads share one preconditioner",
        proof=(
            "First-order descent for all gradients needs the block matrix of (P_k + P_l) / 2 to be positive "
            "semi-definite. For two heads its Schur complement is -(P_1 - P_2) P_1^-1 (P_1 - P_2) / 4, never positive "
            "and zero only if P_1 = P_2. With one P for all heads the step is P times the gradient."
        ),
        evidence=(
            Properties(("descent/attention/any-step-size-low-rank",)),
            Counterexample("K = 2, D = R = J = 1: the energy is -x and the step goes to -1", _per_head_ascends),
            Search(
                "two heads in one dimension, integers",
                st.tuples(*(st.integers(-3, 3) for _ in range(2)), *(st.integers(1, 3) for _ in range(2))),
                violates=lambda c: (c[0] + c[1]) * (c[2] * c[0] + c[3] * c[1]) < 0,
                size=lambda c: max(map(abs, c)),
                largest=3,
            ),
        ),
    )
    yield Claim(
        id="6-softplus-diagonal",
        source="Eq. 12, 13",
        statement="A softplus diagonal makes diag(softplus(d)) + U V^T + V U^T positive definite.",
        formula="diag(softplus(d)) + U V^T + V U^T > 0 for all d, U, V",
        proof="At rank one the cross term has eigenvalues u.v +- |u||v|, and the lower one has no lower bound.",
        evidence=(
            Counterexample("D = R = 1, d = 0, U = 1, V = -1", _softplus_is_not_enough),
            Search(
                "d, U, V integers in one dimension",
                st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3)),
                violates=lambda c: mpmath.log(1 + mpmath.exp(c[0])) + 2 * c[1] * c[2] <= 0,
                size=lambda c: max(map(abs, c)),
                largest=1,
            ),
        ),
    )


def _per_head_ascends() -> Working:
    h, x, tau, eta = 1, Fraction(1), 1, Fraction(1)
    W_Q, W_K, P = (2, -1), (1, 1), (1, 3)
    beta = [q * k * h for q, k in zip(W_Q, W_K, strict=True)]  # one token: the softmax weight is 1
    step = sum(p * b for p, b in zip(P, beta, strict=True))
    before, after = -sum(beta) * x, -sum(beta) * (x + eta * step)
    return working(
        f"tau = {tau}, h = x = {x}, W_Q = {W_Q}, W_K = {W_K}, P = {P}, eta = {eta}",
        f"beta_k = W_Q,k W_K,k h = {beta}; with one token the energy is -sum_k beta_k x = {-sum(beta)} x",
        f"step = sum_k P_k beta_k = {P[0]}({beta[0]}) + {P[1]}({beta[1]}) = {step}",
        f"x: {x} -> {x + eta * step}, energy: {before} -> {after}",
        f"energy after <= energy before: {after} <= {before} is {after <= before}",
        comes_out=after <= before,
    )


def _softplus_is_not_enough() -> Working:
    with mpmath.workdps(30):
        P = mpmath.log(1 + mpmath.exp(0)) + 2 * 1 * (-1)
        return working(
            "d = 0, U = 1, V = -1",
            f"P = softplus(0) + U V + V U = ln 2 - 2 = {mpmath.nstr(P, 6)}",
            f"P > 0 is {bool(P > 0)}",
            comes_out=bool(P > 0),
        )
