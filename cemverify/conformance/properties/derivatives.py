"""Derivatives of answers: Jacobians by differences, and vector-Jacobian products compared with the golden ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cemverify.cem.activations import ACTIVATIONS
from cemverify.conformance.asking import extrapolation
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.differentiation import Products, incoming_to, products
from cemverify.conformance.asking.patience import refuse_slow
from cemverify.conformance.implementations.arrays import all_finite
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.oracle import golden
from cemverify.conformance.oracle.budgets import output_budget, unit_roundoff
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, moved, unchanged_but
from cemverify.conformance.oracle.functions import Function
from cemverify.conformance.oracle.golden import golden_update
from cemverify.conformance.oracle.perturbation import TRIALS, allowance, distances, distances_between, shaken
from cemverify.conformance.oracle.remembering import remembered
from cemverify.conformance.questions.cases import Case

# Two step sizes: if the function is smooth, their results differ by far more than the truncation error of the
# extrapolated one; at a kink the difference is of the size of that error.
_WIDTH = 2.0**-8
# for cases whose whole Jacobian is found by differences: J D columns, each from several calls
FEW_COORDINATES = {"J": (3, 2, 5, 8), "D": (4, 7, 3), "K": (1, 3, 2, 5, 4), "M": (5, 3, 8)}


def jacobian(caller: Caller, case: Case) -> tuple[Tensor, Tensor]:
    """d update / d x over all coordinates of every batch row, memory fixed, and a bound on its error.

    Returns:
        (B, n, n) with n = J D, and the bound of the same shape.
    """
    return _of_update(lambda moved: caller.output(moved) - moved.x, case, caller.dtype)


def golden_jacobian(case: Case) -> tuple[Tensor, Tensor]:
    """The Jacobian of the golden update in x, one step, memory fixed, and a bound on its error: (B, n, n) each."""
    return _of_update(lambda moved: golden_update(moved, moved.x), case, torch.float64)


def _of_update(update: Callable[[Case], Tensor], case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The Jacobian of an update in its x, by extrapolated central differences, and a bound of the same shape."""

    def of_states(at: Tensor) -> Tensor:  # (rows * B, J D), each row by itself
        rows, x = at.shape[0] // case.x.shape[0], at.reshape(-1, *case.x.shape[1:])
        return update(Case(case.config, x, case.h.repeat(rows, 1, 1), case.weights))

    noise = output_budget(case, dtype).flatten(1).amax(1)  # (B,)
    value, bound = extrapolation.jacobian(of_states, case.x.flatten(1), _WIDTH, noise)
    return value, bound[:, None, None].expand_as(value)


def untied(n: int) -> Tensor:
    """A fixed, clearly asymmetric matrix that stands for an untied output projection."""
    return torch.eye(n, dtype=torch.float64) + torch.diag(torch.arange(1.0, n, dtype=torch.float64), 1)


# without ReLU, whose derivative at zero is not defined
SMOOTH = tuple(name for name in ACTIVATIONS if name != "relu")
# with these, numbers or the bounds on their roundoff grow from step to step
GROWING = frozenset({"relu2", "scalar", "channel", "folded"})
LEAST_EXPONENT = -700.0  # its exponential is a normal number of float64
Asking = Callable[[Caller, Case, Tensor, str, Sequence[str] | None], Products]


def products_are_right(
    caller: Caller,
    case: Case,
    function: Function,
    recorded: tuple[str, ...] | None = None,
    ask: Asking = products,
    slack: float = 0.0,
) -> Evidence:
    """Outputs and vector-Jacobian products compared with the golden ones.

    Args:
        recorded: the only arrays that record gradients, by name; None for all. ask: the experiment that calls it.
        slack: how far off an output may be besides roundoff.
    """
    case, name = function.question(case, caller.dtype), function.name
    _refuse_kinks(case)
    refuse_slow(lambda caller, case: ask(caller, case, function.expected(case), name, recorded)[0], caller, case)
    exact, allowed = function.expected(case), function.tolerance(case, caller.dtype) + slack
    lies, laid_out = incoming_to(caller, case)
    cotangent = laid_out(_cotangent(exact).to(caller.dtype).double()).contiguous()
    expected = _expected_products(case, cotangent, function)
    if not all(map(all_finite, expected.values())):
        # the root of softplus(d) has no derivative where softplus(d) underflows
        raise Discard("a vector-Jacobian product of the reference descent is not finite")
    answer, got, changed = ask(caller, case, cotangent, name, recorded)
    tolerances = _tolerances(case, cotangent, function, caller.dtype, got)
    alone = f", where only {', '.join(recorded)} record{'s' * (len(recorded) == 1)} gradients" if recorded else ""
    at = alone if lies == "contiguous" else f"{alone}, from an incoming gradient that is {lies}"
    compared = [
        Comparison(
            Compared.PRODUCT(f"vector-Jacobian product with respect to {key}{at}", key),
            product,
            expected[key],
            tolerances[key],
        )
        for key, product in got.items()
    ]
    output = Comparison(f"output with gradients recorded{alone}", answer, exact, allowed)
    left_alone = unchanged_but(changed, f"its arguments stay as they are{alone}")
    return Evidence.of(
        output, *compared, left_alone, telling=all(moved(expected[key], tolerances[key]) for key in got)
    )


