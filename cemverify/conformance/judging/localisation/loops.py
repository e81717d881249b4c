"""What is wrong with a layer in which every token is a step: is it right for a loop that differs in one thing?

Loops differ as in `online.Recurrence.others`, by a usual function applied to one array of the tokens, or in the size
of what is read. A difference is reported only if it explains every question asked, several of which are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify.conformance.asking.boxes import Arrays, Box, flat, form_of
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.energy_layers import TOKENS
from cemverify.conformance.implementations.faults import Discard, Fault
from cemverify.conformance.judging.localisation.beginning import longest_right
from cemverify.conformance.judging.localisation.bench import WrongPart
from cemverify.conformance.properties.layers.oracle import rounding
from cemverify.conformance.questions.black_boxes import Question, scattered

_SEEDS = (1, 2, 3, 4)
_CARRIED = 2.0**10  # times the roundoff of one sum: how far a recurrence over some tokens may enlarge it
_SEVERAL = 2  # questions that a loop must explain and the declared one does not
_SAME = 1e-9  # relative, of a ratio

# by the name of the other loop (see `online.Recurrence.others`): the part that is wrong, and what the layer does
_PARTS: Mapping[str, tuple[str, str]] = {
    "nothing forgotten": ("forgetting", "it behaves like a loop that forgets nothing"),
    "forgetting after the step": ("forgetting", "it forgets after the step instead of before it"),
    "forgetting at each step": ("forgetting", "it forgets before each step of a token"),
    "the inverse kept": ("forgetting", "the state is divided by what it must be multiplied by"),
    "gradient before forgetting": ("place of the gradient", "it is taken at the state before forgetting"),
    "gradient after forgetting": ("place of the gradient", "it is taken at the state after forgetting"),
    "gradient of the present state": ("mini-batches", "every gradient is taken at the present state"),
    "no momentum": ("momentum", "it behaves like a loop without momentum"),
    "steps of size 1": ("step size", "every step has size 1"),
    "steps of the other sign": ("sign of the step", "the state climbs the loss"),
    "half the step": ("size of the step", "each is half as long, as where a square's factor 2 is left out"),
    "twice the step": ("size of the step", "each is twice as long, as where a square has no factor 1/2"),
    "no preconditioner": ("preconditioner", "it behaves like a loop without P"),
    "read before": ("reading", "outputs are read before the token's step"),
    "read after": ("reading", "outputs are read after the token's step"),
    **{
        f"{what} at the {place} token": (f"the {place} token", because)
        for place in ("first", "last")
        for what, because in (
            ("no step", "it takes no step"),
            ("no change", "it leaves the state as it is"),
            ("nothing forgotten", "it forgets nothing"),
        )
    },
}
# what may be done to an array of n features, or omitted; {} stands for the array
_FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sigmoid({})": torch.sigmoid,
    "sigmoid(-{})": lambda a: torch.sigmoid(-a),
    "exp({})": torch.exp,
    "logsigmoid({})": F.logsigmoid,
    "exp(-{})": lambda a: torch.exp(-a),
    "softplus({})": lambda a: F.softplus(a, threshold=torch.inf),
    "-softplus({})": lambda a: -F.softplus(a, threshold=torch.inf),
    "tanh({})": torch.tanh,
    "-{}": torch.neg,
    "1 - {}": lambda a: 1 - a,
}
_OF_FEATURES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "{} / |{}|": lambda a: F.normalize(a, dim=-1),
    "{} / sqrt(|{}|^2 + 1e-6)": lambda a: a * (a.square().sum(-1, keepdim=True) + 1e-6).rsqrt(),
    "{} / sqrt(n), n = {n}": lambda a: a / math.sqrt(a.shape[-1]),
    "{} sqrt(n), n = {n}": lambda a: a * math.sqrt(a.shape[-1]),
}
Asked = tuple[Question, Arrays, Arrays]  # a question, the answer, and that of the declared loop


def localise_loop(caller: Caller, question: Question) -> WrongPart | None:
    """The one thing in which the layer's loop differs from the one declared; None if no single one explains it."""
    box = Box.of(caller)
    form = replace(form_of(box.layer), shapes=None)
    try:
        cases = [box.asked(q) for q in (*(scattered(form, seed, {"J": 3}) for seed in _SEEDS), question)]
        asked = [(q, box.answer(q), box.of_loop(q, "")) for q in cases]
    except (Fault, Discard):
        return None
    wrong = [not _alike(box, *one) for one in asked]
    if sum(wrong) < _SEVERAL:
        return _of_length(box, asked[-1][0]) if wrong[-1] else None
    asked.sort(key=lambda one: one[0].x[box.layer.outputs[0]].numel())  # most loops differ at a short row already
    for other in filter(_PARTS.__contains__, box.layer.others):
        if _explained(box, asked, partial(box.of_loop, other=other)):
            return WrongPart(*_PARTS[other])
    return _of_an_array(box, asked) or _read(box, asked)


