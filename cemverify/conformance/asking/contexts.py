"""A call in a context: after another call, with another memory layout of its arguments, in a mode, or mapped over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor, changed_of, numbers_of, unlocked
from cemverify.conformance.asking.calls import Caller, quiet
from cemverify.conformance.asking.differentiation import (
    Arrays,
    Products,
    arguments_of,
    of_named_arrays,
    product_shapes,
    products_at,
)
from cemverify.conformance.asking.experiments import experiment
from cemverify.conformance.asking.views import in_one_storage, inner_window, transposed
from cemverify.conformance.implementations.faults import Fault
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.contexts import READ_ONLY, USUAL, Context, layouts

Made = TypeVar("Made")


def halved(case: Case) -> Case:
    """The case with every number halved and x reversed, so that all of them change."""
    weights = {name: w / 2 for name, w in case.weights.items()}
    h = case.h / 2
    return replace(case, x=h if case.x is case.h else case.x.flip(1) / 2, h=h, weights=weights)


@experiment(lambda arguments: ([arguments.shape] * (2 if arguments.context.mode == "mapped" else 1), None), calls=2)
def answered_in(
    caller: Caller, name: str, case: Case, context: Context, shape: torch.Size
) -> tuple[list[Tensor], list[str]]:
    """The answers of the function of that name in a context without gradients; for a mapped call, to `mapped_cases`.

    Returns:
        The answers, and the names of the arrays whose numbers the call changed, or that it made writable.
    """
    _come_before(caller, name, case, context)
    if context.mode == "mapped":
        return _mapped(caller, name, case, context, shape)
    arrays = _laid_out(caller, case, name, context.arrays)
    before = numbers_of(arrays)
    with caller.guarded(), MODES.get(context.mode, nullcontext)():
        answer = of_named_arrays(caller, name, case)(arrays)
        changed = changed_of(arrays, before)
        if context.arrays == READ_ONLY:
            changed += unlocked(arrays)
        return [as_tensor(answer, shape)], changed


@experiment(product_shapes, calls=2)
def products_in(
    caller: Caller, case: Case, cotangent: Tensor, name: str, recorded: Sequence[str], context: Context
) -> Products:
    """What `products` returns for a call in a context, where some arguments record gradients."""
    _come_before(caller, name, case, context)
    arrays = _laid_out(caller, case, name, context.arrays)
    return products_at(caller, case, cotangent, name, arrays, recorded, context.between)


@experiment(lambda arguments: [arguments.cases[0].x.shape] * len(arguments.cases), compiles=True)
def answered_compiled(caller: Caller, cases: list[Case]) -> list[Tensor]:
    """The layer's answers to cases of one shape, compiled once for all of them.

    The trace depends on the dtype, and may go wrong in each; lowering it does not, so only float64 is lowered.
    """
    first, answers = cases[0], list[Tensor]()
    with caller.guarded(), quiet():
        compiled = caller.kind.compiled(
            of_named_arrays(caller, first.layer, first), lowered=caller.dtype == torch.float64
        )
        for case in cases:
            answers.append(as_tensor(compiled(_laid_out(caller, case, case.layer, USUAL)), case.x.shape))
    return answers


def mapped_cases(caller: Caller, case: Case, name: str) -> list[Case]:
    """The two questions of a mapped call: the case, and one that differs in the arguments that are mapped over."""
    other, axes = halved(case), mapped_arguments(caller, case, name)
    weights = {key: other.weights[key] if key in axes else weight for key, weight in case.weights.items()}
    h = other.h if "h" in axes else case.h
    x = h if case.x is case.h else other.x if "x" in axes else case.x
    return [case, replace(case, x=x, h=h, weights=weights)]


def mapped_arguments(caller: Caller, case: Case, name: str) -> frozenset[str]:
    """The arguments that are mapped over: states, weights, or some of each, changing from case to case.

    There are fewer choices where each is compiled.
    """
    weights, states = list(case.weights), [key for key in arguments_of(case, name) if key in ("x", "h")]
    subsets = ([*states, *weights], states, weights, weights[::2], states[:1], [states[-1], *weights[1::2]])
    every = 2 if caller.kind.compiles else 1
    return frozenset(subsets[::every][case.turn(len(subsets) // every)])


def _mapped(
    caller: Caller, name: str, case: Case, context: Context, shape: torch.Size
) -> tuple[list[Tensor], list[str]]:
    axes = mapped_arguments(caller, case, name)
    one, other = (arguments_of(one_case, name) for one_case in mapped_cases(caller, case, name))
    # the mapped axis is the first in some arrays, and another in others
    turn = 0 if caller.kind.compiles else case.turn(5)
    along = {key: (turn + place) % (one[key].dim() + 1) if key in axes else None for place, key in enumerate(one)}
    stacked = {
        key: one[key] if axis is None else torch.stack([one[key], other[key]], axis) for key, axis in along.items()
    }
    arrays = arranged(caller, {key: caller.array(array) for key, array in stacked.items()}, context.arrays)
    before = numbers_of(arrays)
    with caller.guarded(), quiet():
        answer = caller.kind.mapped(of_named_arrays(caller, name, case), (along,))(arrays)
        both = as_tensor(answer, torch.Size((2, *shape)))
    return [both[0], both[1]], changed_of(arrays, before)


# --- arrays --------------------------------------------------------------------------------------------------


def _laid_out(caller: Caller, case: Case, name: str, how: str) -> Arrays:
    return arranged(caller, {key: caller.array(array) for key, array in arguments_of(case, name).items()}, how)


def arranged(caller: Caller, arrays: Arrays, how: str) -> Arrays:
    """The same numbers in another layout; arrays whose kind cannot have it are unchanged."""
    if how == USUAL or how not in layouts(caller.kind):
        return arrays
    if how == "in one storage":
        return in_one_storage(arrays)
    if how == READ_ONLY:
        arrays = {name: array.copy() for name, array in arrays.items()}  # so that they own their data
        for array in arrays.values():
            array.setflags(write=False)
        return arrays
    arrange = inner_window if how == "in windows" else transposed
    return {name: arrange(array) for name, array in arrays.items()}


# --- modes, and what came before ---------------------------------------------------------------------------------


MODES: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "in inference mode": torch.inference_mode,
    "under autocast": partial(torch.autocast, "cpu", torch.bfloat16),
}


def come_before(caller: Caller, before: str, call: Callable[[], Any], train: Callable[[], Any]) -> None:
    """Makes the earlier call, or trains: what happens in it is not judged here."""
    with suppress(Fault):
        if before == "after training":
            train()
            return
        with torch.inference_mode() if before == "after inference mode" else nullcontext(), caller.guarded():
            in_a_thread(call) if before == "after another thread" else call()


def _come_before(caller: Caller, name: str, case: Case, context: Context) -> None:
    if (before := context.before) == USUAL:
        return
    case, asked = halved(case), caller
    if before == "after another dtype":
        asked = caller.at(torch.float32 if caller.dtype == torch.float64 else torch.float64)
    elif before == "after other sizes":
        case = case.with_states(lambda states: torch.cat((states, states[:, :1]), 1))
    elif before == "after a refused call":
        case = refused(case)

    def train() -> None:
        cotangent = torch.ones(caller.shape(name, case), dtype=torch.float64)
        products_at(caller, case, cotangent, name, _laid_out(caller, case, name, USUAL), None)

    come_before(asked, before, lambda: asked.bound(name, case)(), train)


def refused(case: Case) -> Case:
    """The case with a weight twice as wide, which every function should refuse."""
    first = next(iter(case.weights))
    return replace(case, weights={**case.weights, first: torch.cat((case.weights[first], case.weights[first]), -1)})


def in_a_thread(call: Callable[[], Made]) -> Made:
    """The result of a call in a thread of its own; its exceptions are raised here."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()
