"""An energy layer's update in every context: whatever surrounds a call, its answers and gradients are the same.

Three circumstances are crossed by a covering array: how the call is made, which call came before it, and how its
arrays are laid out. The expected answer is that of the stated energy if the step follows from it. Otherwise it is
that of a call with one more row, so that the answer is not compared with what a layer keeps between calls.

Tables are often cached by size only, and made by the first call of that size. So calls in another dtype, or in
inference mode, come first at sizes that nothing else uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.asking.boxes import Arrays, Box, flat, widened
from cemverify.conformance.asking.calls import quiet
from cemverify.conformance.asking.contexts import MODES as ENTERED
from cemverify.conformance.asking.contexts import arranged, come_before, in_a_thread
from cemverify.conformance.asking.experiments import experiment, shapes
from cemverify.conformance.asking.views import incoming
from cemverify.conformance.implementations.arrays import ArrayKind
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.named import packed
from cemverify.conformance.oracle.evidence import Evidence, moved
from cemverify.conformance.properties.base import Offer
from cemverify.conformance.properties.derivatives import with_other_signs
from cemverify.conformance.properties.layers.base import Cases, states
from cemverify.conformance.properties.layers.oracle import along, compared, golden, rounding, solved
from cemverify.conformance.properties.layers.products import (
    both_products,
    cotangents,
    displacements,
    finite,
    gradients_of_update,
    products_are_equal,
    pulled_back,
    recorded,
)
from cemverify.conformance.questions.black_boxes import Question, level, scattered, stacked
from cemverify.conformance.questions.contexts import BEFORE, USUAL, Context, layouts
from cemverify.conformance.questions.coverage import covering

_OF_PARAMETERS, _THREAD = "parameters record gradients", "in another thread"
# the modes, with the features that each needs
MODES: Mapping[str, frozenset[str]] = {
    USUAL: frozenset(),
    "in inference mode": frozenset({"inference", "autograd-modes"}),
    "under autocast": frozenset({"autograd-modes", "wide"}),
    _THREAD: frozenset(),
    "mapped": frozenset({"vmap", "autograd-modes"}),
    "x records gradients": frozenset({"gradients"}),
    "memory records gradients": frozenset({"gradients", "memory"}),
    "everything records gradients": frozenset({"gradients", "memory"}),
    _OF_PARAMETERS: frozenset({"gradients", "parameters"}),
}
_RECORDED = {
    "x records gradients": (True, False),
    "memory records gradients": (False, True),
    "everything records gradients": (True, True),
}


# sizes that no other question has, by the call that comes first at them
_UNUSED: Mapping[str, range] = {"after another dtype": range(23, 33, 2), "after inference mode": range(22, 33, 2)}


@dataclass(frozen=True)
class _AtUnusedSizes(Cases):
    """Questions; where the call before could spoil a table, they have sizes that nothing else uses."""

    def rows(self, offer: Offer) -> int:
        return len(_crossed(*_offered(offer.declared, offer.kind)))

    def scattered(self, offer: Offer, seed: int) -> Question:
        unused = _UNUSED.get(_context(offer.declared, offer.kind, seed).before)
        form = self._form(offer)
        if unused is None:
            return scattered(form, seed)
        return level(form, seed, unused[int(np.random.default_rng(seed).integers(len(unused)))])


def _context(layer: EnergyLayer, kind: ArrayKind, seed: int) -> Context:
    """The context in which a question is asked: consecutive seeds go through all contexts."""
    contexts = _crossed(*_offered(layer, kind))
    return contexts[seed % len(contexts)]


def _offered(layer: EnergyLayer, kind: ArrayKind) -> tuple[tuple[str, ...], ...]:
    torch_ = kind.name == "torch"
    missing = {*layer.not_offered, *(() if torch_ else ("autograd-modes", "gradients", "inference"))}
    missing |= set() if layer.working_dtype == "float64" else {"wide"}  # autocast narrows float32

    def of(values: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
        return tuple(value for value, needed in values.items() if not needed & missing)

    before = [value for value in of(BEFORE) if torch_ or value != "after inference mode"]
    return of(MODES), tuple(before), layouts(kind)


@lru_cache(maxsize=32)
def _crossed(modes: tuple[str, ...], before: tuple[str, ...], arrays: tuple[str, ...]) -> tuple[Context, ...]:
    rows = covering((len(modes), len(before), len(arrays)))
    return tuple(Context(modes[i], before[j], arrays[k]) for i, j, k in rows)


@states(
    "contexts/layer/update",
    claim="The update and its gradients are the same in every context: ways to call it, calls before it, layouts of "
    "arrays, crossed in pairs.",
    formula="x' - x and v^T dx'/dw = as usual, whatever came before, however arrays lie, whichever of them record "
    "gradients",
    why="Faults that need two circumstances at once pass a suite that asks for one at a time: a table kept from "
    "inference mode and reused in training, gradients that are lost where the state is frozen.",
    premise="the update, or some gradient, is not zero",
    needs={"editable"},
    source="contract",
    cases=_AtUnusedSizes(),
    once=True,  # effects of earlier calls need not recur
)
def update_holds_in_context(box: Box, q: Question) -> Evidence:
    context = _context(box.layer, box.caller.kind, q.seed)
    if context.mode == _OF_PARAMETERS or context.mode in _RECORDED:
        return _products_hold(box, q, context)
    got = answered_in(box, q, context)
    expected, tolerance = _expected(box, q, got)
    return Evidence.of(
        *compared(f"update = as usual: {context}", got, expected, tolerance),
        telling=moved(flat(expected), along(tolerance, flat(expected))),
    )


def _expected(box: Box, q: Question, got: Arrays) -> tuple[Arrays, Tensor]:
    """The update that is expected, and the tolerance of an answer: (B,)."""
    stated = {"energy", "gradient-step", "known-preconditioner"}
    if not stated & box.layer.not_offered.keys() and box.layer.domain is None:  # else only what is along it is
        answer = golden(box, q)
        return answer.arrays, answer.tolerance_for(box, q, got)
    wider = q.rows([*range(q.batch), 0])
    of_one = box.share(q.batch) / box.share(wider.batch)
    expected = {name: of_one * a[: q.batch] for name, a in box.displacement(wider).items()}
    return expected, 2 * rounding(box, q, expected) + solved(box)


def _products_hold(box: Box, q: Question, context: Context) -> Evidence:
    cotangent = cotangents(q)
    got = products_in(box, q, cotangent, context)
    of_parameters = context.mode == _OF_PARAMETERS
    stated = {"energy", "gradient-step", "known-preconditioner", "autograd"}
    is_stated = not stated & box.layer.not_offered.keys() and box.layer.domain is None

    def expected(c: list[Tensor]) -> dict[str, Tensor]:
        both = both_products(box, q, c, of_parameters=of_parameters) if is_stated else None
        usual = replace(q, seed=0)  # its incoming gradient is contiguous
        return gradients_of_update(box, usual, c, of_parameters=of_parameters) if both is None else both[1]

    claim = f"gradient with respect to {{name}} = as usual: {context}"
    return products_are_equal(
        box, q, claim, got, expected(cotangent), *cotangent,
        slack=solved(box), cancelled=lambda: expected(list(map(with_other_signs, cotangent))),
    )  # fmt: skip


# --- in the implementation's process --------------------------------------------------------------------------------


@experiment(lambda arguments: shapes(arguments.q.x), calls=2)
def answered_in(box: Box, q: Question, context: Context) -> Arrays:
    """The displacement of a call in a context that records nothing."""
    _come_before(box, q, context)
    if context.mode == "mapped":
        return _mapped(box, q, context)
    x, memory, noise = _laid_out(box, q, context.arrays)

    def call() -> Arrays:
        return box.read(box.update_on(*_packed(x, memory), noise), q.x)

    with box.caller.guarded(), ENTERED.get(context.mode, nullcontext)():
        answer = in_a_thread(call) if context.mode == _THREAD else call()
    return box.difference({name: a.clone() for name, a in answer.items()}, q.x)


@experiment(lambda arguments: _leaves(arguments.box, arguments.q, arguments.context), calls=2)
def products_in(box: Box, q: Question, cotangent: list[Tensor], context: Context) -> dict[str, Tensor]:
    """Products of the cotangent with the update's Jacobian in the arrays that record gradients, by name."""
    _come_before(box, q, context)
    with recorded(box, context.mode == _OF_PARAMETERS) as parameters, torch.enable_grad(), box.caller.guarded():
        x, memory, noise = _laid_out(box, q, context.arrays)
        of_x, of_memory = _RECORDED.get(context.mode, (False, False))
        leaves = {**parameters, **(x if of_x else {}), **(memory if of_memory else {})}
        leaves = {name: leaf for name, leaf in leaves.items() if name not in box.layer.whole}
        for leaf in leaves.values():
            leaf.requires_grad_()
        products = pulled_back(displacements(box, x, memory, noise), leaves, cotangent, incoming(q.seed)[1])
    return finite(products)


