"""A row in pieces: the last state of one piece is the first of the next, and nothing else passes between them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from cemverify.conformance.asking.boxes import Arrays, Box, flat
from cemverify.conformance.asking.experiments import experiment, shapes
from cemverify.conformance.implementations.energy_layers import TOKENS
from cemverify.conformance.oracle.evidence import Evidence, moved
from cemverify.conformance.properties.layers.base import Cases, states
from cemverify.conformance.properties.layers.oracle import (
    along,
    beyond_nudges,
    compared,
    rounding,
    solved,
    token_count,
)
from cemverify.conformance.questions.black_boxes import Question, along_axis

_MOST_SINGLE = 40  # tokens that are given one by one; of more, the first ones
_states = partial(states, source="the state is all that a token leaves (docs/online-layers.md)", since="2026.12")


@_states(
    "structure/layer/pieces",
    claim="A row in pieces, the last state of each given to the next, gives the outputs and the state of the row.",
    formula="f(a then b; S) = f(a; S) then f(b; S_a),  S_a the last state of f(a; S)",
    why="Prompts are read in chunks, and text is generated one token at a time. What a layer keeps beside the state, "
    "or computes from a chunk's place in the row, is lost where the row is cut.",
    premise="there are several tokens, and the update is not zero",
    needs={"pieces"},
    cases=Cases({"J": 2}, long=2, sometimes="large"),
    controls={"random"},
    looks_around=True,
)
def pieces_give_the_row(box: Box, q: Question) -> Evidence:
    whole, J, size = box.answer(q), token_count(box, q), box.layer.pieces
    allowed = 2 * beyond_nudges(box, q, rounding(box, q, whole) + solved(box), whole, box.answer)
    comparisons = []
    for how, cuts in _cuts(J, size, q.seed, few=box.caller.kind.compiles).items():
        got = _in_pieces(box, q, cuts)
        comparisons += compared(f"a row {how} = the row", got, whole, allowed)
    telling = bool(comparisons) and moved(flat(box.difference(whole, q.x)), along(allowed, flat(whole)))
    return Evidence.of(*comparisons, telling=telling)


@_states(
    "structure/layer/no-state",
    claim="Without a first state, a row begins with a state of zeros.",
    formula="f(m; None) = f(m; 0)",
    why="A kernel that is compiled for a row without a first state is another kernel, with terms left out.",
    premise="the update is not zero",
    needs={"no-state"},
    cases=Cases(long=3),
    controls={"random"},
    looks_around=True,
)
def none_is_zeros(box: Box, q: Question) -> Evidence:
    q = replace(q, x={name: torch.zeros_like(a) for name, a in q.x.items()})  # which need not lie in its domain
    got, expected = _begun(box, q, nothing=True), _begun(box, q, nothing=False)
    allowed = 2 * beyond_nudges(
        box, q, rounding(box, q, expected) + solved(box), expected, partial(_begun, box, nothing=False)
    )
    telling = moved(flat(expected), along(allowed, flat(expected)))
    return Evidence.of(*compared("without a first state = with zeros", got, expected, allowed), telling=telling)


@experiment(lambda arguments: shapes(arguments.q.x))
def _begun(box: Box, q: Question, *, nothing: bool) -> Arrays:
    """What a row gives without a first state, or with the question's, which is not brought into its domain."""
    zeros, memory, *_ = box.compiled.own(q, inside=True)
    function, arguments = (box.layer.from_nothing, (memory,)) if nothing else (box.layer.update, (zeros, memory))
    assert function is not None
    with box.caller.guarded():
        return box.read(box.caller.kind.called(function, arguments), q.x)


def _cuts(J: int, size: int, seed: int, *, few: bool) -> dict[str, list[int]]:
    """Where a row is cut, at multiples of a size: in two at a place of its turn, and one after the other."""
    places = list(range(size, J, size))
    if not places:
        return {}
    cut = places[seed % len(places)]
    if few:  # where every length is compiled, in halves
        return {"in two": [places[(len(places) - 1) // 2]]}
    first = places[:_MOST_SINGLE]
    return {f"in two, after token {cut}": [cut], "one token at a time" if size == 1 else "batch by batch": first}


def _in_pieces(box: Box, q: Question, cuts: list[int]) -> Arrays:
    """The outputs of all pieces, one after the other, and the last state."""
    layer, x, outputs = box.layer, dict(q.x), []
    for begin, end in zip([0, *cuts], [*cuts, token_count(box, q)], strict=True):
        piece = along_axis(replace(q, x=x), box.form, TOKENS, range(begin, end))
        answer = box.answer(piece)
        outputs.append({name: answer[name] for name in layer.outputs})
        x = {name: q.x[name] if name in layer.outputs else answer[name] for name in q.x}
    return {**x, **{name: torch.cat([out[name] for out in outputs], 1) for name in layer.outputs}}