@remembered
def _expected_products(case: Case, cotangent: Tensor, function: Function) -> dict[str, Tensor]:
    """The golden products."""
    return golden.products(case, cotangent, function.expected)


def _tolerances(
    case: Case, cotangent: Tensor, function: Function, dtype: torch.dtype, got: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """By how much these products may differ from the golden ones.

    Each trial can only raise a bound. No further trial is made once the products keep to it, because most of the time
    of a question would go into the trials.
    """
    expected, unit = _expected_products(case, cotangent, function), unit_roundoff(dtype)
    batch, tokens, _ = case.h.shape
    longest = max(tokens, *(n for w in case.weights.values() for n in w.shape)) * _heads(case)
    # a product with respect to a weight is a sum over all rows
    terms = {name: longest if name in ("x", "h") else max(longest, batch * tokens) for name in expected}
    # below this, roundoff would no longer be a normal number: exp(-z) overflows, products underflow
    least = torch.finfo(dtype).tiny / unit
    trials, values = list[dict[str, Tensor]](), expected
    while True:
        allowed = {name: bound + least for name, bound in allowance(values, trials, terms, unit).items()}
        if len(trials) > TRIALS or all(
            product.shape != expected[name].shape or bool(((product - expected[name]).abs() <= allowed[name]).all())
            for name, product in got.items()
        ):
            return allowed
        trials.append(_moved(case, cotangent, function, len(trials)))
        if len(trials) > TRIALS:  # what cancels in the sum is rounded at its own size
            other = _expected_products(case, with_other_signs(cotangent), function)
            values = {name: torch.stack((expected[name], other[name])) for name in expected}


@remembered
def _moved(case: Case, cotangent: Tensor, function: Function, trial: int) -> dict[str, Tensor]:
    """How far the golden products move in one trial: the first perturbs only the inputs, later ones every operand.

    In the last one the numbers of the incoming gradient have other signs. The products are sums over them. What
    cancels in one sum of the golden answer leaves no trace of its size there. An implementation may split that into
    several sums over all rows, in each of which it cancels with a rounding of its own.
    """
    cotangent = with_other_signs(cotangent) if trial == TRIALS else cotangent
    exact = _expected_products(case, cotangent, function)
    if trial == 0:
        generator = torch.Generator().manual_seed(0)
        weights = {name: shaken(w, generator) for name, w in case.weights.items()}
        inputs = replace(case, weights=weights).with_states(lambda states: shaken(states, generator))
        return distances_between(golden.products(inputs, cotangent, function.expected), exact)
    return distances(partial(golden.products, case, cotangent, function.expected), exact, trial - 1)


def _cotangent(answer: Tensor) -> Tensor:
    """A vector of many magnitudes, without zeros or symmetries, determined by the shape."""
    number = torch.arange(answer.numel(), dtype=torch.float64)
    return (torch.cos(1.0 + 2.0 * number) * 2.0 ** (number % 11 - 5)).reshape(answer.shape)


def with_other_signs(cotangent: Tensor) -> Tensor:
    """The vector with the sign of every number drawn at random."""
    return cotangent * (1.0 - 2.0 * torch.randint(2, cotangent.shape, generator=torch.Generator().manual_seed(0)))


def _heads(case: Case) -> int:
    return int(case.weights["W_Q"].shape[0]) if "W_Q" in case.weights else 1


def _refuse_kinks(case: Case) -> None:
    if case.layer == "mlp" and case.mlp.activation == "relu":
        z = torch.einsum("bjd,md->bjm", golden.norm_into(case, case.x), case.weights["V"])
        if bool((z.abs() < 1e-9).any()):
            raise Discard("a pre-activation lies at the kink of ReLU, where its derivative is not defined")
