"""A call leaves its arguments as they were, reads them in any memory layout, and returns their dtype.

Arrays may be views, may share memory and may be edited: a call reads their current numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.changes import form_of, held, states_of
from cemverify.conformance.asking.contexts import MODES, halved
from cemverify.conformance.asking.differentiation import arguments_of, of_named_arrays
from cemverify.conformance.asking.experiments import experiment, shapes
from cemverify.conformance.asking.views import (
    exchange,
    expanded,
    inner_window,
    overwrite,
    renewed,
    repeated,
    reverse_strided,
    transposed,
    window,
    writable,
)
from cemverify.conformance.implementations.arrays import NUMPY, TORCH
from cemverify.conformance.implementations.faults import Raised
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, together, unchanged_but, yes
from cemverify.conformance.oracle.functions import EVERY, Function
from cemverify.conformance.properties.explanations import ARGUMENTS_KEPT, READ_ANEW, WINDOWS_READ
from cemverify.conformance.properties.functions import MOVES, contract_claim, lower_dtypes
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.contexts import USUAL


@contract_claim(
    "shape-and-dtype",
    claim="The answer has the right shape, and the dtype of x: float64, float32 or bfloat16.",
    formula="shape(x') = shape(x),  dtype(x') = dtype(x),  device(x') = device(x)",
    why="A layer that answers in float32 whatever it is given silently lowers the precision of everything after it.",
    premise="the call returns an answer",
    floor=1.0,
)
def dtype_is_kept(function: Function, caller: Caller, case: Case) -> Evidence:
    """The answer has the declared kind, and the dtype and device of x, in each dtype that is offered."""
    comparisons = []
    for dtype in dict.fromkeys((caller.dtype, *lower_dtypes(caller))):
        expected, returned = _forms(caller.at(dtype), function.name, case, function.shape(case))
        for aspect, wanted in expected.items():
            form = returned.get(aspect)
            kind = Compared.DTYPE if aspect == "dtype" else Compared.FORM
            claim = kind(f"{wanted} in, {form} out: the {aspect} is kept")
            comparisons.append(yes(claim, holds=form == wanted))
    return Evidence.of(*comparisons)


@experiment()
def _forms(caller: Caller, name: str, case: Case, shape: torch.Size) -> tuple[dict[str, str], dict[str, str]]:
    """Kind, dtype and device of x, and of what is returned."""
    argument, returned = caller.array(case.x), caller.raw(name, case)
    as_tensor(returned, shape)
    return _form(argument), _form(returned)


def _form(array: Any) -> dict[str, str]:
    kind = type(array).__module__.partition(".")[0].removesuffix("lib")  # jaxlib's are JAX's
    return {"kind": kind, "dtype": _short(array.dtype), "device": str(getattr(array, "device", "cpu"))}


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


@contract_claim(
    "inputs-unchanged",
    claim="A call leaves its arguments unchanged, and modules in eval mode.",
    **ARGUMENTS_KEPT,
    premise="the call returns an answer",
    floor=1.0,
)
def arguments_are_left_alone(function: Function, caller: Caller, case: Case) -> Evidence:
    """After a call every array has the bits, the layout and the flags that it had; names and config are the same.

    That holds in every mode of the call (the modes take turns), and also for arrays that record gradients: the call
    leaves no gradient in them. Modules in eval mode keep their values.
    """
    torch_ = caller.kind is TORCH
    mode = (USUAL, *MODES)[case.turn(1 + len(MODES))] if torch_ else USUAL
    after, changed = _after_a_call(caller, function.name, case, mode, records=False)
    before, exact = {"x": case.x, "h": case.h, **case.weights}, torch.zeros(())
    where = "" if mode == USUAL else f" {mode}"
    comparisons = [
        Comparison(Compared.KEPT(f"{key} after the call{where}", key), array, before[key], exact)
        for key, array in after.items()
    ]
    if torch_ and "gradients" not in caller.subject.not_offered:
        with suppress(Raised):  # if it cannot record them, the properties of `training` report it
            changed = changed or _after_a_call(caller, function.name, case, USUAL, records=True)[1]
    return Evidence.of(*comparisons, unchanged_but(changed, "nothing else changes"))


@experiment(
    lambda arguments: (shapes({"x": arguments.case.x, "h": arguments.case.h, **arguments.case.weights}), None),
    finite=False,  # whatever a call leaves in them is compared
)
def _after_a_call(
    caller: Caller, name: str, case: Case, mode: str, *, records: bool
) -> tuple[dict[str, Tensor], list[str]]:
    """Every array after a call in a mode, and what else has changed, as phrases."""
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


# Two windows of one array of any kind: (B, 2J, D) -> x, h.
Windows = Callable[[Any], tuple[Any, Any]]
_CALLS = 5  # more than the buffers of a small ring
_AFTER_ALL = Compared.LATER("an output after calls for small edits = before them", "small edits")
_TWINS = (("W_Q", "W_K"), ("V", "W"), ("P_U", "P_V"), ("to_self", "to_others"))  # of one shape
_FLAT = ("P_d", "diagonal", "to_others")  # may be one number for every channel or head


@contract_claim(
    "edited-arrays",
    claim="Edited arrays are read again, and what was returned before does not change.",
    **READ_ANEW,
    premise="other numbers give another output",
    every_dtype=True,
    once=True,
)
def numbers_are_read_anew(function: Function, caller: Caller, case: Case) -> Evidence:
    """If arrays get new values, as weights do from an optimiser, the answer is that for the new values.

    That holds if two neighbouring numbers of one array are exchanged, which leaves its sum, its norm and its ends as
    they were, and for new arrays in memory that was freed. An earlier result keeps its numbers, and writing into it
    changes no argument and no later answer. That also holds if all weights are zero: the result then has the numbers
    of x, but not its memory.
    """
    other = halved(case)
    first, fresh = caller.answer(function.name, case), caller.answer(function.name, other)
    later, edited, unmoved, again, still, still_again = _of_edited_arrays(
        caller, function.name, case, other, function.shape(case)
    )
    exchanged = _of_arrays_edited_one_by_one(caller, function.name, case, function.shape(case))
    return Evidence.of(
        *(
            Comparison(claim, got, expected, torch.zeros(()))
            for claim, (got, expected) in {
                Compared.EDITED("output for edited arrays = output for new arrays"): (edited, fresh),
                Compared.LATER("an output after further calls = before them"): (later, first),
                Compared.LATER("an output after its arrays were edited = before", "edits"): (unmoved, first),
                Compared.OVERWRITTEN("output after an earlier one was overwritten = before"): (again, fresh),
                Compared.OVERWRITTEN("output for zero weights after an earlier one was overwritten = before", "0"): (
                    still_again,
                    still,
                ),
                **exchanged,
            }.items()
        ),
        telling=not torch.equal(first, fresh),
    )


@experiment(lambda arguments: [arguments.shape] * 6, calls=2)
def _of_edited_arrays(
    caller: Caller, name: str, case: Case, other: Case, shape: torch.Size
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The first answer after other calls; one for edited arrays; the first one then; one after both were edited.

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


@experiment(
    lambda arguments: dict.fromkeys(
        [_AFTER_ALL, *_edits(arguments.caller, arguments.case, arguments.name)], [arguments.shape] * 2
    ),
    calls=2,
)
def _of_arrays_edited_one_by_one(caller: Caller, name: str, case: Case, shape: torch.Size) -> dict[str, list[Tensor]]:
    """After each edit the answer for the edited arrays, and that for new ones with the same numbers, by the claim.

    In half of the cases no gradients are recorded, because most is cached then.
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


