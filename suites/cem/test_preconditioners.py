"""Preconditioners: what P is, when it is positive definite, and where it starts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from cemverify.cem.layers import InitKind, LearnedPreconditioner, PreconditionerConfig
from cemverify.cem.preconditioners import (
    Diagonal,
    Identity,
    LowRank,
    LowRankPrinted,
    Preconditioner,
    PreconditionerKind,
)
from suites.cem.helpers import ROUNDING, U, generator, randn, relative_error, vector

D, R, K = 5, 2, 3


def made(name: str, *heads: int) -> Preconditioner:
    """A random preconditioner, shared or one for each of the heads."""
    d, V, W = randn(*heads, D, seed=0), randn(*heads, D, R, seed=1), randn(*heads, D, R, seed=2)
    kinds: dict[str, Preconditioner] = {
        "identity": Identity(),
        "diagonal": Diagonal(d),
        "low-rank": LowRank(d, V, W),
        "low-rank-printed": LowRankPrinted(d, V, W),
    }
    return kinds[name]


KINDS: tuple[PreconditionerKind, ...] = ("identity", "diagonal", "low-rank", "low-rank-printed")
each_kind = pytest.mark.parametrize("kind", KINDS)
each_kind_per_head = pytest.mark.parametrize("kind", KINDS[1:])


# --- the matrix and its application -------------------------------------------------------------------


@each_kind
def test_applying_a_shared_preconditioner_is_multiplying_by_its_matrix(kind: PreconditionerKind) -> None:
    P, g = made(kind), randn(2, 4, D, seed=3)
    assert relative_error(P.apply(g), g @ P.matrix(D).mT) <= ROUNDING


@each_kind_per_head
def test_applying_one_per_head_multiplies_each_head_by_its_own_matrix(kind: PreconditionerKind) -> None:
    P, g = made(kind, K), randn(2, K, 4, D, seed=3)
    assert P.per_head
    assert relative_error(P.apply(g), torch.einsum("kde,bkje->bkjd", P.matrix(D), g)) <= ROUNDING


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
    P = made(kind, K) if heads else made(kind)
    eigenvalues = torch.linalg.eigvals(P.matrix(D)).real  # of a general matrix: another algorithm than the code's
    assert torch.allclose(P.smallest_eigenvalue().double(), eigenvalues.amin(-1), rtol=0, atol=1e-13)
    assert torch.allclose(P.largest_eigenvalue().double(), eigenvalues.amax(-1), rtol=0, atol=1e-13)


# --- definiteness -------------------------------------------------------------------------------------


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
    d: tuple[int, float], U_: tuple[int, float], V_: tuple[int, float], opposed: bool, dim: int, rank: int, rho: float
) -> None:
    left, right = (randn(dim, rank, seed=seed, scale=scale) for seed, scale in (U_, V_))
    P = LowRank(randn(dim, seed=d[0], scale=d[1]), left, -left if opposed else right, rho)
    S = F.softplus(P.d)
    # P is S less at most rho S: both are rounded relative to |S|, and so are the eigenvalues
    assert P.smallest_eigenvalue() >= (1 - rho) * S.min() - 8 * (dim + rank) * U * S.max()


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
