"""Calls of the functions that an energy layer declares, for the claims about calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor, plain
from cemverify.conformance.asking.boxes import SCALARS, Arrays, Box, flat, widened
from cemverify.conformance.asking.calls import quiet
from cemverify.conformance.asking.changes import changes_of, states_of
from cemverify.conformance.asking.experiments import Rows, experiment, shapes
from cemverify.conformance.asking.surroundings import SURROUNDINGS
from cemverify.conformance.asking.views import exchange, interleaved, overwrite, writable
from cemverify.conformance.implementations.named import packed, unpacked
from cemverify.conformance.oracle.evidence import (
    Compared,
    Comparison,
    Evidence,
    moved,
    reworded,
)
from cemverify.conformance.properties.function_calls import (
    Call,
)
from cemverify.conformance.properties.layers.oracle import along, rounding, token_count
from cemverify.conformance.questions.black_boxes import Named, Question, stacked
from cemverify.conformance.questions.contexts import USUAL

_MASKED = 0.7  # the share of tokens that count
_RING = (9, 1, 1, 1)  # calls after which an answer is read again, in turn; 9 is more than a ring of buffers has


@dataclass(frozen=True)
class BoxCall(Call):
    """A call of one function that a layer declares."""

    box: Box
    name: str  # of the function, as `Box.functions` has it
    q: Question  # its arguments
    # another question for every function
    elsewhere: Callable[[], Mapping[str, Question]]
    mask: Tensor | None = None  # of tokens, if it takes one

    @property
    def leads(self) -> bool:
        return self.name == "update"

    @property
    def surroundings(self) -> Sequence[str]:
        without = "inference" in self.box.layer.not_offered
        return [one for one in SURROUNDINGS if not (without and "inference" in one)]

    def phrase(self, claim: str) -> str:
        return phrase_of(self.name, claim)

    def answer(self) -> Arrays:
        return answered(self.box, self.name, self.q, self.mask)

    def answer_between(self) -> Arrays:
        return answered(self.box, self.name, self.elsewhere()[self.name], self.mask)

    def tolerance(self, usual: Named) -> Tensor:  # (B,)
        return rounding(self.box, self.q, rows_of(usual, self.q.batch))

    def compared(self, claim: str, got: Named, expected: Named, tolerance: Tensor | None = None) -> list[Comparison]:
        return comparisons_of(
            self.name, claim, got, expected, torch.zeros(self.q.batch) if tolerance is None else tolerance
        )

    def moved(self, usual: Named, tolerance: Tensor) -> bool:
        return moved(flat(usual), along(tolerance, flat(usual)))

    def changes(self) -> tuple[list[str], list[str]]:
        return _after_calls(self.box, self.name, self.q)

    def answer_within(self, surroundings: str) -> Arrays:
        return answered(self.box, self.name, self.q, self.mask, within=surroundings)

    def recorded(self) -> Mapping[str, Arrays]:
        return {
            Compared.ANSWER(f"output {within} = as usual", within): answered(
                self.box, self.name, self.q, self.mask, within=within
            )
            for within in (_RECORDED, _UNRECORDED)
        }

    def of_windows(self) -> Mapping[str, Arrays]:
        """What it returns for windows into wider arrays, or for one array as two, by the claim about each."""
        wider = answered(self.box, self.name, self.q, self.mask, _WINDOWS)
        both = twins(self.box, self.q) and self.box.caller.kind.editable  # others have no views
        shared = self.of_shared_memory("windows of one array") if both else {}
        return {Compared.ANSWER("update for views = update for separate arrays", "views"): wider, **shared}

    def of_itself(self) -> BoxCall:
        """The same call with an array of the state in place of one of the memory that has its shape."""
        one, other = _pair(self.box, self.q)
        return replace(self, q=replace(self.q, memory={**self.q.memory, other: self.q.x[one]}))

    def of_shared_memory(self, how: str) -> Mapping[str, Arrays]:
        """What it returns if arrays of state and memory share storage in a way of `_SHARED`, by the claim."""
        answer = answered(self.box, self.name, self.q, self.mask, how)
        return {Compared.ANSWER(f"update for state and memory as {how} = update for separate arrays", how): answer}

    def compiled(self) -> Arrays:
        """What the compiled update returns."""
        return _compiled(self.box, self.q)

    def on(self, device: str) -> Arrays:
        there = replace(self.box, caller=replace(self.box.caller, device=device))
        return answered(there, self.name, self.q, self.mask)

    def scaled(self, factor: float) -> BoxCall:
        x, memory = (each_of(lambda array: factor * array, part) for part in (self.q.x, self.q.memory))
        other = replace(self.q, x=x, memory=memory)
        return replace(self, q=self.box.rounded(other if factor == 1 else self.box.anew(other)))

    def mapped(self, calls: Sequence[BoxCall]) -> Mapping[str, tuple[Sequence[BoxCall], Arrays]]:
        whole = replace(stacked([call.q for call in calls]), seed=self.q.seed)
        return {"mapped = looped": (calls, _answered_in_mode(self.box, whole, "mapped_once"))}


@dataclass(frozen=True)
class OfCalls:
    """A check of calls as a check of a layer: of all functions that it declares, or only of the plain update."""

    check: Callable[[Sequence[BoxCall]], Evidence]
    update_alone: bool = False

    def __call__(self, box: Box, q: Question) -> Evidence:
        other = box.anew(replace(q, x=each_of(lambda a: a + 1, q.x), memory=each_of(lambda a: a + 1, q.memory)))
        elsewhere = cache(lambda: box.functions(other))
        if self.update_alone:
            return self.check([BoxCall(box, "update", q, elsewhere)])
        mask = mask_of(box, q)
        return self.check(
            [BoxCall(box, name, question, elsewhere, mask) for name, question in box.functions(q).items()]
        )


# --- calls --------------------------------------------------------------------------------------------------


def mask_of(box: Box, q: Question) -> Tensor | None:
    """A mask (B, J) for every second question to a layer that takes one."""
    if not box.layer.masked or q.seed % 2:
        return None
    drawn = torch.rand((q.batch, token_count(box, q)), generator=torch.Generator().manual_seed(q.seed % 2**31))
    mask = drawn < _MASKED
    mask[:, : box.layer.shortest] = True
    return mask


def _shapes_of_answer(arguments: Any) -> dict[str, Any]:
    """What a function's answer looks like."""
    box, name, q = arguments.box, arguments.name, arguments.q
    if name == "energy":
        return {name: box.energy_shape(q.x)}
    return {name: Rows(q.batch)} if name in SCALARS else {**shapes(q.x)}