def _explained(box: Box, asked: Sequence[Asked], answer: Callable[[Question], Arrays]) -> bool:
    """Whether a function of the question gives every answer, up to roundoff."""
    try:
        return all(_alike(box, q, got, answer(q)) for q, got, _ in asked)
    except (Fault, Discard):
        return False


def _alike(box: Box, q: Question, got: Arrays, due: Arrays) -> bool:
    allowed = _CARRIED * rounding(box, q, due)[:, None]
    return bool(((flat(got) - flat(due)).abs() <= allowed).all())


def _of_length(box: Box, q: Question) -> WrongPart | None:
    """Whether only long rows are wrong."""

    def is_wrong(q: Question) -> bool:
        return not _alike(box, q, box.answer(q), box.of_loop(q, ""))

    try:
        right = longest_right(box, q, TOKENS, is_wrong)
    except (Fault, Discard):
        return None
    because = f"it is right for rows of up to {right} tokens, and wrong from {(right or 0) + 1} on"
    return WrongPart("long rows", because) if right else None


def _of_an_array(box: Box, asked: Sequence[Asked]) -> WrongPart | None:
    """Whether a function of one array of the tokens, used in place of the array, explains every answer."""
    shapes = {name: shape for name, shape in box.layer.memories.items() if name not in box.layer.whole}
    ways = [
        (name, words.format(*[name] * 2, n=shape[-1]), function)
        for name, shape in shapes.items()
        for words, function in (*_FUNCTIONS.items(), *(_OF_FEATURES.items() if shape[-1] != TOKENS else ()))
    ]

    def explains(function: Callable[[Tensor], Tensor], name: str, *, inside: bool) -> bool:
        """Whether the loop with the changed array gives the layer's answers; inside: the layer with it the loop's."""

        def changed(q: Question) -> Arrays:
            other = replace(q, memory={**q.memory, name: function(q.memory[name])})
            return box.answer(other, inside=True) if inside else box.of_loop(other, "", inside=True)

        return _explained(box, [(q, due if inside else got, due) for q, got, due in asked], changed)

    for inside, told in ((False, "it does what is declared with {}"), (True, "given {}, it does what is declared")):
        if fits := [(name, words) for name, words, f in ways if explains(f, name, inside=inside)]:
            because = told.format(", or ".join(f"{words} in place of {name}" for name, words in fits))
            return WrongPart(" or ".join(dict.fromkeys(name for name, _ in fits)), because)
    return None


def _read(box: Box, asked: Sequence[Asked]) -> WrongPart | None:
    """Whether states are right, and outputs are a multiple of the right ones."""
    ratios = []
    for q, got, due in asked:
        a, b = (flat({name: one[name] for name in box.layer.outputs}) for one in (got, due))
        ratios.append(ratio := float((a * b).sum() / (b * b).sum().clamp(min=1e-300)))
        scaled = {name: ratio * array if name in box.layer.outputs else array for name, array in due.items()}
        if not _alike(box, q, got, scaled):
            return None
    if max(ratios) - min(ratios) > _SAME * abs(ratios[0]):
        return None
    sizes = {shape[-1]: None for shape in box.layer.memories.values() if isinstance(shape[-1], int)}
    near = [f", the root of {n}" for n in sizes if abs(ratios[0] - n**0.5) <= _SAME * n]
    near += [f", one over the root of {n}" for n in sizes if abs(ratios[0] - n**-0.5) <= _SAME]
    return WrongPart(
        "reading",
        f"states are right, but outputs are {ratios[0]:.6g} times what they must be{near[0] if near else ''}",
    )