def _leaves(box: Box, q: Question, context: Context) -> dict[str, torch.Size]:
    if context.mode == _OF_PARAMETERS:
        return shapes(box.layer.parameters)
    of_x, of_memory = _RECORDED[context.mode]
    leaves = {**(q.x if of_x else {}), **(q.memory if of_memory else {})}
    return shapes({name: array for name, array in leaves.items() if name not in box.layer.whole})


def _laid_out(box: Box, q: Question, how: str) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """State and memory in this layout, and the noise."""
    numbers = {f"{part} {name}": a for part in ("x", "memory") for name, a in getattr(q, part).items()}
    own = {name: box.array_of(name.partition(" ")[2], a) for name, a in numbers.items()}
    whole = {name for name in own if name.partition(" ")[2] in box.layer.whole}  # these share no storage with others
    arrays = {**own, **arranged(box.caller, {name: a for name, a in own.items() if name not in whole}, how)}
    x, memory = ({name: arrays[f"{part} {name}"] for name in getattr(q, part)} for part in ("x", "memory"))
    return x, memory, box.own(q, inside=True)[2]


def _packed(x: Mapping[str, Any], memory: Mapping[str, Any]) -> tuple[Any, Any]:
    return packed(x, "State"), packed(memory, "Memory") if memory else None


