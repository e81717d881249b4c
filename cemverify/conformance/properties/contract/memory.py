"""Arrays that are views, that share memory, that are edited: a call reads the numbers that they hold now."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.contexts import halved
from cemverify.conformance.asking.differentiation import arguments_of, of_named_arrays
from cemverify.conformance.asking.experiments import experiment, long_experiment
from cemverify.conformance.asking.views import (
    expanded,
    inner_window,
    renewed,
    repeated,
    reverse_strided,
    transposed,
    window,
    writable,
)
from cemverify.conformance.implementations.arrays import NUMPY
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge, together
from cemverify.conformance.oracle.functions import EVERY, Function
from cemverify.conformance.properties.base import Explanation, Property
from cemverify.conformance.properties.contract.functions import contract_property
from cemverify.conformance.questions.cases import Case

# Two windows of one array, whatever array it is: (B, 2J, D) -> x, h.
Windows = Callable[[Any], tuple[Any, Any]]
_CALLS = 5  # more than a small ring of buffers has
_TWINS = (("W_Q", "W_K"), ("V", "W"), ("P_U", "P_V"), ("to_self", "to_others"))  # of one shape
_FLAT = ("P_d", "diagonal", "to_others")  # may be one number for every channel or head
_MOVES = "the right answer is not that of a layer that does nothing"


def numbers_are_read_anew(function: Function, caller: Caller, case: Case) -> Evidence:
    """If arrays get new values, as weights do from an optimiser, the answer is that for the new values.

    It is so where two neighbouring numbers of one array are exchanged, which leaves its sum, its norm and its ends as
    they were, and for new arrays in memory that was freed. What was returned before keeps its numbers, and writing
    into it changes no argument and no later answer. That holds where no weight does anything, too: the state that
    comes back then has the numbers of x, not its memory.
    """
    other = halved(case)
    first, fresh = caller.answer(function.name, case), caller.answer(function.name, other)
    later, edited, unmoved, again, still, still_again = _of_edited_arrays(
        caller, function.name, case, other, function.shape(case)
    )
    exact = torch.zeros(())
    exchanged = _of_arrays_edited_one_by_one(caller, function.name, case, function.shape(case))
    return judge(
        Comparison("output for edited arrays = output for new arrays", edited, fresh, exact),
        Comparison("an output after further calls = before them", later, first, exact),
        Comparison("an output after its arrays were edited = before", unmoved, first, exact),
        Comparison("output after an earlier one was overwritten = before", again, fresh, exact),
        Comparison(
            "output for zero weights after an earlier one was overwritten = before", still_again, still, exact
        ),
        *(Comparison(claim, got, expected, exact) for claim, (got, expected) in exchanged.items()),
        telling=not torch.equal(first, fresh),
    )


@long_experiment(lambda arguments: [arguments.shape] * 6)
def _of_edited_arrays(
    caller: Caller, name: str, case: Case, other: Case, shape: torch.Size
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The first answer after other calls; that for edited arrays; the first one then; one after both were edited.

    Then two answers for weights that are all zero: one, and another after the first of them was overwritten.
    """
    x, h, weights = caller.arguments(case)
    first = caller.call(name, case, x, h, weights)
    as_tensor(first, shape)
    for _ in range(_CALLS):
        caller.answer(name, other)
    later = as_tensor(first)
    caller.call(name, case, x, h, weights)
    new_x, new_h, new_weights = caller.arguments(other)
    arrays = [x, h, *weights.values()]
    fresh = [new_x, new_h, *(new_weights[name] for name in weights)]
    if not caller.kind.editable:
        x, h, weights = new_x, new_h, new_weights
    else:
        for array, numbers in zip(arrays, fresh, strict=True):
            writable(array)[...] = numbers
    second = caller.call(name, other, x, h, weights)
    edited, unmoved = as_tensor(second, shape), as_tensor(first)
    overwrite(first)
    overwrite(second)
    again = as_tensor(caller.call(name, other, x, h, weights), shape)
    nothing = replace(case, weights={name: torch.zeros_like(w) for name, w in case.weights.items()})
    x, h, weights = caller.arguments(nothing)
    third = caller.call(name, nothing, x, h, weights)
    still = as_tensor(third, shape)
    overwrite(third)
    return later, edited, unmoved, again, still, as_tensor(caller.call(name, nothing, x, h, weights), shape)


