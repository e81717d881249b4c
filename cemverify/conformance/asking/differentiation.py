"""Vector-Jacobian products of an implementation, by differentiation in torch or JAX."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor, changed_of, numbers_of
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import experiment, shapes
from cemverify.conformance.asking.views import incoming
from cemverify.conformance.implementations.arrays import TORCH, all_finite
from cemverify.conformance.implementations.faults import NotFinite
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.contexts import OTHER_OPTIONS, SECOND_STEP, THE_SAME, USUAL, otherwise

Arrays = dict[str, Any]
Products = tuple[Tensor, dict[str, Tensor], list[str]]


def product_shapes(arguments: Any) -> Any:
    """The shapes that an experiment must return as `Products`, in the form that `experiment` describes."""
    return arguments.cotangent.shape, shapes(arguments_of(arguments.case, arguments.name, arguments.recorded)), None


@experiment(product_shapes)
def products(caller: Caller, case: Case, cotangent: Tensor, name: str, recorded: Sequence[str] | None) -> Products:
    """Calls a function that records gradients; returns its output and the products with the cotangent.

    Args:
        cotangent: it has the output's shape: (B, J, D), or (B, J) for an energy.
        recorded: the names of the arrays that record gradients; the others are constants, as frozen weights are. None
            for all of them.

    Returns:
        The output; the products by name, for the arrays of `arguments_of`, zero where no gradient arrives; and the
        names of the arrays whose numbers the call changed.
    """
    arrays = {key: caller.array(array) for key, array in arguments_of(case, name).items()}
    return products_at(caller, case, cotangent, name, arrays, recorded)


def products_at(
    caller: Caller,
    case: Case,
    cotangent: Tensor,
    name: str,
    arrays: Arrays,
    recorded: Sequence[str] | None,
    between: str = USUAL,
) -> Products:
    """What `products` returns for given arrays, within an experiment.

    Args:
        between: one of BETWEEN. For derivatives of functions, as in JAX, nothing can come between.
    """
    leaves = {key: array for key, array in arrays.items() if recorded is None or key in recorded}
    vector = incoming_to(caller, case)[1](caller.array(cotangent))
    training = _Training(caller, name, case, arrays, leaves, vector)
    with torch.enable_grad(), caller.guarded():
        before = numbers_of(arrays)
        if between == SECOND_STEP:
            # pulls back at other numbers, then restores the numbers in the same arrays, as an optimiser does
            training.scale(0.5)
            training.pull()
            training.scale(2.0)
        answer, pulled = training.pull(_BETWEEN[between] if caller.kind is TORCH else None, twice=between == THE_SAME)
        result = as_tensor(answer, cotangent.shape)
        products = {key: as_tensor(product, as_tensor(leaves[key]).shape) for key, product in pulled.items()}
    for key, product in products.items():
        if not all_finite(product):
            raise NotFinite(f"the gradient with respect to {key} is NaN or infinite")
    return result, products, changed_of(arrays, before)


def incoming_to(caller: Caller, case: Case) -> tuple[str, Callable[[Any], Any]]:
    """The memory layout of the vector that is pulled back, as in `views.incoming`; JAX arrays have none."""
    return incoming(case.turn(2**16) if caller.kind is TORCH else 0)


@dataclass(frozen=True)
class _Training:
    """A function of named arrays, some of which record gradients, and the vector that is pulled back."""

    caller: Caller
    name: str
    case: Case
    arrays: Arrays
    leaves: Arrays
    vector: Any

    def pull(self, between: Callable[[_Training], Any] | None = None, *, twice: bool = False) -> tuple[Any, Arrays]:
        """The answer and the products, those of a second pass through the graph if `twice`; `between` runs before."""
        function = of_named_arrays(self.caller, self.name, self.case)
        return self.caller.kind.pulled(
            lambda arrays: function({**self.arrays, **arrays}),
            self.leaves,
            self.vector,
            lambda: None if between is None else between(self),
            twice=twice,
        )

    def answer_another(self, *, other_options: bool = False) -> Any:
        """The answer to other numbers, never pulled back, as when one graph uses the layer twice."""
        config = otherwise(self.case.config, self.caller.subject.not_offered) if other_options else self.case.config
        function = of_named_arrays(self.caller, self.name, replace(self.case, config=config))
        halves = {key: (array.detach() / 2).requires_grad_() for key, array in self.leaves.items()}
        return function({**self.arrays, **halves})

    def scale(self, factor: float) -> None:
        """Multiplies the numbers in the arrays."""
        with torch.no_grad():
            for leaf in self.leaves.values():
                leaf *= factor


_BETWEEN: Mapping[str, Callable[[_Training], Any]] = {
    USUAL: _Training.answer_another,
    OTHER_OPTIONS: lambda training: training.answer_another(other_options=True),
    THE_SAME: _Training.pull,
    SECOND_STEP: _Training.answer_another,
}


def of_named_arrays(caller: Caller, name: str, case: Case) -> Callable[[dict[str, Any]], Any]:
    """A function of the implementation as one function of its arrays by name, as in `arguments_of`."""
    function, config = caller.functions[name], copy.deepcopy(case.config)

    def of_arrays(arrays: dict[str, Any]) -> Any:
        # x is h itself if the case has one array for both
        states = [arrays["h"]] if name in ("block", "decode") else [arrays.get("x", arrays["h"]), arrays["h"]]
        return function(*states, {weight: arrays[weight] for weight in case.weights}, config)

    return of_arrays


def arguments_of(case: Case, name: str, chosen: Sequence[str] | None = None) -> dict[str, Tensor]:
    """The arguments of a function by name: x (unless it takes none, or x is h itself), h and every weight.

    Args:
        chosen: the names to return; None for all.
    """
    apart = {} if case.x is case.h or name in ("block", "decode") else {"x": case.x}
    arrays = {**apart, "h": case.h, **case.weights}
    return {key: array for key, array in arrays.items() if chosen is None or key in chosen}