def _mapped(box: Box, q: Question, context: Context) -> Arrays:
    """The answer for the first of two questions that are mapped over."""
    other = box.anew(q.each(lambda array: array.flip(0) / 2))
    two = stacked((q, other))
    x, memory, noise = _laid_out(box, two, context.arrays)
    inputs = [a for a in (*_packed(x, memory), noise) if a is not None]
    with_noise = noise is not None

    def function(*arguments: Any) -> Any:
        held = list(arguments)
        last = held.pop() if with_noise else None
        return box.update_on(held[0], held[1] if memory else None, last)

    with box.caller.guarded(), quiet():
        returned = box.caller.kind.mapped(function)(*inputs)
        answers = {name: a[0] for name, a in box.read(returned, two.x).items()}
    return box.difference(answers, q.x)


def _come_before(box: Box, q: Question, context: Context) -> None:
    if (before := context.before) == USUAL:
        return
    q = box.anew(q.each(lambda array: array.flip(0) / 2))
    asked = box.at(torch.float32) if before == "after another dtype" else box
    if before == "after other sizes":
        q = q.rows([*range(q.batch), 0])
    elif before == "after a refused call":
        q = widened(q, "x")

    def train() -> None:
        cotangent = [torch.ones(a.shape, dtype=torch.float64) for a in q.x.values()]
        products_in(box, q, cotangent, Context(next(iter(_RECORDED))))

    come_before(asked.caller, before, lambda: asked.update_on(*asked.own(q, inside=True)[:3]), train)
