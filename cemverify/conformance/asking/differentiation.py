"""Vector-Jacobian products of an implementation, by torch's or JAX's differentiation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import experiment, shapes
from cemverify.conformance.implementations.faults import NotFinite
from cemverify.conformance.questions.cases import Case


@experiment(lambda asked: (asked.cotangent.shape, shapes(_arrays(asked.case, asked.name))))
def products(caller: Caller, case: Case, cotangent: Tensor, name: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Calls a function with gradients recorded; returns its output and the products with the cotangent.

    Args:
        cotangent: of the output's shape: (B, J, D), or (B, J) for an energy.

    Returns:
        The products by name: x, h (some functions take no x) and every weight; zeros if no gradient arrives.

    Raises:
        Fault: there is no output or no product to compare.
    """
    x, h, weights = caller.arguments(case)
    arrays = {"h": h, **weights} if name in ("block", "decode") else {"x": x, "h": h, **weights}

    def layer(given: dict[str, Any]) -> Any:
        states = [given[state] for state in ("x", "h") if state in given]
        return caller.functions[name](*states, {weight: given[weight] for weight in weights}, case.config)

    with torch.enable_grad(), caller.guarded():
        answer, pulled = caller.kind.pulled(layer, arrays, caller.array(cotangent))
        result = as_tensor(answer, cotangent.shape)
        found = {array: as_tensor(product, as_tensor(arrays[array]).shape) for array, product in pulled.items()}
    for array, product in found.items():
        if not bool(product.isfinite().all()):
            raise NotFinite(f"the gradient with respect to {array} is NaN or infinite")
    return result, found


def _arrays(case: Case, name: str) -> dict[str, Tensor]:
    """What a function is differentiated in."""
    states = {"h": case.h} if name in ("block", "decode") else {"x": case.x, "h": case.h}
    return {**states, **case.weights}