def arguments_of(name: str, q: Question, mask: Tensor | None) -> Arrays:
    """What a call of a function could change, as it is before the call."""
    arguments = {**q.x, **q.memory, **{f"noise {part}": array for part, array in q.noise.items()}}
    return arguments if mask is None or name in _UNMASKED else {**arguments, "mask": mask.to(torch.float64)}


_WINDOWS, _RECORDED, _UNRECORDED = "windows", "with gradients recorded", "without gradients"
_MODES: Mapping[str, Callable[[], Any]] = {**SURROUNDINGS, _RECORDED: torch.enable_grad, _UNRECORDED: torch.no_grad}
_SHARED: Mapping[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "one array": lambda one, _: (one, one),
    "windows of one array": interleaved,
}


@experiment(_shapes_of_answer)
def answered(box: Box, name: str, q: Question, mask: Tensor | None, how: str = USUAL, within: str = USUAL) -> Arrays:
    """What a function returns for arrays in the usual layout, in `_WINDOWS` or one of `_SHARED`, in a mode."""
    with _MODES.get(within, nullcontext)(), box.caller.guarded():
        state, memory, noise, own_mask = _own(box, name, q, mask)
        if how == _WINDOWS:
            state, memory = _windows(box, q.x, "State"), _windows(box, q.memory, "Memory")
        elif how != USUAL:
            x, held = ({key: box.array_of(key, array) for key, array in part.items()} for part in (q.x, q.memory))
            one, other = _pair(box, q)
            x[one], held[other] = _SHARED[how](x[one], held[other])
            state, memory = packed(x, "State"), packed(held, "Memory")
        for array in (*listed(state), *listed(memory), *listed(noise)) if within == _RECORDED else ():
            array.requires_grad_(array.is_floating_point())
        answer = box.read_of(name, box.called_on(name, state, memory, noise, own_mask), q.x)
    return {part: array.clone() for part, array in answer.items()}  # so that none is a tensor of inference mode


@experiment(lambda arguments: (shapes(arguments_of(arguments.name, arguments.q, arguments.mask)), None), calls=2)
def after_a_call(box: Box, name: str, q: Question, mask: Tensor | None) -> tuple[Arrays, list[str]]:
    """What the arguments hold after a call, and what else it changes, as phrases."""
    # not moved to the domain: its nearest state may differ by roundoff, which is no edit
    state, memory, noise, own_mask = box.own(q, None if name in _UNMASKED else mask, inside=True)
    with states_of(box.caller) as states, box.caller.guarded():
        box.called_on(name, state, memory, noise, own_mask)
        changed = states()
    names = [*q.x, *q.memory, *(f"noise {part}" for part in q.noise)]
    arrays = dict(zip(names, map(as_tensor, listed(state) + listed(memory) + listed(noise)), strict=False))
    return arrays if own_mask is None else {**arrays, "mask": as_tensor(own_mask)}, changed


