"""What is wrong with a layer whose every token is a step: is it right for a loop that differs in one thing?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from cemverify.conformance.asking.boxes import Box, flat, form_of
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.faults import Discard, Fault
from cemverify.conformance.judging.localisation.bench import WrongPart
from cemverify.conformance.properties.layers.oracle import rounding
from cemverify.conformance.questions.black_boxes import Question, scattered

_SEEDS = (1, 2, 3, 4)
_CARRIED = 2.0**10  # times the roundoff of one sum: what a recurrence of some tokens may make of it

# by the name of the other loop (see `online.Recurrence.others`): the part that is wrong, and what the layer does
_PARTS: Mapping[str, tuple[str, str]] = {
    "nothing forgotten": ("forgetting", "it does what a loop does that forgets nothing"),
    "gradient before forgetting": ("place of the gradient", "it is taken at the state before it forgets"),
    "gradient after forgetting": ("place of the gradient", "it is taken at what is kept of the state"),
    "gradient of the present state": ("mini-batches", "every gradient is taken at the present state"),
    "no momentum": ("momentum", "it does what a loop does without momentum"),
    "steps of size 1": ("step size", "every step has size 1"),
    "steps of the other sign": ("sign of the step", "the state climbs the loss"),
    "half the step": ("size of the step", "each is half as long, as where a square's factor 2 is left out"),
    "twice the step": ("size of the step", "each is twice as long, as where a square has no factor 1/2"),
    "no preconditioner": ("preconditioner", "it does what a loop does without P"),
    "read before": ("reading", "outputs are read before the token's step"),
    "read after": ("reading", "outputs are read after the token's step"),
}


def localise_loop(caller: Caller, question: Question) -> WrongPart | None:
    """The one thing in which the layer's loop differs from the one declared; None if no single one explains it."""
    box = Box.of(caller)
    form = replace(form_of(box.layer), shapes=None)
    wrong = []
    try:
        for case in (question, *(scattered(form, seed, {"J": 3}) for seed in _SEEDS)):
            q = box.asked(case)
            got = box.answer(q)
            if not _alike(box, q, flat(got), flat(box.of_loop(q, ""))):
                wrong.append((q, flat(got)))
        for other in [name for name in box.layer.others if name in _PARTS] if wrong else ():
            if all(_alike(box, q, got, flat(box.of_loop(q, other))) for q, got in wrong):
                return WrongPart(*_PARTS[other])
    except (Fault, Discard):
        return None
    return None


def _alike(box: Box, q: Question, got: torch.Tensor, expected: torch.Tensor) -> bool:
    allowed = _CARRIED * rounding(box, q, {"": expected})[:, None]
    return bool(((got - expected).abs() <= allowed).all())
