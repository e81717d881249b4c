"""Gradients of the update with respect to parameters, state and memory, as training needs them."""

from __future__ import annotations

from dataclasses import replace

import torch

from cemverify.conformance.asking.boxes import (
    Box,
)
from cemverify.conformance.asking.experiments import check, shapes
from cemverify.conformance.asking.parameters import parameters_of
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.oracle.evidence import Evidence
from cemverify.conformance.properties.explanations import Explanation
from cemverify.conformance.properties.layers.base import Cases, states
from cemverify.conformance.properties.layers.products import (
    Leaves,
    both_products,
    cotangents,
    products_are_equal,
    update_and_descent,
)
from cemverify.conformance.questions.black_boxes import Named, Question, wears

_NEEDS = {"energy", "gradient-step", "autograd", "gradients", "known-preconditioner"}
_TRAINS = Explanation(
    formula="v^T d x'/dw = v^T d(x - eta P dE/dg)/dw",
    why="A forward pass can be right and its derivative wrong: a detached tensor, a custom backward. The layer then "
    "trains on gradients of something else.",
)
_LOUD = (1.0, 1.0, 2.0**10, 1.0, 2.0**-10)  # the size of the incoming gradient, in turn
_BY = (4.0, None, 0.25)  # factors on the parameters, in turn; None for one each


@states(
    "training/layer/parameters",
    claim="Gradients of the update with respect to the parameters are those of -eta P dE/dg.",
    **_TRAINS,
    premise="some gradient is not zero",
    needs={*_NEEDS, "parameters"},
    cases=Cases(long=5, many=9),
    looks_around=True,
)
def parameters_get_their_gradient(box: Box, q: Question) -> Evidence:
    return _pulled_back(box, q, of_parameters=True)


@states(
    "training/layer/states",
    claim="Gradients of the update with respect to the state and the memory are those of -eta P dE/dg.",
    **_TRAINS,
    premise="some gradient is not zero",
    needs=_NEEDS,
    cases=Cases(plain=True, sometimes=("exploding-states", "zero-states", "zero-memory"), long=5, many=9),
    looks_around=True,
)
def states_get_their_gradient(box: Box, q: Question) -> Evidence:
    return _pulled_back(box, q, of_parameters=False)


@states(
    "training/layer/other-parameters",
    claim="With other parameter values, the update is -eta P times the gradient of the energy with those values.",
    formula="u(x, m; w') = -eta P dE/dg(g, m; w') after a call with w",
    why="Training moves parameters to where the layer was never tried: a limit on their size, or something that "
    "is kept of their earlier values, shows only there.",
    premise="the update is not zero",
    needs={*_NEEDS, "parameters"},
    once=True,  # effects of earlier values need not recur
)
def other_parameters_are_read(box: Box, q: Question) -> Evidence:
    q, values = replace(q, noise={}), box.allowed(_varied(parameters_of(box), q.seed))
    got, descents = update_and_descent(box, q, values)
    if not all(bool(array.isfinite().all()) for array in descents.values()):
        raise Discard("with these parameters the energy's gradient is not finite")
    claim = "update of {name} with other parameters = -eta P grad energy with them"
    return products_are_equal(box, q, claim, got, descents)


def _varied(values: Named, seed: int) -> Leaves:
    """Parameters times positive numbers, because it is not known which of them may change sign."""
    if by := _BY[seed % len(_BY)]:
        return {name: by * value for name, value in values.items()}
    generator = torch.Generator().manual_seed(seed % 2**31)
    return {
        name: value * torch.exp2(2 * torch.rand(value.shape, generator=generator, dtype=value.dtype) - 1)
        for name, value in values.items()
    }


def _pulled_back(box: Box, q: Question, *, of_parameters: bool) -> Evidence:
    cotangent = cotangents(q, _LOUD[q.seed % len(_LOUD)])
    products = both_products(box, q, cotangent, of_parameters=of_parameters)
    if products is None:
        raise Discard("no gradient, or none that is finite and continuous, flows through the energy")
    got, descents = products
    check(got, shapes(descents))
    if not of_parameters:
        got, descents = (box.along_all(q, part) for part in (got, descents))
    # the relative error of an exponential of squares of such states is the roundoff of these squares
    far = max(float(a.abs().max()) for a in q.x.values()) if wears(q, "exploding-states") else 1.0
    return products_are_equal(box, q, "gradient with respect to {name}", got, descents, *cotangent, far=far)
