"""Vector-Jacobian products of an implementation, by torch's or JAX's differentiation."""

from __future__ import annotations

import importlib
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

    pull = _pulled_by_jax if caller.subject.arrays == "jax" else _pulled_by_torch
    with torch.enable_grad(), caller.guarded():
        answer, pulled = pull(layer, arrays, caller.array(cotangent))
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


def _pulled_by_torch(layer: Any, arrays: dict[str, Tensor], cotangent: Tensor) -> tuple[Any, dict[str, Any]]:
    leaves = {name: array.detach().requires_grad_() for name, array in arrays.items()}
    answer = layer(leaves)
    zeros = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    if not (isinstance(answer, Tensor) and answer.requires_grad and answer.shape == cotangent.shape):
        return answer, zeros
    # another answer before the first is pulled back, as two uses in one graph make: what is kept for one is its own
    layer({name: (array.detach() / 2).requires_grad_() for name, array in arrays.items()})
    pulled = torch.autograd.grad(answer, list(leaves.values()), cotangent.to(answer.dtype), allow_unused=True)
    return answer, {
        name: zeros[name] if product is None else product for name, product in zip(leaves, pulled, strict=True)
    }


def _pulled_by_jax(layer: Any, arrays: dict[str, Any], cotangent: Any) -> tuple[Any, dict[str, Any]]:
    jax: Any = importlib.import_module("jax")
    answer, pull = jax.vjp(layer, arrays)
    return answer, pull(cotangent)[0]
