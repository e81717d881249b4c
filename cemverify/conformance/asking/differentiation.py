"""Vector-Jacobian products of an implementation, by torch's or JAX's differentiation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import experiment, shapes
from cemverify.conformance.implementations.faults import NotFinite
from cemverify.conformance.questions.cases import Case


@experiment(lambda asked: (asked.cotangent.shape, shapes(arguments_of(asked.case, asked.name, asked.recorded))))
def products(
    caller: Caller, case: Case, cotangent: Tensor, name: str, recorded: Sequence[str] | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Calls a function with gradients recorded; returns its output and the products with the cotangent.

    Args:
        cotangent: of the output's shape: (B, J, D), or (B, J) for an energy.
        recorded: the arrays that record gradients, by name; the others are constants, as frozen weights are. None
            for all of them.

    Returns:
        The products by name, as `arguments_of` has the arrays; zeros if no gradient arrives.

    Raises:
        Fault: there is no output or no product to compare.
    """
    arrays = {key: caller.array(array) for key, array in arguments_of(case, name).items()}
    return products_at(caller, case, cotangent, name, arrays, recorded)


def products_at(
    caller: Caller, case: Case, cotangent: Tensor, name: str, arrays: dict[str, Any], recorded: Sequence[str] | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """An output and its vector-Jacobian products at given arrays, by name, within an experiment."""
    leaves = {key: array for key, array in arrays.items() if recorded is None or key in recorded}

    function = of_named_arrays(caller, name, case)
    with torch.enable_grad(), caller.guarded():
        answer, pulled = caller.kind.pulled(
            lambda given: function({**arrays, **given}), leaves, caller.array(cotangent)
        )
        result = as_tensor(answer, cotangent.shape)
        found = {key: as_tensor(product, as_tensor(leaves[key]).shape) for key, product in pulled.items()}
    for key, product in found.items():
        if not bool(product.isfinite().all()):
            raise NotFinite(f"the gradient with respect to {key} is NaN or infinite")
    return result, found


def of_named_arrays(caller: Caller, name: str, case: Case) -> Callable[[dict[str, Any]], Any]:
    """A function of the implementation as one of its arrays by name, as `arguments_of` has them."""
    function, config = caller.functions[name], copy.deepcopy(case.config)

    def of_arrays(arrays: dict[str, Any]) -> Any:
        # x is h itself where the case has one array for both
        states = [arrays["h"]] if _starts_at_the_memory(name) else [arrays.get("x", arrays["h"]), arrays["h"]]
        return function(*states, {weight: arrays[weight] for weight in case.weights}, config)

    return of_arrays


def arguments_of(case: Case, name: str, chosen: Sequence[str] | None = None) -> dict[str, Tensor]:
    """What a function is given, by name: x, unless it takes none or x is h itself, h and every weight.

    Args:
        chosen: the names that are wanted; None for all.
    """
    apart = {} if case.x is case.h or _starts_at_the_memory(name) else {"x": case.x}
    arrays = {**apart, "h": case.h, **case.weights}
    return {key: array for key, array in arrays.items() if chosen is None or key in chosen}


def _starts_at_the_memory(name: str) -> bool:
    return name in ("block", "decode")
