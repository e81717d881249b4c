"""A row in pieces: the last state of one piece is the first of the next, and nothing else passes between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.boxes import Arrays, Box, flat
from cemverify.conformance.asking.experiments import experiment, shapes
from cemverify.conformance.implementations.energy_layers import TOKENS
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, moved, unchanged_but
from cemverify.conformance.properties.layers.base import Cases, Check, states
from cemverify.conformance.properties.layers.calls import listed
from cemverify.conformance.properties.layers.oracle import (
    along,
    aside,
    beyond_nudges,
    compared,
    repeated,
    rounding,
    solved,
    token_count,
)
from cemverify.conformance.properties.layers.products import cotangents, gradients_of_way, products_are_equal
from cemverify.conformance.questions.black_boxes import Named, Question, along_axis

_PADDED = "a row with padding = the row"
_MOST_SINGLE = 40  # the most tokens that are given one by one; of longer rows, the first ones
_states = partial(states, source="the state is all that a token leaves (docs/online-layers.md)", since="2026.12")


@_states(
    "structure/layer/pieces",
    claim="A row in pieces, the last state of each given to the next, gives the outputs and the state of the row.",
    formula="f(a then b; S) = f(a; S) then f(b; S_a),  S_a the last state of f(a; S)",
    why="Prompts are read in chunks, and text is generated one token at a time. What a layer keeps beside the state, "
    "or computes from a chunk's place in the row, is lost where the row is cut.",
    premise="there are several tokens, and the update is not zero",
    needs={"pieces"},
    cases=Cases({"J": 2}, long=2, sometimes=("large",)),
    controls={"random"},
    looks_around=True,
)
def pieces_give_the_row(box: Box, q: Question) -> Evidence:
    J, size = token_count(box, q), box.layer.pieces
    if size >= J:  # its tokens once more, until there is a mini-batch to be cut after
        J, q = J + size, repeated(box, q, J + size)
    whole = box.answer(q, inside=True)
    allowed, comparisons = _allowed(box, q, whole), []
    for how, cuts in _cuts(J, size, q.seed, few=box.caller.kind.compiles).items():
        got = _in_pieces(box, q, cuts)
        comparisons += compared(f"a row {how} = the row", got, whole, allowed)
    telling = moved(flat(box.difference(whole, q.x)), along(allowed, flat(whole)))
    return replace(Evidence.of(*comparisons, telling=telling), case=q)


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
    q = _of_zeros(q)
    with_zeros = partial(box.answer, inside=True)  # zeros need not lie in its domain
    got, expected, again = _from_nothing(box, q), with_zeros(q), _from_nothing(box, q)
    allowed = 2 * beyond_nudges(box, q, rounding(box, q, expected) + solved(box), expected, with_zeros)
    telling = moved(flat(expected), along(allowed, flat(expected)))
    claim = "without a first state = with zeros"
    if bool(((flat(again) - flat(got)).abs().amax(1) > allowed).any()):  # a state is kept between calls
        claim, got, expected = "without a first state, a second time = the first time", again, got
    return Evidence.of(*compared(claim, got, expected, allowed), telling=telling)


@_states(
    "structure/layer/packed-rows",
    claim="Rows that are laid end to end give the outputs and the last states that each one gives alone.",
    formula="f(a and b end to end; bounds) = f(a), f(b)",
    why="Rows of many lengths are trained on end to end, without padding. Where the state is not set back, or a "
    "chunk reaches over the end of a row, one document is read in another one.",
    premise="there are several rows, and the update is not zero",
    needs={"packed-rows"},
    cases=Cases({"B": 2, "J": 2}, long=3),
    controls={"random"},
    looks_around=True,
)
def packed_rows_are_separate(box: Box, q: Question) -> Evidence:
    return _are_separate(box, _of_many_lengths(box, q, "packed-rows"), "rows end to end = each row")


def _padding(side: str, words: str) -> Callable[[Check], Check]:
    return _states(
        f"structure/layer/{side}-padding",
        claim=f"Padding {words} a row changes neither its outputs nor its last state.",
        formula="f(padding and a; mask) = f(a)",
        why="Prompts of many lengths are read at once by padding them. Where padding is read as tokens, or decays "
        "the state, an answer depends on the prompts beside it.",
        premise="there are several tokens, and the update is not zero",
        needs={f"{side}-padding"},
        cases=Cases({"J": 2}, long=3),
        controls={"random"},
        looks_around=True,
    )


@_padding("left", "before")
def padding_before_changes_nothing(box: Box, q: Question) -> Evidence:
    return _are_separate(box, _of_many_lengths(box, q, "left-padding"), _PADDED)


@_padding("right", "after")
def padding_after_changes_nothing(box: Box, q: Question) -> Evidence:
    return _are_separate(box, _of_many_lengths(box, q, "right-padding"), _PADDED)


def _trained(way: str, rows: str, beside: str = "") -> Callable[[Check], Check]:
    return _states(
        f"training/layer/{way}",
        claim=f"Gradients through rows {rows} are those through each row alone{beside}.",
        formula="v^T df(a and b at once)/dw = v_a^T df(a)/dw + v_b^T df(b)/dw",
        why="Rows of many lengths are trained on at once, often by a backward pass of their own. Where that is "
        "detached, or leads from one document into its neighbour, every output is right.",
        premise="some gradient is not zero",
        needs={way, "gradients"},
        cases=Cases({"B": 2, "J": 2}, plain=True),
        looks_around=True,
    )


@_trained("packed-rows", "that are laid end to end")
def gradients_of_packed_rows_are_separate(box: Box, q: Question) -> Evidence:
    return _gradients_are_separate(box, q, "packed-rows")


@_trained("left-padding", "with padding before them", ", and zero in the padding")
def gradients_of_rows_padded_before_are_separate(box: Box, q: Question) -> Evidence:
    return _gradients_are_separate(box, q, "left-padding")


@_trained("right-padding", "with padding after them", ", and zero in the padding")
def gradients_of_rows_padded_after_are_separate(box: Box, q: Question) -> Evidence:
    return _gradients_are_separate(box, q, "right-padding")


@dataclass(frozen=True)
class _Rows:
    """Rows of many lengths, as one call gets them."""

    way: str  # the function that is called
    q: Question  # the rows, of which it gets these tokens; zeros if None stands for the first state
    tokens: Sequence[range]
    memory: Arrays  # all tokens that it gets, (1, N, ...) or (B, J, ...)
    where: Tensor  # their bounds, (B + 1,), or the mask, (B, J)

    def of_tokens(self, output: Tensor) -> Tensor:
        """The part of an output (1, N, ...) or (B, J, ...) that belongs to tokens, row after row: (N, ...)."""
        return output[self.where] if self.where.dim() == 2 else output[0]

    def alone(self, box: Box) -> list[Question]:
        """Each row by itself."""
        return [along_axis(self.q.rows([i]), box.form, TOKENS, row) for i, row in enumerate(self.tokens)]

    def together(self, box: Box, alone: Sequence[Named]) -> Arrays:
        """Arrays of each row by itself, added up at their places in the call's state, outputs and memory."""
        shapes_of, like = {**box.form.state, **box.form.memory}, {**_like(box, self.q, self.where), **self.memory}
        sums = {name: torch.zeros_like(like[name]) for name in alone[0]}
        for i, arrays in enumerate(alone):
            for name, array in arrays.items():
                first = self.tokens[i].start if self.where.dim() == 2 else int(self.where[i])
                there = sums[name][min(i, len(sums[name]) - 1)][None]  # all tokens of packed rows are in one row
                for axis in (1 + j for j, letter in enumerate(shapes_of[name]) if letter == TOKENS):
                    there = there.narrow(axis, first, array.shape[axis])
                there += array
        return sums


