"""Error budgets: what was derived stays as it was signed, and covers whatever order a sum is taken in."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import chdtri
from torch import Tensor

from cemverify.cem.activations import ACTIVATIONS, activation
from cemverify.cem.layers import MLPConfig, PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.oracle.budgets import Bounded, _sigma, energy_budget, output_budget, unit_roundoff
from cemverify.conformance.oracle.evidence import Comparison, judge
from cemverify.conformance.oracle.golden import energies_at, golden, products
from cemverify.conformance.properties import precision
from cemverify.conformance.questions.cases import Case, dense_case
from cemverify.power.bank import unit_by_unit
from suites.conformance import signed_budgets

SIGN = "if that was meant, sign them anew: python -m suites.conformance.signed_budgets"


def alike(figures: signed_budgets.Figures, signed: signed_budgets.Figures) -> bool:
    return all(
        signed[name] is None if value is None else value == pytest.approx(signed[name], rel=1e-9, abs=0)
        for name, value in figures.items()
    )


def test_budgets_are_as_they_were_signed() -> None:
    signed, computed = signed_budgets.on_file(), signed_budgets.figures()
    assert computed.keys() == signed.keys(), SIGN
    changed = {
        name: (signed[name], figures) for name, figures in computed.items() if not alike(figures, signed[name])
    }
    assert changed == {}, SIGN


FIXED = dict(signed_budgets.cases())
WHOLE = [name for name, case in FIXED.items() if case.x.shape == case.h.shape]  # as implementations are asked


@pytest.mark.parametrize("subject", [reference, unit_by_unit], ids=["reference", "unit by unit"])
@pytest.mark.parametrize("name", WHOLE)
def test_the_golden_answer_is_within_its_budget_of_two_independent_implementations(
    name: str, subject: Implementation
) -> None:
    case = FIXED[name]
    caller = Caller(subject, torch.float64)
    expected = golden(case)
    assert bool(((caller.output(case) - expected).abs() <= output_budget(case, torch.float64)).all())
    assert float((expected - case.x).abs().max()) > 0.01  # or there is nothing to compare
    if subject is reference and case.layer != "block":
        off = (caller.energy(case) - energies_at(case, case.x)).abs()
        assert bool((off <= energy_budget(case, case.x, torch.float64)).all())


def test_the_laws_of_low_precision_are_as_they_were_measured() -> None:
    laws = {"attention": precision._ATTENTION, "mlp": precision._MLP}
    assert laws == {
        "attention": {torch.float32: (4.0, 8.0), torch.bfloat16: (1.0, 2.0)},
        "mlp": {torch.float32: (16.0, 20.0), torch.bfloat16: (3.0, 4.0)},
    }


def one_after_the_other(x: Tensor, terms: Sequence[Tensor]) -> Tensor:
    for term in terms:
        x = x + term
    return x


def first_among_themselves(x: Tensor, terms: Sequence[Tensor]) -> Tensor:
    return x + one_after_the_other(terms[0], terms[1:])


def in_two_halves(x: Tensor, terms: Sequence[Tensor]) -> Tensor:
    half = len(terms) // 2
    return one_after_the_other(x, terms[:half]) + one_after_the_other(terms[half], terms[half + 1 :])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("add", [one_after_the_other, first_among_themselves, in_two_halves])
def test_steps_may_be_added_to_the_state_in_any_order(
    add: Callable[[Tensor, Sequence[Tensor]], Tensor], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for scale in (0.1, 1.0, 30.0):
        x = (scale * torch.randn(200, generator=generator, dtype=torch.float64)).to(dtype)
        terms = torch.randn(5, 200, generator=generator, dtype=torch.float64).to(dtype)
        arrays = [a.double().numpy() for a in (x, terms)]
        exact = [Bounded(a, np.zeros_like(a), unit_roundoff(dtype)) for a in arrays]
        bounded = exact[0].plus_terms(exact[1], 0)
        # what float64 itself rounds is not seen in float64, and so its sums are taken in integers
        right = _exactly(x, terms)
        for order in itertools.islice(itertools.permutations(range(5)), 0, None, 7):
            error = _apart(add(x, [terms[k] for k in order]), right)
            worst = max(worst, float((error.numpy() / bounded.error).max()))
    assert worst <= 1
    assert worst >= 0.2  # nor is it much more than that


def _exactly(x: Tensor, terms: Tensor) -> list[int]:
    return [sum(map(_integer, (first, *rest))) for first, *rest in zip(x.tolist(), *terms.tolist(), strict=True)]


def _apart(got: Tensor, right: Sequence[int]) -> Tensor:
    return torch.tensor(
        [abs(_integer(value) - exact) / 2.0**80 for value, exact in zip(got.tolist(), right, strict=True)],
        dtype=torch.float64,
    )


def _integer(value: float) -> int:
    """value 2^80, which is an integer for whatever is drawn here."""
    numerator, denominator = value.as_integer_ratio()
    return numerator * (2**80 // denominator)


def test_one_step_costs_one_rounding_of_the_result() -> None:
    u = unit_roundoff(torch.float32)
    x, term = (Bounded(value, np.zeros_like(value), u) for value in (np.array(3.0), np.array([2.0])))
    assert float(x.plus_terms(term, 0).error) == pytest.approx(5 * u, rel=1e-6)


def test_of_several_steps_every_rounding_but_the_last_is_of_the_largest_sum_there_may_be() -> None:
    u = unit_roundoff(torch.float32)
    x = Bounded(np.array(1.0), np.array(0.0), u)
    terms = np.array([2.0, -7.0, 3.0])  # sums between -7 and 6: the largest is of size 7
    bounded = x.plus_terms(x.of(terms), 0)
    assert float(bounded.value) == -1.0
    assert float(bounded.error) == pytest.approx((2 * 7 + 1) * u, rel=1e-6)


@pytest.mark.parametrize("features", [16, 64, 128])
def test_granting_every_hidden_unit_a_rounding_at_most_doubles_the_smallest_fault_that_bfloat16_shows(
    features: int,
) -> None:
    u, (whole, row) = unit_roundoff(torch.bfloat16), precision._MLP[torch.bfloat16]
    for seed in range(3):
        case = dense_case(MLPConfig(features, precision._FEW_UNITS), 2, 8, seed).to(torch.bfloat16).to(torch.float64)
        update = golden(case) - case.x
        each, together = precision._of_added_terms(case.x, precision._terms(case), u)
        size, rounding = update.norm(dim=-1), u * (case.x + update).norm(dim=-1)
        before, now = row * u * size + rounding, torch.maximum(row * u * size + rounding, each.hypot(row * u * size))
        assert float((now / size).min()) <= 2 * float((before / size).min())
        of_all = whole * u * update.norm()
        assert float(together.hypot(of_all)) <= 2 * float(of_all + rounding.norm())


def test_what_added_terms_may_err_by_covers_what_they_do_err_by_and_not_much_more() -> None:
    u, shares = unit_roundoff(torch.bfloat16), []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        x, terms = (torch.randn(n, 64, generator=generator).bfloat16() for n in (1, 30))
        moved = one_after_the_other(x, list(terms))
        exact = x.double() + terms.double().sum(0)
        _, bound = precision._of_added_terms(x.double()[None], terms.double()[None, None], u)
        shares.append(float((moved.double() - exact).norm() / bound))
    assert 0.5 < max(shares) <= 1


@pytest.mark.parametrize("freedom", [1, 2, 3, 16, 129, 4097, 10**6])
def test_the_quantile_of_sums_of_squares_is_that_of_chi_squared(freedom: int) -> None:
    assert precision._quantile(freedom) == pytest.approx(chdtri(freedom, 1e-9) / freedom, rel=1e-14)


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("kernel", ["oneDNN's", "torch's own"])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_an_activation_in_float32_leaves_a_quarter_of_its_room_unused(name: str, kernel: str) -> None:
    # GELU comes closest: the polynomials that libraries take for erf are off by up to 11 u where 1 + erf cancels
    z = torch.cat((torch.linspace(-12, 12, 200_001), torch.linspace(-100, 100, 50_001))).double().float().double()
    exact = Bounded(z.numpy(), np.zeros(z.shape), unit_roundoff(torch.float32))
    sigma = activation(name)
    with torch.backends.mkldnn.flags(enabled=kernel == "oneDNN's"):
        error = (sigma.sigma(z.float()).double() - sigma.sigma(z)).abs()
    assert bool((error.numpy() <= 0.75 * _sigma(sigma, exact).error).all())


def cases_of_an_mlp(seeds: int) -> Iterator[Case]:
    """States of sizes 1 to 1024: beside the largest, a step is nearly lost in the rounding of the state."""
    preconditioners = PreconditionerConfig(), PreconditionerConfig("diagonal"), PreconditionerConfig("low-rank")
    for seed, (name, steps) in itertools.product(range(seeds), itertools.product(ACTIVATIONS, (1, 2))):
        P = preconditioners[seed % 3]
        config = MLPConfig(16, 3, activation=name, steps=steps, norm="scalar", preconditioner=P)
        case = dense_case(config, 4, 16, seed)
        yield replace(case, x=4.0 ** (seed % 6) * case.x).to(torch.float32).to(torch.float64)


def room_used(case: Case) -> tuple[float, float]:
    """What the reference needs in float32: of its budget, and of what that leaves beside one rounding per step."""
    u = unit_roundoff(torch.float32)
    error = (Caller(reference, torch.float32).output(case) - golden(case)).abs()
    budget = output_budget(case, torch.float32)
    states = [golden(replace(case, config=replace(case.mlp, steps=t))) for t in range(1, case.mlp.steps + 1)]
    halves = sum(u * torch.exp2(torch.floor(torch.log2(x.abs()))) for x in states)  # half the spacing at each state
    return float((error / budget).max()), float((error - halves).clamp(min=0).div(budget - halves).max())


@pytest.mark.parametrize("seeds", [6, pytest.param(120, marks=pytest.mark.thorough)])
def test_a_margin_near_one_is_the_rounding_of_the_state_which_every_implementation_shares(seeds: int) -> None:
    margins, beyond = zip(*map(room_used, cases_of_an_mlp(seeds)), strict=True)
    assert max(margins) <= 1
    assert max(margins) > 0.9  # one rounding of a large state may take all that there is
    assert max(beyond) < 0.3  # and nothing else comes near


def test_a_sum_too_long_for_float32_has_no_bound() -> None:
    u = unit_roundoff(torch.float32)
    numbers = Bounded(np.array(1.0), np.array(0.0), u)
    assert numbers.summed(round(1.5 / u)) == numbers.gamma(1.5 / u) == math.inf
    assert 0 < numbers.summed(round(0.5 / u)) < math.inf


def test_a_margin_is_the_residual_over_its_budget_and_none_where_both_sides_agree() -> None:
    got, zero = torch.tensor([2.0, 1.0, 3.0]), torch.zeros(3)
    comparison = Comparison("got = expected", got, torch.tensor([2.0, 0.0, 5.0]), torch.tensor([0.0, 4.0, 4.0]))
    assert comparison.margins().tolist() == [0.0, 0.25, 0.5]
    assert comparison.margin == 0.5
    lost = Comparison("lost", torch.full((3,), math.nan), zero, zero + 1)
    assert judge(comparison, replace(comparison, got=8 * got), telling=False).worst.margin > 1
    assert judge(comparison, lost).worst is lost


@pytest.mark.parametrize("name", ["attention, diagonal shared", "MLP, norm folded", "attention, self-cross"])
def test_products_are_the_derivatives_of_the_golden_answer(name: str) -> None:
    case, generator, step = FIXED[name], torch.Generator().manual_seed(0), 1e-5
    cotangent, along = (torch.randn(case.x.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    derivatives = products(case, cotangent)
    assert derivatives.keys() == {"x", "h", *case.weights}
    ends = {
        "x": [replace(case, x=case.x + sign * step * along) for sign in (1, -1)],
        "h": [replace(case, h=case.h + sign * step * along) for sign in (1, -1)],
    }
    for array, (above, below) in ends.items():
        slope = float((cotangent * (golden(above) - golden(below))).sum()) / (2 * step)
        assert slope == pytest.approx(float((derivatives[array] * along).sum()), rel=1e-6)