@long_experiment(
    lambda arguments: dict.fromkeys(
        [_AFTER_ALL, *_edits(arguments.caller, arguments.case, arguments.name)], [arguments.shape] * 2
    )
)
def _of_arrays_edited_one_by_one(caller: Caller, name: str, case: Case, shape: torch.Size) -> dict[str, list[Tensor]]:
    """After each edit the answer for the edited arrays, and that for new ones with the same numbers, by the claim.

    Half of the cases are asked while no gradients are recorded, when most is kept.
    """
    function, answers = of_named_arrays(caller, name, case), {}
    arrays = {key: caller.array(array) for key, array in arguments_of(case, name).items()}
    other = {key: caller.array(array) for key, array in arguments_of(halved(case), name).items()}
    with torch.no_grad() if case.turn(2) else nullcontext(), caller.guarded():
        first = function(arrays)
        before = as_tensor(first, shape)
        for claim, edited in _edits(caller, case, name).items():
            if edited is None:
                for key, array in arrays.items():
                    writable(array)[...] = other[key]
                arrays = {key: renewed(array) for key, array in arrays.items()}
            else:
                exchange(writable(arrays[edited]), case.turn)
            new = {key: caller.array(as_tensor(array)) for key, array in arrays.items()}
            answers[claim] = [as_tensor(function(values), shape) for values in (arrays, new)]
        return {**answers, _AFTER_ALL: [as_tensor(first), before]}


_AFTER_ALL = "an output after calls for small edits = before them"


