"""Arrays that are views, that share memory, that are edited: a call reads the numbers that they hold now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller, finite
from cemverify.conformance.asking.experiments import experiment, long_experiment
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge
from cemverify.conformance.properties.base import Property
from cemverify.conformance.properties.contract.functions import EVERY, Function, contract_property
from cemverify.conformance.questions.cases import Case

_TWINS = (("W_Q", "W_K"), ("V", "W"), ("P_U", "P_V"), ("to_self", "to_others"))  # of one shape
_FLAT = ("P_d", "diagonal", "to_others")  # may be one number for every channel or head
_MOVES = "the right answer is not that of a layer that does nothing"


def numbers_are_read_anew(function: Function, caller: Caller, case: Case) -> Evidence:
    """If arrays get new values, as weights do from an optimiser, the answer is that for the new values.

    What was returned before keeps its numbers, and writing into it changes no argument and no later answer.
    """
    other = _half(case)
    first, fresh = caller.answer(function.name, case), caller.answer(function.name, other)
    later, edited, kept, again = (
        finite(answer, function.shape(case))
        for answer in _of_edited_arrays(caller, function.name, case, other, function.shape(case))
    )
    return judge(
        Comparison("output for edited arrays = output for new arrays", edited, fresh, torch.zeros(())),
        Comparison("an output after the next call = before it", later, first, torch.zeros(())),
        Comparison("an output after its arrays were edited = before", kept, first, torch.zeros(())),
        Comparison("output after an earlier one was overwritten = before", again, fresh, torch.zeros(())),
        telling=not torch.equal(first, fresh),
    )


@long_experiment
def _of_edited_arrays(
    caller: Caller, name: str, case: Case, other: Case, shape: torch.Size
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first answer after another call; that for edited arrays; the first one then; one after both were edited."""
    x, h, weights = caller.arguments(case)
    first = caller.call(name, case, x, h, weights)
    as_tensor(first, shape)
    caller.answer(name, other)
    later = as_tensor(first)
    caller.call(name, case, x, h, weights)
    new_x, new_h, new_weights = caller.arguments(other)
    arrays = [x, h, *weights.values()]
    fresh = [new_x, new_h, *(new_weights[name] for name in weights)]
    if caller.subject.arrays == "jax":  # whose arrays nobody can edit
        x, h, weights = new_x, new_h, new_weights
    else:
        for array, numbers in zip(arrays, fresh, strict=True):
            array[...] = numbers
    second = caller.call(name, other, x, h, weights)
    edited, kept = as_tensor(second, shape), as_tensor(first)
    _overwrite(first)
    _overwrite(second)
    return later, edited, kept, as_tensor(caller.call(name, other, x, h, weights), shape)


def _overwrite(answer: Any) -> None:
    try:
        if isinstance(answer, Tensor):
            answer = answer.detach()
        answer[...] = 7.0
    except (TypeError, ValueError, RuntimeError):
        pass  # nobody can write into it: JAX's, an expanded one


def windows_are_read_as_they_are(function: Function, caller: Caller, case: Case) -> Evidence:
    """Windows of larger arrays, reversed and transposed ones, expanded ones, and weights in any order are read."""
    h = case.h[:1].expand_as(case.h).contiguous()
    weights = {name: _level(w) if name.split(".")[-1] in _FLAT else w for name, w in case.weights.items()}
    case = replace(case, x=h if case.x is case.h else case.x, h=h, weights=weights)
    shape = function.shape(case)
    got = finite(_of_windows(caller, function.name, case, shape), shape)
    due, room = function.due(case), function.room(case, caller.dtype)
    comparison = Comparison("output for views, with the weights in reverse order", got, due, room)
    return judge(comparison, telling=function.moved(due, case, room))


@experiment
def _of_windows(caller: Caller, name: str, case: Case, shape: torch.Size) -> Tensor:
    x, h, weights = caller.arguments(case)
    if caller.subject.arrays != "jax":  # which has no views
        x, h = _window(x), _window(h)
        layouts = (_window, _transposed, _inner_window)
        weights = {
            name: _expanded(array) if name.split(".")[-1] in _FLAT else layouts[i % len(layouts)](array)
            for i, (name, array) in enumerate(weights.items())
        }
    if isinstance(h, Tensor):
        h = h[:1].expand_as(h)
    elif caller.subject.arrays == "numpy":
        x, h = _reversed(x), h[:1].repeat(h.shape[0], 0) if name in ("block", "decode") else _stretched(h)
    weights = {name: weights[name] for name in reversed(weights)}
    return as_tensor(caller.call(name, case, x, h, weights), shape)


