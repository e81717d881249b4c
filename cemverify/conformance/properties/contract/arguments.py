"""A call leaves its arguments as they were: values, layout, flags, names and configuration."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.contexts import MODES
from cemverify.conformance.asking.experiments import experiment, shapes
from cemverify.conformance.implementations.arrays import TORCH
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import Raised
from cemverify.conformance.implementations.modules import in_eval_mode
from cemverify.conformance.implementations.origin import functions_of
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge
from cemverify.conformance.oracle.functions import EVERY, Function
from cemverify.conformance.properties.base import Explanation, Property
from cemverify.conformance.properties.contract.functions import contract_property
from cemverify.conformance.properties.function_calls import unchanged_but
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.contexts import USUAL


def arguments_are_left_alone(function: Function, caller: Caller, case: Case) -> Evidence:
    """After a call every array has the bits, the layout and the flags that it had; names and config are the same.

    That holds in every mode that the call may be in, which take turns, and for arrays that record gradients, too: the
    call leaves no gradient in them. Modules in eval mode hold what they held.
    """
    torch_ = caller.kind is TORCH
    mode = (USUAL, *MODES)[case.turn(1 + len(MODES))] if torch_ else USUAL
    after, changed = _after_a_call(caller, function.name, case, mode, records=False)
    before, exact = {"x": case.x, "h": case.h, **case.weights}, torch.zeros(())
    where = "" if mode == USUAL else f" {mode}"
    comparisons = [
        Comparison(f"{key} after the call{where}", array, before[key], exact) for key, array in after.items()
    ]
    if torch_ and "gradients" not in caller.subject.not_offered:
        with suppress(Raised):  # if it cannot record them, `training` says so
            changed = changed or _after_a_call(caller, function.name, case, USUAL, records=True)[1]
    return judge(*comparisons, unchanged_but(changed, "nothing else changes"))


@experiment(
    lambda arguments: (shapes({"x": arguments.case.x, "h": arguments.case.h, **arguments.case.weights}), None),
    finite=False,  # what a call leaves in them is compared
)
def _after_a_call(
    caller: Caller, name: str, case: Case, mode: str, *, records: bool
) -> tuple[dict[str, Tensor], list[str]]:
    """Every array after a call in a mode, and what else is another than before, as phrases."""
    x, h, weights = caller.arguments(case)
    arrays, config, mapping = {"x": x, "h": h, **weights}, copy.deepcopy(case.config), dict(weights)
    for array in arrays.values() if records else ():
        array.requires_grad_()
    forms = {key: form_of(array) for key, array in arrays.items()}
    with MODES.get(mode, nullcontext)(), states_of(caller) as states:
        caller.call(name, case, x, h, weights, config)
        changed = states()
    after = {key: as_tensor(array) for key, array in arrays.items()}
    changed += [
        f"the {aspect} of {key}"
        for key, array in arrays.items()
        for aspect, value in forms[key].items()
        if form_of(array)[aspect] != value
    ]
    if list(weights) != list(mapping) or any(weights[key] is not array for key, array in mapping.items()):
        changed.append("the mapping of weights")
    if held(config) != held(case.config):
        changed.append("the configuration")
    return after, changed


def states_of(caller: Caller) -> AbstractContextManager[Callable[[], list[str]]]:
    """A context in which modules are in eval mode; it gives what tells what calls change of them, as phrases."""
    functions = [function for _, function in functions_of(caller.subject)]
    parameters = caller.subject.parameters if isinstance(caller.subject, EnergyLayer) else {}
    return in_eval_mode(functions, parameters) if caller.kind is TORCH else nullcontext(list)


def held(config: Any) -> dict[str, Any]:
    """Every attribute of a configuration, also those that somebody hung on it."""
    return {name: held(value) if is_dataclass(value) else value for name, value in vars(config).items()}


def form_of(array: Any) -> dict[str, Any]:
    """What an array has beside its numbers."""
    if isinstance(array, Tensor):
        return {
            "shape": tuple(array.shape),
            "strides": array.stride(),
            "dtype": array.dtype,
            "flag that it requires gradients": array.requires_grad,
            "gradient": array.grad is None,
        }
    if isinstance(array, np.ndarray):
        return {
            "shape": array.shape,
            "strides": array.strides,
            "dtype": array.dtype,
            "flag that it can be written": array.flags.writeable,
        }
    return {"shape": array.shape, "dtype": array.dtype}


ARGUMENTS_KEPT = Explanation(
    "(x, h, weights, config, modules in eval mode) after the call = before, bit for bit",
    "An edited argument is somebody else's residual stream or parameter. The bug shows far from its cause. If a "
    "buffer moves with each call in eval mode, no answer can be had again.",
)


def properties() -> Iterator[Property]:
    """Arguments that stay as they were, for each function of an implementation."""
    for function in EVERY:
        yield contract_property(
            function,
            "inputs-unchanged",
            f"A call of {function.name} leaves its arguments unchanged, and modules in eval mode.",
            *ARGUMENTS_KEPT,
            arguments_are_left_alone,
            "the call returns an answer",
            floor=1.0,
        )
