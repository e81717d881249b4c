"""A layer that is written for speed does what its stated reference does, a plain one: in its update and gradients.

Nothing is asked of an energy. What is right is what the reference says, also of the roundoff that is granted: what
a small change of the arguments does to its answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cemverify.conformance.asking.boxes import Box, flat
from cemverify.conformance.implementations.faults import Discard, NotFinite
from cemverify.conformance.implementations.online import OTHER_WIDTH
from cemverify.conformance.oracle.evidence import Evidence, moved
from cemverify.conformance.properties.layers.base import Cases, states
from cemverify.conformance.properties.layers.oracle import (
    along,
    aside,
    beyond_nudges,
    compared,
    drawn_mask,
    rounding,
    solved,
)
from cemverify.conformance.properties.layers.products import (
    Leaves,
    apart,
    cotangents,
    gradients_of_reference,
    gradients_of_update,
    products_are_equal,
)
from cemverify.conformance.questions.black_boxes import Question

_ROUGH = 8  # times what differences of twice the width change
_SIDES = 8  # of a kink that are tried
_MASKED = 3  # of so many questions one masks tokens, where that may be
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
    mask, within = drawn_mask(box, q) if box.layer.masked and q.seed % _MASKED == 0 else None, q
    q = box.near_ends(q)
    inside = q is not within
    got, expected = box.displacement(q, mask, inside=inside), box.of_reference(q, mask, inside)
    tolerance = rounding(box, q, got, expected) + solved(box)
    if OTHER_WIDTH in box.layer.others:  # its loss is differentiated by differences
        apart = flat(box.of_loop(q, OTHER_WIDTH)) - flat(box.of_loop(q, ""))
        tolerance = tolerance + _ROUGH * apart.abs().amax(1)
    tolerance = beyond_nudges(box, q, tolerance, expected, lambda nudged: box.of_reference(nudged, mask, inside))
    telling = moved(flat(expected), along(tolerance, flat(expected)))
    evidence = Evidence.of(*compared("update = update of the reference", got, expected, tolerance), telling=telling)
    evidence = replace(evidence, case=q) if inside else evidence
    return evidence if mask is None else replace(evidence, drawn={"mask": mask})


@_states(
    "training/layer/reference",
    claim="Gradients of the update are those of the stated reference, or of the loop that you declared.",
    formula="v^T du/dw = v^T du_ref/dw",
    why="A backward pass that is written by hand, or goes chunk by chunk, is right where it was tried.",
    premise="some gradient is not zero",
    needs={"reference", "gradients"},
    # where a branch not taken is infinite, and where a norm has no gradient
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
    """Whether the question lies at a kink, where gradients differ that are equal beside it: a clamp's at its end."""
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
