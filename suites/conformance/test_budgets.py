"""Error budgets: derived budgets stay as in their file, and cover sums taken in any order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from cemverify.cem.activations import ACTIVATIONS, activation
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.extrapolation import extrapolated, jacobian
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.plain import Plain
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging import engine
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.oracle.budgets import Bounded, _sigma, energy_budget, output_budget, unit_roundoff
from cemverify.conformance.oracle.evidence import Comparison, Evidence
from cemverify.conformance.oracle.golden import energies_at, golden, products
from cemverify.conformance.oracle.perturbation import Perturbed
from cemverify.conformance.oracle.relations import relation_budget
from cemverify.conformance.oracle.remembering import remembered, remembering
from cemverify.conformance.properties import precision
from cemverify.conformance.questions.cases import Case, dense_case
from cemverify.power.bank import unit_by_unit
from suites.conformance import signed_budgets
from suites.kit.examples import README_MISTAKEN, defined
from suites.kit.judging import judged

SIGN = "if that was meant, sign them anew: python -m suites.conformance.signed_budgets"


def alike(case: str, figures: signed_budgets.Figures, signed: signed_budgets.Figures) -> bool:
    # the measured quantity is a difference of 2**-36, in which each rounding is one part in 2**17
    rel = 64 * 2.0**-17 if case.startswith("measured") else 1e-9
    return all(
        signed[name] is None if value is None else value == pytest.approx(signed[name], rel=rel, abs=0)
        for name, value in figures.items()
    )


def test_budgets_are_as_they_were_signed_and_the_laws_of_low_precision_as_they_were_measured() -> None:
    signed, computed = signed_budgets.on_file(), signed_budgets.figures()
    assert computed.keys() == signed.keys(), SIGN
    assert [(name, signed[name], f) for name, f in computed.items() if not alike(name, f, signed[name])] == [], SIGN
    assert {torch.float32: (4.0, 8.0), torch.bfloat16: (1.0, 2.0)} == precision._ATTENTION
    assert {torch.float32: (16.0, 20.0), torch.bfloat16: (3.0, 4.0)} == precision._MLP


FIXED = dict(signed_budgets.cases())
WHOLE = [name for name, case in FIXED.items() if case.x.shape == case.h.shape]  # as in questions to implementations


@pytest.mark.parametrize("subject", [reference, unit_by_unit], ids=["reference", "unit by unit"])
@pytest.mark.parametrize("name", WHOLE)
def test_the_golden_answer_is_within_its_budget_of_two_others(name: str, subject: Implementation) -> None:
    case = FIXED[name]
    caller = Caller(subject, torch.float64)
    expected = golden(case)
    assert bool(((caller.output(case) - expected).abs() <= output_budget(case, torch.float64)).all())
    assert float((expected - case.x).abs().max()) > 0.01  # otherwise there is nothing to compare
    if subject is reference and case.layer != "block":
        off = (caller.energy(case) - energies_at(case, case.x)).abs()
        assert bool((off <= energy_budget(case, case.x, torch.float64)).all())


def one_after_the_other(x: Tensor, terms: Sequence[Tensor]) -> Tensor:
    for term in terms:
        x = x + term
    return x


def in_two_halves(x: Tensor, terms: Sequence[Tensor]) -> Tensor:
    half = len(terms) // 2
    return one_after_the_other(x, terms[:half]) + one_after_the_other(terms[half], terms[half + 1 :])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "add", [one_after_the_other, lambda x, terms: x + one_after_the_other(terms[0], terms[1:]), in_two_halves]
)
def test_steps_may_be_added_to_the_state_in_any_order(add: Callable[..., Tensor], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for scale in (0.1, 1.0, 30.0):
        x = (scale * torch.randn(200, generator=generator, dtype=torch.float64)).to(dtype)
        terms = torch.randn(5, 200, generator=generator, dtype=torch.float64).to(dtype)
        arrays = [a.double().numpy() for a in (x, terms)]
        exact = [Bounded(a, np.zeros_like(a), unit_roundoff(dtype)) for a in arrays]
        bounded = exact[0].plus_terms(exact[1], 0)
        # float64 cannot show its own rounding, so sums are taken in integers
        right = [sum(map(_integer, numbers)) for numbers in zip(x.tolist(), *terms.tolist(), strict=True)]
        for order in itertools.islice(itertools.permutations(range(5)), 0, None, 7):
            got = add(x, [terms[k] for k in order]).tolist()
            error = np.array([abs(_integer(value) - sum_) / 2.0**80 for value, sum_ in zip(got, right, strict=True)])
            worst = max(worst, float((error / bounded.error).max()))
    assert 0.2 <= worst <= 1  # nor is the budget much too large


def _integer(value: float) -> int:
    """value 2^80, an integer for all values drawn here."""
    numerator, denominator = value.as_integer_ratio()
    return numerator * (2**80 // denominator)


@pytest.mark.parametrize("largest", [1.0, 30.0], ids=["alike", "one coordinate errs most"])
def test_what_added_terms_may_err_by_covers_what_they_do_err_by_and_not_much_more(largest: float) -> None:
    u, shares = unit_roundoff(torch.bfloat16), []
    for seed in range(300):
        generator = torch.Generator().manual_seed(seed)
        x, terms = (torch.randn(n, 64, generator=generator) for n in (1, 30))
        x[:, 0], terms[:, 0] = largest * x[:, 0], largest * terms[:, 0]
        x, terms = x.bfloat16(), terms.bfloat16()
        moved = one_after_the_other(x, list(terms))
        exact = x.double() + terms.double().sum(0)
        _, bound = precision._of_added_terms(x.double()[None], terms.double()[None, None], u)
        shares.append(float((moved.double() - exact).norm() / bound))
    assert 1 / 3 < max(shares) <= 1


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("kernel", ["oneDNN's", "torch's own"])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_an_activation_in_float32_leaves_a_quarter_of_its_room_unused(name: str, kernel: str) -> None:
    # GELU comes closest: libraries' polynomials for erf have errors up to 11 u where 1 + erf cancels
    z = torch.cat((torch.linspace(-12, 12, 200_001), torch.linspace(-100, 100, 50_001))).double().float().double()
    exact = Bounded(z.numpy(), np.zeros(z.shape), unit_roundoff(torch.float32))
    sigma = activation(name)
    with torch.backends.mkldnn.flags(enabled=kernel == "oneDNN's"):
        error = (sigma.sigma(z.float()).double() - sigma.sigma(z)).abs()
    assert bool((error.numpy() <= 0.75 * _sigma(sigma, exact).error).all())


@pytest.mark.parametrize("seeds", [6, pytest.param(120, marks=pytest.mark.thorough)])
def test_a_margin_near_one_is_the_rounding_of_the_state_which_every_implementation_shares(seeds: int) -> None:
    """In float32, at states of sizes 1 to 1024; for the largest, a step is nearly lost in that rounding."""
    preconditioners = PreconditionerConfig(), PreconditionerConfig("diagonal"), PreconditionerConfig("low-rank")
    u, margins, beyond = unit_roundoff(torch.float32), [], []
    for seed, name, steps in itertools.product(range(seeds), ACTIVATIONS, (1, 2)):
        P = preconditioners[seed % 3]
        config = MLPConfig(16, 3, activation=name, steps=steps, norm="scalar", preconditioner=P)
        case = dense_case(config, 4, 16, seed)
        case = replace(case, x=4.0 ** (seed % 6) * case.x).to(torch.float32).to(torch.float64)
        error = (Caller(reference, torch.float32).output(case) - golden(case)).abs()
        budget = output_budget(case, torch.float32)
        states = [golden(replace(case, config=replace(config, steps=t))) for t in range(1, steps + 1)]
        halves = sum(u * torch.exp2(torch.floor(torch.log2(x.abs()))) for x in states)  # half the spacing there
        margins.append(float((error / budget).max()))
        beyond.append(float((error - halves).clamp(min=0).div(budget - halves).max()))
    assert max(margins) <= 1
    assert max(margins) > 0.9  # one rounding of a large state may use the whole budget
    assert max(beyond) < 0.3  # all else stays far below


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_taken_apart_and_stays_what_it_is(approximate: str) -> None:
    z = torch.linspace(-6, 6, 25, dtype=torch.float64, requires_grad=True)

    def gelu() -> tuple[Tensor, Tensor]:
        value = torch.nn.functional.gelu(z, approximate=approximate)
        return value, torch.autograd.grad(value.sum(), z)[0]

    with Perturbed(torch.Generator(), size=0.0):
        apart = gelu()
    torch.testing.assert_close(apart, gelu(), rtol=0, atol=1e-15)


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
    assert Evidence.of(comparison, replace(comparison, got=8 * got), telling=False).worst.margin > 1
    assert Evidence.of(comparison, lost).worst is lost


@pytest.mark.parametrize("name", ["attention, diagonal shared", "MLP, norm folded", "attention, self-cross"])
def test_products_are_the_derivatives_of_the_golden_answer(name: str) -> None:
    case, generator, step = FIXED[name], torch.Generator().manual_seed(0), 1e-5
    cotangent, along = (torch.randn(case.x.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    derivatives = products(case, cotangent)
    assert derivatives.keys() == {"x", "h", *case.weights}
    for array, at in (("x", case.x), ("h", case.h)):
        above, below = (replace(case, **{array: at + sign * step * along}) for sign in (1, -1))  # type: ignore[arg-type]
        slope = float((cotangent * (golden(above) - golden(below))).sum()) / (2 * step)
        assert slope == pytest.approx(float((derivatives[array] * along).sum()), rel=1e-6)


@pytest.mark.parametrize("step", [2.0**-3, 2.0**-8, 2.0**-16, 2.0**-26])
def test_the_error_of_a_smooth_function_is_within_its_estimate(step: float) -> None:
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    noise = torch.full_like(x, 4 * torch.finfo(x.dtype).eps)
    value, error = extrapolated(lambda h: ((x + h).sin().exp() - (x - h).sin().exp()) / (2 * h), step, noise)
    off = (value - x.cos() * x.sin().exp()).abs()
    assert bool((off <= error).all())
    assert float(error.max()) < max(40 * step**2, 20 * float(noise[0]) / step), "and it is no more than that"


def test_a_jacobian_has_a_row_for_each_output_and_at_a_kink_the_mean_of_two_slopes_off_by_their_jump() -> None:
    A, at = torch.arange(6, dtype=torch.float64).reshape(2, 3), torch.ones(4, 3, dtype=torch.float64)
    # (rows * B, 3) -> (rows * B, 2)
    J, error = jacobian(lambda rows: rows @ A.mT, at, 0.25, torch.zeros(4, dtype=torch.float64))
    assert torch.equal(J, A.expand(4, 2, 3))
    assert error.tolist() == [0.0] * 4
    at = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    J, error = jacobian(torch.relu, at, 2.0**-8, torch.zeros(1, dtype=torch.float64))
    assert J.tolist() == [[[0.5, 0.0], [0.0, 1.0]]]
    assert error.tolist() == [1.0]


@pytest.mark.parametrize("relation", ["head-order", "causality", "batch-independence"])
def test_a_faulty_layer_keeps_the_relations_that_it_obeys(relation: str) -> None:
    record = judged(defined(README_MISTAKEN), f"structure/attention/{relation}")
    assert record.verdict == Verdict.HOLDS, record.reason


def test_for_a_right_layer_the_bound_is_its_budget() -> None:
    case = dense_case(AttentionConfig(6, 2, head_dim=3, temperature=1.0), 2, 5, 1)
    answer = Caller(reference).output(case)
    bound, budget = relation_budget(case, answer, torch.float64), output_budget(case, torch.float64)
    torch.testing.assert_close(bound, budget, rtol=1e-9, atol=0.0)


CASE = dense_case(AttentionConfig(dim=4, heads=2, head_dim=2), 1, 3, seed=0)


def test_a_case_is_computed_once_and_anew_for_other_numbers_or_arrays_that_lie_otherwise() -> None:
    case, computed = CASE, list[Case]()

    @remembered
    def answer(case: Case, scale: float) -> Tensor:
        computed.append(case)
        return scale * case.x

    with remembering():
        first = answer(case, 2.0)
        assert answer(case.to(torch.float64), 2.0) is first
        answer(case, 3.0)
        answer(case.to(torch.float32), 2.0)
        answer(case.having(steps=2), 2.0)
        answer(replace(case, x=case.x + 1), 2.0)
        answer(replace(case, h=case.x), 2.0)
        answer(replace(case, h=case.x.clone()), 2.0)  # other matrix products, because x and h are two arrays
        answer(replace(case, weights={**case.weights, "W_K": case.weights["W_Q"]}), 2.0)
        assert len(computed) == 8
    answer(case, 2.0)
    assert len(computed) == 9
    apart = replace(case, x=case.x.mT.contiguous().mT)
    assert torch.equal(apart.x, case.x)
    assert apart.x.stride() != case.x.stride()
    with remembering():
        assert golden(case) is golden(case)
        assert golden(apart) is not golden(case)


@pytest.mark.parametrize("name", ["gradient/{}/plain", "training/{}/plain", "descent/{}/along-steps"])
def test_what_is_remembered_changes_no_record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = []
    for remember in (remembering, nullcontext):
        monkeypatch.setattr(engine, "remembering", remember)
        records.append({**judged(Plain().subject(), name.format("attention"), examples=15).describe(), "seconds": 0})
    assert records[0] == records[1]


def test_what_autograd_or_a_dispatch_mode_watches_is_computed() -> None:
    case, cotangent = CASE, torch.ones_like(CASE.x)
    expected = products(case, cotangent)
    with remembering():
        exact = golden(case)
        with Perturbed(torch.Generator().manual_seed(0)):
            assert not torch.equal(golden(case), exact)
        remembered_products = products(case, cotangent)
    assert all(torch.equal(remembered_products[name], product) for name, product in expected.items())
