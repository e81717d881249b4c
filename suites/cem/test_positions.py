"""Positions: ALiBi, the self and cross biases, rotary turns."""

from __future__ import annotations

import pytest
import torch

from cemverify.cem.positions import Alibi, Rotary, SelfCross, alibi_slopes, printed_alibi
from suites.cem.helpers import ROUNDING, U, randn, relative_error, vector

# As the code of Press et al. (2022) gives them.
PRESS = {
    1: [2.0**-8],
    2: [2.0**-4, 2.0**-8],
    3: [2.0**-4, 2.0**-8, 2.0**-2],
    8: [2.0**-k for k in range(1, 9)],
    12: [*(2.0**-k for k in range(1, 9)), *(2.0**-k for k in (0.5, 1.5, 2.5, 3.5))],
}


@pytest.mark.parametrize("heads", PRESS)
def test_the_slopes_are_those_of_the_authors_of_alibi(heads: int) -> None:
    assert alibi_slopes(heads) == PRESS[heads]


def test_the_printed_slopes_are_theirs_at_eight_heads_only() -> None:
    printed = {heads: printed_alibi(heads, vector(0.0)).slopes.tolist() for heads in PRESS}
    assert [heads for heads in PRESS if printed[heads] == PRESS[heads]] == [8]


def test_alibi_needs_a_head() -> None:
    with pytest.raises(ValueError, match="at least one head, not 0"):
        alibi_slopes(0)


def test_alibi_penalises_distance_in_proportion_to_the_slope() -> None:
    positions = torch.arange(3)
    bias = Alibi(vector(0.5, 0.25))(positions, positions)
    assert bias[0].tolist() == [[0.0, -0.5, -1.0], [-0.5, 0.0, -0.5], [-1.0, -0.5, 0.0]]
    assert torch.equal(bias[1], bias[0] / 2)


def test_the_self_and_cross_biases_stand_on_and_off_the_diagonal() -> None:
    bias = SelfCross(vector(1.0, 2.0), vector(-1.0, -2.0))(torch.tensor([1, 2]), torch.tensor([0, 1, 2]))
    assert bias.tolist() == [[[-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]], [[-2.0, 2.0, -2.0], [-2.0, -2.0, 2.0]]]


# --- rotary -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [100.0, 10_000.0])
def test_rotary_turns_feature_r_with_feature_r_plus_half_by_the_angle_of_its_plane(base: float) -> None:
    x, positions = randn(2, 4, 6, seed=0), torch.tensor([0, 1, 5, 300])
    # the plane as complex numbers
    angle = positions[:, None] * base ** -(torch.arange(3, dtype=torch.float64) / 3)
    for inverse in (False, True):
        turn = torch.polar(torch.ones_like(angle), -angle if inverse else angle)
        expected = torch.complex(x[..., :3], x[..., 3:]) * turn
        turned = Rotary(base).rotate(x, positions, inverse=inverse)
        # an angle of i radians is off by u i
        assert relative_error(turned, torch.cat((expected.real, expected.imag), dim=-1)) <= ROUNDING + 300 * U
    assert torch.equal(Rotary(base).rotate(x, positions)[:, 0], x[:, 0])  # position zero is not turned


def test_angles_are_not_computed_in_bfloat16() -> None:
    # bfloat16 holds 256 and 258 but not 257
    x, positions = torch.ones(2, 4, dtype=torch.bfloat16), torch.tensor([257, 256])
    exact = Rotary().rotate(x.double(), positions)
    assert (Rotary().rotate(x, positions).double() - exact).abs().max() <= 4 * 2.0**-8


def test_an_odd_head_dimension_cannot_be_turned() -> None:
    with pytest.raises(ValueError, match="the head dimension is 3, which is odd"):
        Rotary().rotate(randn(1, 3, seed=0), torch.tensor([0]))