def _edits(caller: Caller, case: Case, name: str) -> dict[str, str | None]:
    """What is edited, as a claim, and the array in which numbers are exchanged; None where all are new.

    Every second array of a case has its turn, these or the others.
    """
    if not caller.kind.editable:
        return {}
    arrays = list(arguments_of(case, name))[case.turn(4) // 2 :: 2]  # turn(2) says whether gradients are recorded
    exchanged = {f"output for two numbers exchanged in {key} = output for new arrays": key for key in arrays}
    return {**exchanged, "output for new arrays in the memory of others = output for new arrays": None}


def exchange(array: Any, turn: Callable[[int], int]) -> None:
    """Exchanges two neighbours in place, between the ends where there is room.

    Args:
        turn: from n to a number from 0 to n - 1, another one for each case: which of n places it is.
    """
    size = math.prod(array.shape)
    if size > 1:
        first = 1 + turn(size - 3) if size > 3 else 0
        one, other = (tuple(int(i) for i in np.unravel_index(n, array.shape)) for n in (first, first + 1))
        array[one], array[other] = float(array[other]), float(array[one])


def overwrite(answer: Any) -> None:
    """Writes other numbers into an answer that was given, if they can be."""
    try:
        if isinstance(answer, Tensor):
            answer = answer.detach()
        answer[...] = 7.0
    except (TypeError, ValueError, RuntimeError):
        pass  # nobody can write into it: JAX's, an expanded one


def windows_are_read_as_they_are(function: Function, caller: Caller, case: Case) -> Evidence:
    """Windows of larger arrays, reversed and transposed ones, expanded ones, and weights in any order are read."""
    weights = {name: _level(w) if name.split(".")[-1] in _FLAT else w for name, w in case.weights.items()}
    evidences = []
    for one_state in (False, True) if case.x is not case.h else (False,):
        x, h = case.x, case.h  # one state is read again for every row, or one memory for every row, token or channel
        if one_state:
            x = repeated(x, 0).contiguous()
        else:
            h = repeated(h, _axis(h)).contiguous()
        windowed = replace(case, x=h if case.x is case.h else x, h=h, weights=weights)
        got = _of_windows(caller, function.name, windowed, function.shape(windowed), one_state=one_state)
        claim = "output for views, with the weights in reverse order"
        evidences.append(function.evidence(claim, got, windowed, caller.dtype))
    return together(evidences)


@experiment(lambda arguments: arguments.shape)
def _of_windows(caller: Caller, name: str, case: Case, shape: torch.Size, *, one_state: bool) -> Tensor:
    x, h, weights = caller.arguments(case)
    if caller.kind.editable:  # others have no views
        x, h = window(x), window(h)
        layouts = (window, transposed, inner_window)
        weights = {
            name: expanded(array) if name.split(".")[-1] in _FLAT else layouts[i % len(layouts)](array)
            for i, (name, array) in enumerate(weights.items())
        }
    if isinstance(h, Tensor):
        x, h = (repeated(x, 0), h) if one_state else (x, repeated(h, _axis(h)))
    elif caller.kind is NUMPY:
        x, h = (repeated(x, 0), reverse_strided(h)) if one_state else (reverse_strided(x), repeated(h, _axis(h)))
    weights = {name: weights[name] for name in reversed(weights)}
    return as_tensor(caller.call(name, case, x, h, weights), shape)


def arrays_may_share_memory(function: Function, caller: Caller, case: Case) -> Evidence:
    """x and h may be windows of one array, and one array may be two weights.

    The windows overlap: one begins a token later than the other, or they begin at the same number and x takes every
    second token.
    """
    weights = dict(case.weights)
    for name, twin in _twins(weights):
        weights[twin] = weights[name]
    case = replace(case, weights=weights)
    shape, evidences = function.shape(case), []
    for windows in (_later, _thinned) if case.x is not case.h else (None,):
        copied = case
        if windows is not None:
            x, h = windows(_joined(case))
            copied = replace(case, x=x.clone(), h=h.clone())
        got = _of_shared_memory(caller, function.name, copied, _joined(case), windows, shape)
        claim = "output for arrays that share memory = golden output"
        evidences.append(function.evidence(claim, got, copied, caller.dtype))
    return together(evidences, all)


@experiment(lambda arguments: arguments.shape)
def _of_shared_memory(
    caller: Caller, name: str, case: Case, joined: Tensor, windows: Windows | None, shape: torch.Size
) -> Tensor:
    x, h, weights = caller.arguments(case)
    if caller.kind.editable and windows is not None:
        x, h = windows(caller.array(joined))
    for one, twin in _twins(weights):
        weights[twin] = weights[one]
    return as_tensor(caller.call(name, case, x, h, weights), shape)


def _joined(case: Case) -> Tensor:
    """The tokens of x and then those of h: (B, 2J, D)."""
    return torch.cat((case.x, case.h), 1)


def _later(joined: Any) -> tuple[Any, Any]:
    """x and, a token later, h: (B, 2J, D) -> two windows (B, J, D)."""
    J = joined.shape[1] // 2
    return joined[:, :J], joined[:, 1 : J + 1]


def _thinned(joined: Any) -> tuple[Any, Any]:
    """Every second token as x, the first half as h: (B, 2J, D) -> two windows (B, J, D) that begin at one number."""
    J = joined.shape[1] // 2
    return joined[:, ::2], joined[:, :J]


def one_array_is_two(function: Function, caller: Caller, case: Case) -> Evidence:
    """x and h may be one array, as in self-attention; the output is that for two equal arrays."""
    case = replace(case, x=case.h)
    got = _of_one_array(caller, function.name, case, function.shape(case))
    return function.evidence("output with x and h as one array = golden output", got, case, caller.dtype)


@experiment(lambda arguments: arguments.shape)
def _of_one_array(caller: Caller, name: str, case: Case, shape: torch.Size) -> Tensor:
    _, h, weights = caller.arguments(case)
    return as_tensor(caller.call(name, case, h, h, weights), shape)


def _level(weight: Tensor) -> Tensor:
    """A weight whose every number is the first one."""
    return weight.flatten()[0].expand_as(weight).contiguous()


def _twins(weights: dict[str, Any]) -> list[tuple[str, str]]:
    """Names of weights of one shape, a block's included."""
    prefixes = {name.rpartition(".")[0] for name in weights}
    pairs = [(f"{p}.{a}" if p else a, f"{p}.{b}" if p else b) for p in prefixes for a, b in _TWINS]
    return [(a, b) for a, b in pairs if a in weights]


def _axis(array: Any) -> int:
    """The axis whose turn it is: of rows, of tokens or of channels, by the sizes of the last two."""
    return int(sum(array.shape[1:]) % 3)


READ_ANEW = Explanation(
    "F(w) after w was edited in place = F(copy of w)",
    "Optimisers edit weights in place. Whoever caches by identity trains with the weights of yesterday.",
)
WINDOWS_READ = Explanation(
    "F(view of an array) = F(copy of the view)",
    "Slices, transposes and expanded arrays reach a layer every day; a kernel that ignores strides reads the "
    "neighbours.",
)
MEMORY_SHARED = Explanation(
    "F(x, h overlapping) = F(copies)",
    "x and h are often windows of one array. A layer that writes before it has read everything answers wrongly.",
)
ONE_ARRAY = Explanation(
    "F(x, x) = F(x, copy of x)",
    "In self-attention the state and the memory are one array. Whoever updates it in place moves the memory that "
    "must stay fixed.",
)


def properties() -> Iterator[Property]:
    """Edited, viewed and shared arrays, for each function of an implementation."""
    for function in EVERY:
        name = function.name
        yield contract_property(
            function,
            "edited-arrays",
            f"{name} reads edited arrays again, and what it returned before does not change.",
            *READ_ANEW,
            numbers_are_read_anew,
            "other numbers give another output",
            every_dtype=True,
            rows=0.4,
            once=True,
        )
        yield contract_property(
            function,
            "windows",
            f"{name} reads views as they are: windows, transposed and expanded arrays, weights in any order.",
            *WINDOWS_READ,
            windows_are_read_as_they_are,
            _MOVES,
            rows=0.5,
        )
        yield contract_property(
            function,
            "shared-memory",
            f"{name} reads arrays that share memory: overlapping x and h, one array for two weights.",
            *MEMORY_SHARED,
            arrays_may_share_memory,
            _MOVES,
            rows=0.5,
        )
        if not function.starts_at_the_memory:
            yield contract_property(
                function,
                "one-array",
                f"x and h of {name} may be the same array; the output is that for two equal arrays.",
                *ONE_ARRAY,
                one_array_is_two,
                _MOVES,
                rows=0.5,
                controls=frozenset({"random"}),
            )