def arrays_may_share_memory(function: Function, caller: Caller, case: Case) -> Evidence:
    """x and h may be overlapping windows of one array, and one array may be two weights."""
    weights = dict(case.weights)
    for name, twin in _twins(weights):
        weights[twin] = weights[name]
    x, h = case.x, case.h
    if x is not h:
        row = torch.cat((x, h[:, -1:]), 1)  # (B, J + 1, D)
        x, h = row[:, :-1].clone(), row[:, 1:].clone()
    case = replace(case, x=x, h=h, weights=weights)
    shape = function.shape(case)
    got = finite(_of_shared_memory(caller, function.name, case, shape), shape)
    due, room = function.due(case), function.room(case, caller.dtype)
    comparison = Comparison("output for arrays that share memory = golden output", got, due, room)
    return judge(comparison, telling=function.moved(due, case, room))


@experiment
def _of_shared_memory(caller: Caller, name: str, case: Case, shape: torch.Size) -> Tensor:
    x, h, weights = caller.arguments(case)
    if caller.subject.arrays != "jax" and case.x is not case.h:
        row = caller.array(torch.cat((case.x, case.h[:, -1:]), 1))
        x, h = row[:, :-1], row[:, 1:]
    for one, twin in _twins(weights):
        weights[twin] = weights[one]
    return as_tensor(caller.call(name, case, x, h, weights), shape)


def one_array_is_two(function: Function, caller: Caller, case: Case) -> Evidence:
    """x and h may be one array, as in self-attention; the output is that for two equal arrays."""
    case = replace(case, x=case.h)
    shape = function.shape(case)
    got = finite(_of_one_array(caller, function.name, case, shape), shape)
    due, room = function.due(case), function.room(case, caller.dtype)
    comparison = Comparison("output with x and h as one array = golden output", got, due, room)
    return judge(comparison, telling=function.moved(due, case, room))


@experiment
def _of_one_array(caller: Caller, name: str, case: Case, shape: torch.Size) -> Tensor:
    _, h, weights = caller.arguments(case)
    return as_tensor(caller.call(name, case, h, h, weights), shape)


def _half(case: Case) -> Case:
    """Every number halved, and x read backwards, so that all of them change."""
    weights = {name: w / 2 for name, w in case.weights.items()}
    h = case.h / 2
    return replace(case, x=h if case.x is case.h else case.x.flip(1) / 2, h=h, weights=weights)


def _level(weight: Tensor) -> Tensor:
    """The same number everywhere."""
    return weight.flatten()[0].expand_as(weight).contiguous()


def _twins(weights: dict[str, Any]) -> list[tuple[str, str]]:
    """Names of weights of one shape, a block's included."""
    prefixes = {name.rpartition(".")[0] for name in weights}
    pairs = [(f"{p}.{a}" if p else a, f"{p}.{b}" if p else b) for p in prefixes for a, b in _TWINS]
    return [(a, b) for a, b in pairs if a in weights]


# --- views --------------------------------------------------------------------------------------------


def _window(array: Any) -> Any:
    """The same values at every second place of a larger array, between nines that must not be read."""
    larger = array.repeat_interleave(2, 0) if isinstance(array, Tensor) else array.repeat(2, 0)
    larger[::2] = 9.0
    return larger[1::2]


def _inner_window(array: Any) -> Any:
    """The same along the last axis."""
    last = array.ndim - 1
    larger = array.repeat_interleave(2, last) if isinstance(array, Tensor) else array.repeat(2, last)
    larger[..., 1::2] = 9.0
    return larger[..., ::2]


def _transposed(array: Any) -> Any:
    """The same values with the axes in memory the other way round."""
    if isinstance(array, Tensor):
        axes = list(range(array.ndim))[::-1]
        return array.permute(axes).contiguous().permute(axes)
    return array.T.copy().T


def _expanded(array: Any) -> Any:
    """The first number, read again for every place: all strides are zero."""
    if isinstance(array, Tensor):
        return array.flatten()[:1].reshape((1,) * array.ndim).expand(array.shape)
    return _stretched(array)


def _stretched(array: Any) -> Any:
    return np.broadcast_to(array[:1] if array.ndim > 2 else array.ravel()[:1], array.shape)


def _reversed(array: Any) -> Any:
    """The same values with a negative stride along the tokens."""
    return array[:, ::-1].copy()[:, ::-1]


def properties() -> Iterator[Property]:
    """Three or four for each function."""
    for function in EVERY:
        name = function.name
        yield contract_property(
            function,
            "edited-arrays",
            f"{name} reads edited arrays again, and what it returned before does not change.",
            numbers_are_read_anew,
            "other numbers give another output",
            every_dtype=True,
            rows=0.5,
            once=True,
        )
        yield contract_property(
            function,
            "windows",
            f"{name} reads views as they are: windows, transposed and expanded arrays, weights in any order.",
            windows_are_read_as_they_are,
            _MOVES,
            rows=0.5,
        )
        yield contract_property(
            function,
            "shared-memory",
            f"{name} reads arrays that share memory: overlapping x and h, one array for two weights.",
            arrays_may_share_memory,
            _MOVES,
            rows=0.5,
        )
        if not function.starts_at_the_memory:
            yield contract_property(
                function,
                "one-array",
                f"x and h of {name} may be the same array; the output is that for two equal arrays.",
                one_array_is_two,
                _MOVES,
                rows=0.5,
                controls=frozenset({"random"}),
            )
