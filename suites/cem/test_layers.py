"""Layers and their parts: preconditioners, positions, growing caches; Algorithm 1 as printed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from cemverify.cem.activations import activation
from cemverify.cem.descent import Descent
from cemverify.cem.energies import Elementwise
from cemverify.cem.growing import append
from cemverify.cem.layers import AttentionConfig, CEMAttention, InitKind, LearnedPreconditioner, PreconditionerConfig
from cemverify.cem.llama import LlamaAttention, LlamaAttentionConfig
from cemverify.cem.positions import Rotary, alibi_slopes, printed_alibi
from cemverify.cem.preconditioners import Diagonal, Identity, LowRank, LowRankPrinted, PreconditionerKind
from cemverify.cem.printed import PrintedAlgorithm1
from suites.cem.helpers import ROUNDING, U, generator, randn, randomised, relative_error, vector

D, K = 8, 2


def attention(**options: Any) -> CEMAttention:
    return randomised(CEMAttention(AttentionConfig(D, K, **options), generator(0)), 0)


def test_cem_attention_is_llama_attention_with_tied_weights() -> None:
    llama, tied = (
        LlamaAttention(LlamaAttentionConfig(D, K, "alibi"), generator(0)).double(),
        attention(position="alibi"),
    )
    with torch.no_grad():
        for name, weight in (("W_Q", tied.W_Q), ("W_O", tied.W_Q), ("W_K", tied.W_K), ("W_V", tied.W_K)):
            llama.get_parameter(name).copy_(weight)
    h = randn(2, 5, D, seed=1)
    assert relative_error(tied(h), h + llama(h)[0]) <= ROUNDING


@pytest.mark.parametrize("per_head", [False, True], ids=["shared-P", "P-per-head"])
def test_the_printed_block_is_algorithm_1_line_by_line(per_head: bool) -> None:
    P = PreconditionerConfig("low-rank-printed", rank=2, per_head=per_head)
    layer = attention(diagonal="per-head", preconditioner=P, norm="channel", norm_eps=0.0, step_size=0.3, steps=2)
    assert layer.diagonal is not None
    gain, matrices = layer.norm.gain, layer.preconditioner().matrix(D).expand(K, D, D)
    h = F.rms_norm(randn(2, 5, D, seed=1), (D,), gain, 0.0)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    x = h
    for _ in range(2):
        u = F.rms_norm(x, (D,), gain, 0.0)  # the second normalisation
        delta = torch.zeros_like(h)
        for k in range(K):
            keys = h @ layer.W_K[k].mT
            scores = (u @ layer.W_Q[k].mT) @ keys.mT + (u * layer.diagonal[k]) @ h.mT
            weights = (scores / layer.config.tau).masked_fill(future, -math.inf).softmax(-1)
            delta = delta + (weights @ keys) @ layer.W_Q[k] @ matrices[k].mT  # no diagonal in the values
        x = x - 0.3 * delta
    # two steps
    assert relative_error(PrintedAlgorithm1(layer)(randn(2, 5, D, seed=1)), x) <= 2 * ROUNDING


DIM, RANK, HEADS = 5, 2, 3


def made(name: str, *heads: int) -> Any:
    """A random preconditioner, shared or one per head."""
    d, V, W = randn(*heads, DIM, seed=0), randn(*heads, DIM, RANK, seed=1), randn(*heads, DIM, RANK, seed=2)
    kinds: dict[str, Any] = {
        "identity": Identity(),
        "diagonal": Diagonal(d),
        "low-rank": LowRank(d, V, W),
        "low-rank-printed": LowRankPrinted(d, V, W),
    }
    return kinds[name]


KINDS: tuple[PreconditionerKind, ...] = ("identity", "diagonal", "low-rank", "low-rank-printed")


def test_a_small_low_rank_part_leaves_the_positive_definite_form_unshrunk() -> None:
    d, V, W = randn(DIM, seed=0), randn(DIM, RANK, seed=1, scale=0.1), randn(DIM, RANK, seed=2, scale=0.1)
    root = torch.diag(F.softplus(d).sqrt())
    expected = root @ (torch.eye(DIM) + V @ W.mT + W @ V.mT) @ root
    assert relative_error(LowRank(d, V, W).matrix(DIM), expected) <= ROUNDING


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [False, True], ids=["shared", "per-head"])
def test_the_extreme_eigenvalues_are_those_of_the_matrix(kind: PreconditionerKind, heads: bool) -> None:
    P = made(kind, HEADS) if heads else made(kind)
    eigenvalues = torch.linalg.eigvals(P.matrix(DIM)).real  # for general matrices, unlike the algorithm in the code
    assert torch.allclose(P.smallest_eigenvalue().double(), eigenvalues.amin(-1), rtol=0, atol=1e-13)
    assert torch.allclose(P.largest_eigenvalue().double(), eigenvalues.amax(-1), rtol=0, atol=1e-13)


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
    # P is S minus at most rho S: both are rounded relative to |S|, and so are the eigenvalues
    assert P.smallest_eigenvalue() >= (1 - rho) * S.min() - 8 * (dim + rank) * U * S.max()


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize(
    ("init", "scale"), [("paper", math.log1p(math.e)), ("identity", 1.0)], ids=["paper", "identity"]
)
@pytest.mark.parametrize("heads", [False, True], ids=["shared", "per-head"])
def test_p_starts_at_softplus_of_one_in_the_paper_and_at_one_for_identity(
    kind: PreconditionerKind, init: InitKind, scale: float, heads: bool
) -> None:
    config = PreconditionerConfig(kind, rank=RANK, per_head=heads, init=init)
    matrix = LearnedPreconditioner(config, DIM, HEADS, generator(0)).double()().matrix(DIM)
    # the parameter is first rounded to float32
    expected = (scale * torch.eye(DIM, dtype=torch.float64)).expand_as(matrix)
    assert (matrix - expected).abs().max() <= 2 * 2.0**-24


def test_a_preconditioner_per_head_needs_heads() -> None:
    energy, x = Elementwise(randn(7, 6, seed=0), randn(7, 6, seed=1), activation("silu")), randn(1, 2, 6, seed=0)
    with pytest.raises(TypeError, match="needs an energy with heads"):
        Descent(preconditioner=Diagonal(torch.zeros(2, 6).double()))(energy, x, energy.remember(x))


# As in the code of Press et al. (2022).
PRESS = {
    1: [2.0**-8],
    2: [2.0**-4, 2.0**-8],
    3: [2.0**-4, 2.0**-8, 2.0**-2],
    8: [2.0**-k for k in range(1, 9)],
    12: [*(2.0**-k for k in range(1, 9)), *(2.0**-k for k in (0.5, 1.5, 2.5, 3.5))],
}


def test_the_slopes_are_those_of_the_authors_of_alibi_and_the_printed_ones_at_eight_heads_only() -> None:
    assert {heads: alibi_slopes(heads) for heads in PRESS} == PRESS
    printed = {heads: printed_alibi(heads, vector(0.0)).slopes.tolist() for heads in PRESS}
    assert [heads for heads in PRESS if printed[heads] == PRESS[heads]] == [8]


def test_rotary_turns_feature_r_with_feature_r_plus_half_by_the_angle_of_its_plane() -> None:
    x, positions = randn(2, 4, 6, seed=0), torch.tensor([0, 1, 5, 300])
    # planes as complex numbers
    angle = positions[:, None] * 100.0 ** -(torch.arange(3, dtype=torch.float64) / 3)
    for inverse in (False, True):
        turn = torch.polar(torch.ones_like(angle), -angle if inverse else angle)
        expected = torch.complex(x[..., :3], x[..., 3:]) * turn
        turned = Rotary(100.0).rotate(x, positions, inverse=inverse)
        # an angle of i radians is off by u i
        assert relative_error(turned, torch.cat((expected.real, expected.imag), dim=-1)) <= ROUNDING + 300 * U


# --- a cache grows in place without affecting anybody who holds an earlier one ------------------------


def test_a_past_may_be_continued_in_two_ways_and_what_is_appended_later_disturbs_no_derivative() -> None:
    past = torch.arange(6.0).view(1, 3, 2)
    first, spare = append(past, torch.ones(1, 1, 2), 1, None)
    one, one_room = append(first, torch.full((1, 1, 2), 2.0), 1, spare)
    other, _ = append(first, torch.full((1, 1, 2), 3.0), 1, spare)
    assert torch.equal(first[:, :3], past)
    assert one[0, -1].tolist() == [2.0, 2.0]
    assert other[0, -1].tolist() == [3.0, 3.0]
    assert one_room is spare  # the first to continue keeps its place, the second gets new room
    weight = torch.ones(2, requires_grad=True)
    grown, spare = append(torch.zeros(1, 3, 2), torch.ones(1, 1, 2), 1, None)
    first = grown @ weight  # keeps the past for the backward pass
    append(grown, torch.ones(1, 1, 2), 1, spare)
    (product,) = torch.autograd.grad(first.sum(), weight)
    assert product.tolist() == [1.0, 1.0]
