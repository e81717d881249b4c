"""Preconditioners: what P is, when it is positive definite, and that it must be shared by the heads."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from cemverify.cem.descent import Descent
from cemverify.cem.layers import InitKind, LearnedPreconditioner, PreconditionerConfig
from cemverify.cem.preconditioners import (
    Diagonal,
    Identity,
    LowRank,
    LowRankPrinted,
    Preconditioner,
    PreconditionerKind,
)
from suites.cem.helpers import ROUNDING, U, generator, randn, relative_error, scalar_interaction, token, vector

D, R, K = 5, 2, 3


def shared(name: str) -> Preconditioner:
    d, V, W = randn(D, seed=0), randn(D, R, seed=1), randn(D, R, seed=2)
    kinds: dict[str, Preconditioner] = {
        "identity": Identity(),
        "diagonal": Diagonal(d),
        "low-rank": LowRank(d, V, W),
        "low-rank-printed": LowRankPrinted(d, V, W),
    }
    return kinds[name]


def per_head(name: str) -> Preconditioner:
    d, V, W = randn(K, D, seed=0), randn(K, D, R, seed=1), randn(K, D, R, seed=2)
    kinds: dict[str, Preconditioner] = {
        "diagonal": Diagonal(d),
        "low-rank": LowRank(d, V, W),
        "low-rank-printed": LowRankPrinted(d, V, W),
    }
    return kinds[name]


KINDS: tuple[PreconditionerKind, ...] = ("identity", "diagonal", "low-rank", "low-rank-printed")
each_kind = pytest.mark.parametrize("kind", KINDS)
each_kind_per_head = pytest.mark.parametrize("kind", KINDS[1:])


def softplus_inverse(value: float) -> float:
    return math.log(math.expm1(value))


# --- the matrix and its application -------------------------------------------------------------------


@each_kind
def test_applying_a_shared_preconditioner_is_multiplying_by_its_matrix(kind: PreconditionerKind) -> None:
    P, g = shared(kind), randn(2, 4, D, seed=3)
    assert relative_error(P.apply(g), g @ P.matrix(D).mT) <= ROUNDING


@each_kind_per_head
def test_applying_one_per_head_multiplies_each_head_by_its_own_matrix(kind: PreconditionerKind) -> None:
    P, g = per_head(kind), randn(2, K, 4, D, seed=3)
    assert P.per_head
    assert relative_error(P.apply(g), torch.einsum("kde,bkje->bkjd", P.matrix(D), g)) <= ROUNDING


@each_kind
def test_every_preconditioner_is_symmetric(kind: PreconditionerKind) -> None:
    matrix = shared(kind).matrix(D)
    assert relative_error(matrix.mT, matrix) <= ROUNDING


@pytest.mark.parametrize("d", [-30.0, 0.0, 21.0, 39.0, 41.0, 1000.0])
def test_the_diagonal_is_softplus_to_the_last_digits(d: float) -> None:
    # torch's own default takes softplus(d) = d from 20 on, which is off by 2e-9
    exact = max(d, 0.0) + math.log1p(math.exp(-abs(d)))
    assert Diagonal(vector(d)).smallest_eigenvalue().item() == pytest.approx(exact, rel=4 * U)


def test_the_printed_form_is_softplus_of_d_plus_both_low_rank_products() -> None:
    d, V, W = randn(D, seed=0), randn(D, R, seed=1), randn(D, R, seed=2)
    expected = torch.diag(torch.log1p(torch.exp(d))) + V @ W.mT + W @ V.mT
    assert relative_error(LowRankPrinted(d, V, W).matrix(D), expected) <= ROUNDING


def test_a_small_low_rank_part_leaves_the_positive_definite_form_unshrunk() -> None:
    d, V, W = randn(D, seed=0), randn(D, R, seed=1, scale=0.1), randn(D, R, seed=2, scale=0.1)
    root = torch.diag(F.softplus(d).sqrt())
    expected = root @ (torch.eye(D) + V @ W.mT + W @ V.mT) @ root
    assert relative_error(LowRank(d, V, W).matrix(D), expected) <= ROUNDING


@each_kind
@pytest.mark.parametrize("heads", [False, True], ids=["shared", "per-head"])
def test_the_extreme_eigenvalues_are_those_of_the_matrix(kind: PreconditionerKind, heads: bool) -> None:
    P = per_head(kind) if heads and kind != "identity" else shared(kind)
    eigenvalues = torch.linalg.eigvals(P.matrix(D)).real  # of a general matrix: another algorithm than the code's
    assert torch.allclose(P.smallest_eigenvalue().double(), eigenvalues.amin(-1), rtol=0, atol=1e-13)
    assert torch.allclose(P.largest_eigenvalue().double(), eigenvalues.amax(-1), rtol=0, atol=1e-13)


# --- definiteness -------------------------------------------------------------------------------------


def test_the_printed_form_can_be_indefinite() -> None:
    P = LowRankPrinted(vector(0.0), vector(1.0)[:, None], vector(-1.0)[:, None])
    assert P.smallest_eigenvalue().item() == pytest.approx(math.log(2) - 2, rel=4 * U)
    assert P.smallest_eigenvalue().item() == pytest.approx(-1.3069, abs=5e-5)


def test_an_indefinite_preconditioner_ascends() -> None:
    P = LowRankPrinted(vector(0.0), vector(1.0)[:, None], vector(-1.0)[:, None])
    energy, x = scalar_interaction([[1.0]], [[1.0]]), token(1.0)
    path = Descent(preconditioner=P).trajectory(energy, x, energy.remember(x))
    assert path.states.flatten().tolist() == pytest.approx([1.0, -0.3069], abs=5e-5)
    assert path.energies.flatten().tolist() == pytest.approx([-1.0, 0.3069], abs=5e-5)


def test_the_positive_definite_form_of_the_same_parameters_is_positive() -> None:
    P = LowRank(vector(0.0), vector(1.0)[:, None], vector(-1.0)[:, None])
    # R = D = 1: the bound is attained, (1 - rho) softplus(0)
    assert P.smallest_eigenvalue().item() == pytest.approx(0.01 * math.log(2), rel=1e-12)


factors = st.tuples(st.integers(0, 10_000), st.sampled_from([0.0, 1e-200, 1e-8, 0.1, 1.0, 1e3]))


@given(
    d=st.tuples(st.integers(0, 10_000), st.sampled_from([0.0, 1.0, 10.0])),
    U_=factors,
    V_=factors,
    opposed=st.booleans(),
    dim=st.integers(1, 6),
    rank=st.integers(1, 3),
    rho=st.sampled_from([0.5, 0.99]),
)
def test_the_positive_definite_form_never_falls_below_its_bound(
    d: tuple[int, float],
    U_: tuple[int, float],
    V_: tuple[int, float],
    opposed: bool,
    dim: int,
    rank: int,
    rho: float,
) -> None:
    left, right = (randn(dim, rank, seed=seed, scale=scale) for seed, scale in (U_, V_))
    P = LowRank(randn(dim, seed=d[0], scale=d[1]), left, -left if opposed else right, rho)
    S = F.softplus(P.d)
    # P is S less at most rho S: both are rounded relative to |S|, and so are the eigenvalues
    assert P.smallest_eigenvalue() >= (1 - rho) * S.min() - 8 * (dim + rank) * U * S.max()


def test_without_shrinking_the_form_falls_below_its_bound() -> None:
    d, left = vector(0.0, 0.0), randn(2, 1, seed=0)
    unshrunk = math.log(2) * (torch.eye(2) - 2 * left @ left.mT)
    assert torch.linalg.eigvalsh(unshrunk)[0] < 0 < LowRank(d, left, -left).smallest_eigenvalue()


def rank_one_is_positive(d: Tensor, u: Tensor, v: Tensor) -> bool:
    """sqrt(a b) - c < 1 with a = u.S^-1 u, b = v.S^-1 v, c = u.S^-1 v: the exact test of the printed form."""
    S = F.softplus(d)
    a, b, c = ((left * right / S).sum() for left, right in ((u, u), (v, v), (u, v)))
    return bool((a * b).sqrt() - c < 1)


@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 2.0), dim=st.integers(1, 5))
def test_the_exact_test_of_rank_one_decides_the_printed_form(seed: int, scale: float, dim: int) -> None:
    d, u, v = randn(dim, seed=seed), randn(dim, seed=seed + 1, scale=scale), randn(dim, seed=seed + 2, scale=scale)
    smallest = LowRankPrinted(d, u[:, None], v[:, None]).smallest_eigenvalue().item()
    if abs(smallest) > 1e-12:
        assert rank_one_is_positive(d, u, v) == (smallest > 0)


# --- initial values -----------------------------------------------------------------------------------


def learned(kind: PreconditionerKind, init: InitKind, heads: bool) -> LearnedPreconditioner:
    config = PreconditionerConfig(kind, rank=R, per_head=heads, init=init)
    return LearnedPreconditioner(config, D, K, generator(0)).double()


@each_kind_per_head
@pytest.mark.parametrize(
    ("init", "scale"), [("paper", math.log1p(math.e)), ("identity", 1.0)], ids=["paper", "identity"]
)
@pytest.mark.parametrize("heads", [False, True], ids=["shared", "per-head"])
def test_p_starts_at_softplus_of_one_in_the_paper_and_at_one_for_identity(
    kind: PreconditionerKind, init: InitKind, scale: float, heads: bool
) -> None:
    matrix = learned(kind, init, heads)().matrix(D)
    # the parameter starts as a float32 number
    expected = (scale * torch.eye(D, dtype=torch.float64)).expand_as(matrix)
    assert (matrix - expected).abs().max() <= 2 * 2.0**-24


@each_kind_per_head
@pytest.mark.parametrize("heads", [False, True], ids=["shared", "per-head"])
def test_every_parameter_of_p_has_a_finite_gradient_at_the_start(kind: PreconditionerKind, heads: bool) -> None:
    module = learned(kind, "paper", heads)
    shape = (2, K, 4, D) if heads else (2, 4, D)
    loss = (module().apply(randn(*shape, seed=0)) * randn(*shape, seed=1)).sum()
    names, parameters = zip(*module.named_parameters(), strict=True)
    gradients = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    assert all(g.isfinite().all() for g in gradients.values())
    # V starts at zero, where U has no gradient yet
    assert {name for name, g in gradients.items() if g.any()} == set(names) - {"U"}


# --- one per head -------------------------------------------------------------------------------------


def test_positive_definite_preconditioners_per_head_can_ascend() -> None:
    energy, x = scalar_interaction([[2.0], [-1.0]], [[1.0], [1.0]]), token(1.0)
    P = Diagonal(vector(softplus_inverse(1.0), softplus_inverse(3.0))[:, None])
    assert (P.smallest_eigenvalue() > 0).all()
    for eta, after in ((1.0, 0.0), (0.01, -0.99)):
        path = Descent(step_size=eta, preconditioner=P).trajectory(energy, x, energy.remember(x))
        assert path.energies.flatten().tolist() == pytest.approx([-1.0, after], abs=1e-14)


def test_they_can_ascend_with_equal_traces_and_determinants_too() -> None:
    energy, x = scalar_interaction([[2.0, -1.0], [-1.0, 2.0]], [[1.0, 0.0], [1.0, 0.0]]), token(1.0, 0.0)
    one, three = softplus_inverse(1.0), softplus_inverse(3.0)
    P = Diagonal(torch.stack((vector(one, three), vector(three, one))))
    for eta, after in ((1.0, 1.0), (0.01, -0.98)):
        path = Descent(step_size=eta, preconditioner=P).trajectory(energy, x, energy.remember(x))
        assert path.energies.flatten().tolist() == pytest.approx([-1.0, after], abs=1e-14)


def test_equal_preconditioners_per_head_are_the_shared_one() -> None:
    energy, x, d = scalar_interaction([[2.0], [-1.0]], [[1.0], [1.0]]), token(1.0), vector(0.3)
    memory = energy.remember(x)
    per_head, shared = (Descent(preconditioner=Diagonal(p)) for p in (d.expand(2, 1), d))
    assert relative_error(per_head(energy, x, memory), shared(energy, x, memory)) <= ROUNDING