def _of_many_lengths(box: Box, q: Question, way: str) -> _Rows:
    """The rows of a question, each with some of its tokens."""
    J, q = token_count(box, q), _begun(box, q)
    lengths = _lengths(box, q, J)
    rows = [range(J - n, J) if way == "left-padding" else range(n) for n in lengths]
    if way == "packed-rows":
        q = _of_one(box, q)
        return _Rows(way, q, rows, _end_to_end(box, q, rows), torch.tensor([0, *accumulate(lengths)]))
    mask = torch.zeros(q.batch, J, dtype=torch.bool)
    for i, row in enumerate(rows):
        mask[i, row.start : row.stop] = True
    return _Rows(way, q, rows, dict(q.memory), mask)


def _are_separate(box: Box, rows: _Rows, claim: str) -> Evidence:
    """The results for rows in one call, compared with those for each row by itself."""
    q, outputs = rows.q, box.layer.outputs
    answer, kept = _asked(box, rows.way, q, rows.memory, rows.where)
    got = {name: rows.of_tokens(a) if name in outputs else a for name, a in answer.items()}
    whole = box.answer(q, inside=True)
    claim = f"{claim}, without a first state" if _begins_with_none(box, q) else claim
    allowed = _allowed(box, q, whole)  # (B,)
    alone = [box.answer(one, padded=False, inside=True) for one in rows.alone(box)]
    of_tokens = allowed.repeat_interleave(torch.tensor([len(row) for row in rows.tokens]))  # (N,)
    expected = {name: torch.cat([a[name][0] if name in outputs else a[name] for a in alone]) for name in got}
    comparisons = [
        Comparison(f"{claim} ({name})", a, expected[name], along(of_tokens if name in outputs else allowed, a))
        for name, a in got.items()
    ]
    telling = moved(flat(box.difference(whole, q.x)), along(allowed, flat(whole)))
    return Evidence.of(*comparisons, *kept, telling=telling)