def _edits(caller: Caller, case: Case, name: str) -> dict[str, str | None]:
    """What is edited, as a claim, and the array in which numbers are exchanged; None if all are new.

    A case edits every second array, these or the others in turn.
    """
    if not caller.kind.editable:
        return {}
    arrays = list(arguments_of(case, name))[case.turn(4) // 2 :: 2]  # turn(2) says whether gradients are recorded
    exchanged: dict[str, str | None] = {
        Compared.EDITED(f"output for two numbers exchanged in {key} = output for new arrays", key): key
        for key in arrays
    }
    freed = Compared.EDITED("output for new arrays in the memory of others = output for new arrays", "freed memory")
    return {**exchanged, freed: None}


@contract_claim(
    "windows",
    claim="Views are read as they are: windows, transposed and expanded arrays, weights in any order.",
    **WINDOWS_READ,
    premise=MOVES,
)
def windows_are_read_as_they_are(function: Function, caller: Caller, case: Case) -> Evidence:
    """Windows of larger arrays, reversed and transposed ones, expanded ones, and weights in any order are read."""
    weights = {name: _level(w) if name.split(".")[-1] in _FLAT else w for name, w in case.weights.items()}
    evidences = []
    for one_state in (False, True) if case.x is not case.h else (False,):
        x, h = case.x, case.h  # one state is reused for every row, or one memory for every row, token or channel
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


@contract_claim(
    "shared-memory",
    claim="Arrays that share memory are read correctly: overlapping x and h, one array for two weights.",
    formula="F(x, h overlapping) = F(copies)",
    why="x and h are often windows of one array. A layer that writes before it has read everything answers wrongly.",
    premise=MOVES,
)
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
        claim = "output for arrays that share memory = right output"
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


@contract_claim(
    "one-array",
    claim="x and h may be the same array; the output is that for two equal arrays.",
    formula="F(x, x) = F(x, copy of x)",
    why="In self-attention the state and the memory are one array. An update in place moves the memory that must "
    "stay fixed.",
    premise=MOVES,
    of=[function for function in EVERY if not function.starts_at_the_memory],
    controls=frozenset({"random"}),
)
def one_array_is_two(function: Function, caller: Caller, case: Case) -> Evidence:
    """x and h may be one array, as in self-attention; the output is that for two equal arrays."""
    case = replace(case, x=case.h)
    got = _of_one_array(caller, function.name, case, function.shape(case))
    return function.evidence("output with x and h as one array = right output", got, case, caller.dtype)


@experiment(lambda arguments: arguments.shape)
def _of_one_array(caller: Caller, name: str, case: Case, shape: torch.Size) -> Tensor:
    _, h, weights = caller.arguments(case)
    return as_tensor(caller.call(name, case, h, h, weights), shape)


def _level(weight: Tensor) -> Tensor:
    """A weight in which every number equals the first."""
    return weight.flatten()[0].expand_as(weight).contiguous()


def _twins(weights: dict[str, Any]) -> list[tuple[str, str]]:
    """Names of weights of one shape, a block's included."""
    prefixes = {name.rpartition(".")[0] for name in weights}
    pairs = [(f"{p}.{a}" if p else a, f"{p}.{b}" if p else b) for p in prefixes for a, b in _TWINS]
    return [(a, b) for a, b in pairs if a in weights]


def _axis(array: Any) -> int:
    """The axis whose turn it is: of rows, of tokens or of channels, by the sizes of the last two."""
    return int(sum(array.shape[1:]) % 3)