@experiment(lambda arguments: [_shapes_of_answer(arguments)] * 5, calls=2)
def around_an_edit(
    box: Box, name: str, q: Question, other: Question, mask: Tensor | None
) -> tuple[Arrays, Arrays, Arrays, Arrays, Arrays]:
    """An answer, and the same after its arguments were edited; the answer for their new values.

    Then the first one after further calls, and the answer for the new values again, after both were overwritten.
    """
    state, memory, noise, own_mask = _own(box, name, q, mask)
    with box.caller.guarded():
        returned = _apart(box, name, box.called_on(name, state, memory, noise, own_mask), q, state, memory)
        first = box.read_of(name, returned, q.x)
        changed = _own(box, name, other, mask)
        for array, new in zip(listed(state) + listed(memory), listed(changed[0]) + listed(changed[1]), strict=True):
            array[...] = new
        unmoved = box.read_of(name, returned, q.x)
        second = _apart(box, name, box.called_on(name, state, memory, noise, own_mask), q, state, memory)
        again = box.read_of(name, second, q.x)
        for _ in range(_RING[q.seed % len(_RING)]):
            box.called_on(name, *_own(box, name, other, mask))
        later = box.read_of(name, returned, q.x)
        for array in (*listed(returned), *listed(second)):
            overwrite(array)
        anew = box.read_of(name, box.called_on(name, state, memory, noise, own_mask), q.x)
        return first, unmoved, again, later, anew


@experiment(
    lambda arguments: dict.fromkeys(_exchanged(arguments.box, arguments.q), [_shapes_of_answer(arguments)] * 2),
    calls=2,
)
def around_exchanges(box: Box, name: str, q: Question, mask: Tensor | None) -> dict[str, list[Arrays]]:
    """After two numbers of an array were exchanged: the answer, and that for new arrays, by the array's name.

    One array is edited after the other, and new ones come last, because the layer may keep its last arrays.
    """
    state, memory, *more = _own(box, name, q, mask)
    arrays = dict(zip([*q.x, *q.memory], listed(state) + listed(memory), strict=True))

    def answer(*inputs: Any) -> Arrays:
        return box.read_of(name, box.called_on(name, *inputs), q.x)

    with box.caller.guarded():
        answer(state, memory, *more)
        answers = {}
        for key in _exchanged(box, q):
            exchange(writable(arrays[key]), lambda n: q.seed % n)
            now = {k: as_tensor(a) for k, a in arrays.items()}
            new = replace(q, x={k: now[k] for k in q.x}, memory={k: now[k] for k in q.memory})
            answers[key] = answer(state, memory, *more), new
        return {key: [got, answer(*_own(box, name, new, mask))] for key, (got, new) in answers.items()}


def _exchanged(box: Box, q: Question) -> list[str]:
    """The arrays in which two numbers may be exchanged: those with a domain would leave it."""
    return [*(q.x if box.layer.domain is None else ()), *(name for name in q.memory if name not in box.layer.ranges)]


@experiment(lambda arguments: shapes(arguments.q.x))
def _answered_in_mode(box: Box, q: Question, mode: str) -> Arrays:
    """The answer of the update in a mode, after a method of `ArrayKind` transformed it."""
    state, memory, noise, _ = box.own(q, inside=True)
    if noise is None:
        function: Any = box.layer.update
    else:

        def function(*arguments: Any) -> Any:
            return box.layer.update(*arguments[:-1], noise=arguments[-1])

    arguments = [a for a in (state, memory, noise) if a is not None]
    with box.caller.guarded(), quiet():
        returned = getattr(box.caller.kind, mode)(function)(*arguments)
        return {k: as_tensor(a) for k, a in box.read(returned, q.x).items()}


@experiment(lambda arguments: shapes(arguments.q.x), compiles=True)
def _compiled(box: Box, q: Question) -> Arrays:
    """The answer of the compiled update."""
    return _answered_in_mode(box, q, "compiled")


@experiment(lambda arguments: ([None] * (1 if arguments.name in SCALARS else len(arguments.q.x)),) * 2)
def widths(box: Box, name: str, q: Question) -> tuple[list[float], list[float]]:
    """Bytes per number: of each array of the answer, and of the state."""
    state, memory, noise, _ = _own(box, name, q, None)
    with box.caller.guarded():
        returned = box.called_on(name, state, memory, noise)
    expected = [float(array.dtype.itemsize) for array in listed(state)]
    arrays = [returned] if name in SCALARS else unpacked(returned, q.x)
    for array in arrays:
        as_tensor(array)  # a fault unless it is an array of numbers; only those have a width
    return [float(plain(array).dtype.itemsize) for array in arrays], expected[: len(arrays)]