def _gradients_are_separate(box: Box, q: Question, way: str) -> Evidence:
    """Products of a cotangent with the Jacobian of one call, compared with those of each row, at its place in it."""
    q = box.rounded(aside(box, q, torch.Generator().manual_seed(q.seed % 2**31), box.eps**0.5))
    rows, begins = _of_many_lengths(box, q, way), not _begins_with_none(box, q)
    v = replace(rows, q=replace(rows.q, x=dict(zip(q.x, cotangents(q), strict=True))))
    each = [one.x for one in v.alone(box)]
    alone = [
        gradients_of_way(box, one, list(c.values()), "no-state", begins)  # the update, which may get no state
        for one, c in zip(rows.alone(box), each, strict=True)
    ]
    cotangent = list(rows.together(box, each).values())  # zeros at padding
    call = replace(rows.q, x=_like(box, rows.q, rows.where), memory=rows.memory)
    got = gradients_of_way(box, call, cotangent, way, begins, rows.where)
    got, expected = (box.along_all(call, part) for part in (got, rows.together(box, alone)))
    claim = "gradient with respect to {name} = that through each row alone"
    return products_are_equal(box, rows.q, claim, got, expected, *cotangent, slack=solved(box))


def _allowed(box: Box, q: Question, whole: Arrays) -> Tensor:
    """Twice what roundoff may do to an answer, (B,); nudges of the layer's own answer would permit any noise."""
    declared = partial(box.of_reference, mask=None)
    return 2 * beyond_nudges(box, q, rounding(box, q, whole) + solved(box), declared(q), declared)


