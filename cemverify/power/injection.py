"""Injection: puts the faults of the mutants into any implementation.

A fault of behaviour wraps the implementation. A fault of arithmetic is a difference of answers: the mutant's answer
minus that of its sound original, both computed here, is added to the implementation's answer. So its owner learns
what a pass of *this* implementation is worth, whatever it is written in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.implementations.arrays import ARRAY_KINDS
from cemverify.conformance.implementations.contract import Implementation, Subject
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.power.mutants import Mutant
from cemverify.power.mutants.base import Function, around

# faults in how an answer is computed, not in its value
_OF_TORCH = ("training", "modes")


def inject(mutant: Mutant, subject: Subject) -> Subject:
    """The implementation with the mutant's fault.

    Raises:
        ValueError: the fault cannot be put into this implementation; why, in a sentence.
    """
    faulty, original = mutant.subject(), mutant.original()
    if isinstance(faulty, EnergyLayer) != isinstance(subject, EnergyLayer):
        raise ValueError("the fault belongs to another kind of implementation")
    if mutant.edits and not ARRAY_KINDS[subject.arrays].editable:
        raise ValueError("it takes JAX arrays, which cannot be edited in place")
    if mutant.wrap is None and isinstance(faulty, EnergyLayer):
        raise ValueError("the fault is a line of one of the examples, and not of this layer")
    if mutant.wrap is not None:
        wrapped: Subject = mutant.wrap(subject)
        return wrapped
    assert isinstance(subject, Implementation)
    assert isinstance(faulty, Implementation)
    assert isinstance(original, Implementation)
    if mutant.family == "rejection":
        raise ValueError("the fault is that bad input is accepted, not a wrong output")
    if mutant.family in _OF_TORCH and subject.arrays != "torch":
        raise ValueError(f"the fault concerns torch's gradients and modes, and it takes {subject.arrays} arrays")
    given = partial(_shifted, arrays=subject.arrays, own_dtype=mutant.own_dtype)
    shifted = _shifted_live if mutant.family in _OF_TORCH else given
    both = faulty.functions.keys() & original.functions.keys()
    changed = {
        name: shifted(function, faulty.functions[name], original.functions[name])
        for name, function in subject.functions.items()
        if name in both
    }
    return replace(subject, functions={**subject.functions, **changed})


def falling_short(subject: Subject, place: str, epsilon: float) -> Subject:
    """The implementation with updates that are too small by a relative epsilon in the last `place`.

    Args:
        place: "feature", "position" or "row".
    """
    axis = {"row": 0, "position": 1, "feature": 2}[place]

    def change(name: str, function: Function) -> Function:
        if name.endswith("_energy"):
            return function

        def short(first: Any, *arguments: Any) -> Any:
            start = as_tensor(first)
            answer = function(first, *arguments)
            update = as_tensor(answer) - start
            lacking = torch.zeros_like(update)
            last = update.shape[axis] - 1
            lacking.select(axis, last).copy_(-epsilon * update.select(axis, last))
            return _added(answer, lacking, subject.arrays)

        return short

    assert isinstance(subject, Implementation)
    return around(subject, change)


def _shifted(
    function: Function, faulty: Callable[..., Tensor], original: Callable[..., Tensor], arrays: str, own_dtype: bool
) -> Function:
    """answer + (faulty answer - sound answer)."""

    def shifted(*arguments: Any) -> Any:
        *states, weights, config = arguments
        exact = [_exact(array, own_dtype) for array in states]
        named = {name: _exact(array, own_dtype) for name, array in weights.items()}
        answer = function(*arguments)
        with torch.no_grad():
            wrong, right = (f(*[a.clone() for a in exact], named, config).double() for f in (faulty, original))
        return _added(answer, wrong - right, arrays)

    return shifted


def _shifted_live(function: Function, faulty: Callable[..., Tensor], original: Callable[..., Tensor]) -> Function:
    """answer + (faulty - sound answer) on the given tensors, so gradients, mapping and tracing pass through."""

    def shifted(*arguments: Any) -> Any:
        return function(*arguments) + (faulty(*arguments) - original(*arguments))

    return shifted


def _exact(array: Any, own_dtype: bool) -> Tensor:
    """The array in float64, or in its own dtype where the fault is one of rounding."""
    tensor = as_tensor(array)
    return tensor.to(getattr(torch, str(array.dtype).removeprefix("torch."))) if own_dtype else tensor


def _added(answer: Any, difference: Tensor, arrays: str) -> Any:
    """The sum, formed in float64 and converted to the answer's dtype and kind."""
    if isinstance(answer, Tensor):
        return (answer.double() + difference.to(answer.device)).to(answer.dtype)
    return ARRAY_KINDS[arrays].like(as_tensor(answer) + difference, answer)
