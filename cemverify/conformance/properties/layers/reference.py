"""A layer that is written for speed does what its stated plain reference does, in its update and gradients.

No energy is needed. The reference defines the right answer, and also the roundoff that is granted: the effect of a
small change of the arguments on its answer. For a layer in float32 that is measured, if the reference also takes
float64.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cemverify.conformance.asking.boxes import Box, flat
from cemverify.conformance.implementations.faults import Discard, Fault, NotFinite
from cemverify.conformance.implementations.online import OTHER_WIDTH
from cemverify.conformance.oracle.evidence import Evidence, moved
from cemverify.conformance.properties.layers.base import Cases, states
from cemverify.conformance.properties.layers.oracle import (
    OTHER_ORDERS,
    along,
    aside,
    beyond_nudges,
    compared,
    drawn_mask,
    nudged,
    rounding,
    solved,
    terms,
)
from cemverify.conformance.properties.layers.products import (
    Leaves,
    apart,
    cotangents,
    gradients_of_reference,
    gradients_of_update,
    products_are_equal,
)
from cemverify.conformance.questions.black_boxes import Named, Question

_ROUGH = 8  # times the change by differences of twice the width
_OF_A_TOKEN = 16  # roundings besides those of sums: of what a loop does with each token
_WAYS = (None, 0, 1)  # of moving numbers: all alike, and at random
_SIDES = 8  # sides of a kink that are tried
_MASKED = 3  # one in so many questions masks tokens, if the layer takes a mask
_Ask = Callable[[Box, Question], Named]  # returns the answer of the reference
_states = partial(states, needs={"reference"}, source="the declared reference", since="2026.12")


@_states(
    "structure/layer/reference",
    claim="The update is that of the stated reference, or of the loop that you declared, for short and long rows.",
    formula="u(x, m) = u_ref(x, m)",
    why="A form that is written in chunks, in parallel or for a device is compared with the plain one by some "
    "tolerance, at a few lengths. It errs at others: in the last chunk, in a batch of one, at the ends of ranges.",
    premise="the update is not zero",
    cases=Cases(long=2, many=9, sometimes=("large",)),
    controls={"random"},
    looks_around=True,
)
def update_is_the_references(box: Box, q: Question) -> Evidence:
    mask = drawn_mask(box, q) if box.layer.masked and q.seed % _MASKED == 0 else None
    near = box.near_ends(q)
    inside, q = near is not q, near
    got = box.displacement(q, mask, inside=inside)

    def ask(box: Box, q: Question) -> Named:
        return box.of_reference(q, mask, inside)

    expected, tolerance = _in_float32(box, q, ask) or _by_size(box, q, ask, got)
    tolerance = tolerance + solved(box)
    if OTHER_WIDTH in box.layer.others:  # its loss is differentiated by differences
        apart = flat(box.of_loop(q, OTHER_WIDTH)) - flat(box.of_loop(q, ""))
        tolerance = tolerance + _ROUGH * apart.abs().amax(1)
    telling = moved(flat(expected), along(tolerance, flat(expected)))
    evidence = Evidence.of(*compared("update = update of the reference", got, expected, tolerance), telling=telling)
    evidence = replace(evidence, case=q) if inside else evidence
    return evidence if mask is None else replace(evidence, drawn={"mask": mask})


def _by_size(box: Box, q: Question, ask: _Ask, got: Named) -> tuple[Named, Tensor]:
    """The reference's answer, and its possible roundoff for numbers of its size and the question's: (B,)."""
    expected = ask(box, q)
    return expected, beyond_nudges(box, q, rounding(box, q, got, expected), expected, partial(ask, box))


def _in_float32(box: Box, q: Question, ask: _Ask) -> tuple[Named, Tensor] | None:
    """The reference's answer in float64, and how far from it one in float32 may be, (B,); None without the first.

    Another order of evaluation rounds other numbers than the reference: a running sum of the logarithms of n gates is
    off by n roundings of one, at worst all of one sign. So the reference is called in float32 with its numbers moved
    by n roundings. If every token is a step, n is the longest axis; otherwise the length of the longest sum.
    """
    if box.caller.dtype != torch.float32:
        return None
    with suppress(Fault):  # it may take only float32
        exact = ask(box.at(torch.float64), q)
        unit, arrays = box.eps / 2, (*q.x.values(), *q.memory.values())
        n = _OF_A_TOKEN + max(max(a.shape[1:], default=1) for a in arrays) if box.layer.outputs else terms(q)
        answers = [ask(box, nudged(box, q, n * unit, way)) for way in _WAYS]
        worst = torch.stack([(flat(answer) - flat(exact)).abs().amax(1) for answer in answers]).amax(0)
        size = flat(exact).abs().amax(1) + flat(q.x).abs().amax(1)  # which the displacement was added to
        return exact, OTHER_ORDERS * (worst + unit * size)
    return None


@_states(
    "training/layer/reference",
    claim="Gradients of the update are those of the stated reference, or of the loop that you declared.",
    formula="v^T du/dw = v^T du_ref/dw",
    why="A backward pass that is written by hand, or goes chunk by chunk, is right where it was tried.",
    premise="some gradient is not zero",
    needs={"reference", "gradients"},
    # in these a branch not taken is infinite, or a norm has no gradient
    cases=Cases(long=2, plain=True, sometimes=("exploding-memory", "zero-memory")),
    looks_around=True,
)
def gradients_are_the_references(box: Box, q: Question) -> Evidence:
    cotangent = cotangents(q)
    got = gradients_of_update(box, q, cotangent, of_parameters=False)
    expected = gradients_of_reference(box, q, cotangent)
    got, expected = (box.along_all(q, part) for part in (got, expected))
    if _of_two_sides(box, q, cotangent, got, expected):
        raise Discard("the gradient of the reference jumps here, and the layer's is that of the other side")
    claim = "gradient with respect to {name} = that of the reference"
    return products_are_equal(box, q, claim, got, expected, *cotangent, slack=solved(box))


def _of_two_sides(box: Box, q: Question, cotangent: list[Tensor], got: Leaves, expected: Leaves) -> bool:
    """Whether the question lies at a kink (say, a clamp's end): gradients differ here but are equal beside it."""
    near = box.eps**0.5 * (1 + max(float(a.abs().max()) for a in expected.values()))
    off = apart(got, expected)
    for side in range(_SIDES if off > near else 0):
        beside = box.rounded(aside(box, q, torch.Generator().manual_seed(side), box.eps**0.5))
        try:
            of_reference = box.along_all(beside, gradients_of_reference(box, beside, cotangent))
            of_update = box.along_all(beside, gradients_of_update(box, beside, cotangent, of_parameters=False))
        except NotFinite:  # outside the domain
            continue
        if apart(of_update, of_reference) < near and apart(of_reference, expected) > off / 2:
            return True
    return False