def _lengths(box: Box, q: Question, J: int) -> list[int]:
    """The length of each row: the first has all tokens, others have fewer; two lengths if each is compiled."""
    least = min(box.layer.shortest, J)
    if box.caller.kind.compiles:
        return [max(least, J // 2) if i % 2 else J for i in range(q.batch)]
    generator = torch.Generator().manual_seed(q.seed % 2**31)
    return [J, *torch.randint(least, J + 1, (q.batch - 1,), generator=generator).tolist()]


def _begins_with_none(box: Box, q: Question) -> bool:
    """Whether None stands for the first state of rows of many lengths: in every second question, if allowed."""
    return bool(q.seed % 2) and "no-state" not in box.layer.not_offered


def _begun(box: Box, q: Question) -> Question:
    """The question with a state of zeros if None stands for it."""
    return _of_zeros(q) if _begins_with_none(box, q) else q


def _of_zeros(q: Question) -> Question:
    return replace(q, x={name: torch.zeros_like(a) for name, a in q.x.items()})


def _of_one(box: Box, q: Question) -> Question:
    """The question with arrays that all tokens share the same in all rows, as rows laid end to end have them."""
    shared = {name: a[:1].expand_as(a) for name, a in q.memory.items() if TOKENS not in box.form.memory[name]}
    return replace(q, memory={**q.memory, **shared})


def _end_to_end(box: Box, q: Question, rows: Sequence[range]) -> Arrays:
    """The memory of rows that are one row: all N tokens, (1, N, ...)."""
    memory = {}
    for name, array in q.memory.items():
        axes = [1 + i for i, letter in enumerate(box.form.memory[name]) if letter == TOKENS]
        parts = [array[i : i + 1].narrow(axes[0], 0, len(row)) for i, row in enumerate(rows)] if axes else []
        memory[name] = torch.cat(parts, axes[0]) if axes else array[:1]
    return memory


def _asked(box: Box, way: str, q: Question, memory: Arrays, where: Tensor) -> tuple[Arrays, list[Comparison]]:
    """What a function of rows of many lengths returns, and that it changes neither its arguments nor settings."""
    before = _arguments(box, q, memory, where)
    answer, after, changed = _answered(box, way, q, memory, where)
    kept = [
        Comparison(Compared.KEPT(f"{name} after the call", name), after[name], array, torch.zeros(()))
        for name, array in before.items()
    ]
    return answer, [*kept, unchanged_but(changed, "no setting of the process changes")]


def _arguments(box: Box, q: Question, memory: Arrays, where: Tensor) -> Arrays:
    """What it could change: the state, the memory, and the places of rows, by name."""
    state = {} if _begins_with_none(box, q) else {n: a for n, a in q.x.items() if n not in box.layer.outputs}
    return {**state, **memory, "where": where.double()}


def _like(box: Box, q: Question, where: Tensor) -> Arrays:
    """Arrays like the answer: the outputs of all tokens, by bounds or a mask of them, and the last states."""
    lead = where.shape if where.dim() == 2 else (1, int(where[-1]))
    outputs = box.layer.outputs
    return {name: a.new_empty((*lead, *a.shape[2:])) if name in outputs else a for name, a in q.x.items()}


@experiment(
    lambda a: (shapes(_like(a.box, a.q, a.where)), shapes(_arguments(a.box, a.q, a.memory, a.where)), None),
    calls=2,
)
def _answered(box: Box, way: str, q: Question, memory: Arrays, where: Tensor) -> tuple[Arrays, Arrays, list[str]]:
    """What a function returns, what its arguments hold then, and the settings that it changed.

    It is first called for the same rows backwards, to expose a cache by their lengths alone.
    """
    noticed: list[str] = []
    form, own, caller = box.form.memory, box.compiled, replace(box.caller, noticed=noticed)
    other = {name: a.flip([1 + i for i, n in enumerate(form[name]) if n == TOKENS]) for name, a in memory.items()}
    for each in (other, memory):
        noticed.clear()  # drops changes by modules that the first call imports
        x = None if _begins_with_none(box, q) else own.pack(q.x, "State")
        held, at = own.pack(each, "Memory"), own.array(where)
        with caller.guarded():
            answer = box.read(caller.kind.called(box.layer.ways[way], (x, held, at)), _like(box, q, where))
    names = [*(q.x if x is not None else ()), *memory, "where"]
    after = dict(zip(names, map(as_tensor, [*listed(x), *listed(held), at]), strict=True))
    return answer, {name: after[name] for name in _arguments(box, q, memory, where)}, sorted({*noticed})


@experiment(lambda arguments: shapes(arguments.q.x))
def _from_nothing(box: Box, q: Question) -> Arrays:
    """The answer for a row without a first state."""
    _, memory, *_ = box.compiled.own(q, inside=True)
    with box.caller.guarded():
        return box.read(box.caller.kind.called(box.layer.ways["no-state"], (None, memory)), q.x)


def _cuts(J: int, size: int, seed: int, *, few: bool) -> dict[str, list[int]]:
    """Where a row is cut, at multiples of a size: in two, at places that take turns, and into single ones."""
    places = list(range(size, J, size))
    cut = places[seed % len(places)]
    if few:  # if every length is compiled, in halves
        return {"in two": [places[(len(places) - 1) // 2]]}
    first = places[:_MOST_SINGLE]
    return {f"in two, after token {cut}": [cut], "one token at a time" if size == 1 else "batch by batch": first}


def _in_pieces(box: Box, q: Question, cuts: list[int]) -> Arrays:
    """The outputs of all pieces, one after the other, and the last state."""
    layer, x, outputs = box.layer, dict(q.x), []
    for begin, end in zip([0, *cuts], [*cuts, token_count(box, q)], strict=True):
        piece = along_axis(replace(q, x=x), box.form, TOKENS, range(begin, end))
        answer = box.answer(piece, inside=True)  # a state that the layer returned may lie anywhere
        outputs.append({name: answer[name] for name in layer.outputs})
        x = {name: q.x[name] if name in layer.outputs else answer[name] for name in q.x}
    return {**x, **{name: torch.cat([out[name] for out in outputs], 1) for name in layer.outputs}}