@experiment(calls=2)
def _after_calls(box: Box, name: str, q: Question) -> tuple[list[str], list[str]]:
    """The settings that calls changed, also refused calls, and the generators that they seeded."""
    caller = replace(box.caller, noticed=[])

    def call(question: Question) -> None:
        box.called_on(name, *_own(box, name, question, None))

    def refused(part: str) -> None:
        with caller.guarded():
            call(widened(q, part))

    parts = [part for part in ("x", "memory") if getattr(q, part)]
    return changes_of(caller, [partial(call, q)], refused=[partial(refused, part) for part in parts])


def _own(box: Box, name: str, q: Question, mask: Tensor | None) -> tuple[Any, Any, Any, Any]:
    return box.own(q, None if name in _UNMASKED else mask)


# --- comparisons ----------------------------------------------------------------------------------------------

_UNMASKED = ("state map", "Lagrangian", "preconditioner")


def comparisons_of(name: str, claim: str, got: Named, expected: Named, tolerance: Tensor) -> list[Comparison]:
    """One comparison per array; the tolerance is per batch row, and the largest of these if values have no rows."""
    comparisons = []
    for part, array in expected.items():
        rows = array.dim() > 0 and len(array) == len(tolerance)
        wide = along(tolerance, array) if rows else tolerance.amax().expand_as(array)
        comparisons.append(
            Comparison(phrase_of(name, claim, part if len(expected) > 1 else ""), got[part], array, wide)
        )
    return comparisons


def phrase_of(name: str, claim: str, part: str = "") -> str:
    of = part_of(name, part)
    return reworded(claim, f"{claim} ({of})", of) if of else claim


def part_of(name: str, part: str) -> str:
    """A function, if it is not the update, and an array, if there are several."""
    return ", ".join(filter(None, ("" if name == "update" else name, part)))


def rows_of(values: Named, batch: int) -> Arrays:
    """(B, n) each; the same for every row if values have no rows."""
    return {
        name: a.reshape(batch, -1) if a.dim() > 0 and len(a) == batch else a.reshape(1, -1).expand(batch, -1)
        for name, a in values.items()
    }


# --- arrays -------------------------------------------------------------------------------------------------------


def listed(argument: Any) -> list[Any]:
    """The arrays of an argument: none, one, or those of a named tuple."""
    if argument is None:
        return []
    return list(argument) if isinstance(argument, tuple) else [argument]


def _apart(box: Box, name: str, returned: Any, q: Question, *inputs: Any) -> Any:
    """An answer, copied if it is an argument itself: the state, if nothing moves, or the memory."""
    if name in SCALARS:
        return returned
    own = [_place(array) for part in inputs for array in listed(part)]
    arrays = [plain(array) for array in unpacked(returned, q.x)]
    return tuple(box.array(as_tensor(array)) if _place(array) in own else array for array in arrays)


def _place(array: Any) -> Any:
    """Where an array begins in memory, and its layout."""
    if isinstance(array, Tensor):
        return array.data_ptr(), tuple(array.shape), array.stride()
    return np.asarray(array).ctypes.data, np.shape(array), np.asarray(array).strides


def each_of(change: Callable[[Tensor], Tensor], named: Named) -> Arrays:
    return {name: change(array) for name, array in named.items()}


def twins(box: Box, q: Question) -> list[tuple[str, str]]:
    """Names of an array of the state and one of the memory that have one shape, and may hold the same numbers."""
    bound = {*box.layer.ranges, *box.layer.draw}
    memory = [(name, array) for name, array in q.memory.items() if name not in bound]
    return [(a, b) for a, one in q.x.items() for b, other in memory if one.shape == other.shape]


def _pair(box: Box, q: Question) -> tuple[str, str]:
    """The twins for this question, in turn."""
    found = twins(box, q)
    return found[q.seed % len(found)]


def _windows(box: Box, named: Named, kind: str) -> Any:
    """Arrays as windows into wider ones, along the last axis; views if the library has them."""
    windows = {}
    for name, array in named.items():
        around = torch.full((*array.shape[:-1], array.shape[-1] + 3), 7.0, dtype=array.dtype)
        inside = (..., slice(1, 1 + array.shape[-1]))
        around[inside] = array
        windows[name] = box.array_of(name, around)[inside]
    return packed(windows, kind) if windows else None
