"""Who reads whom: tokens, rows, masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.boxes import Arrays, Box, Fixed, flat
from cemverify.conformance.implementations.energy_layers import TOKENS
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, moved
from cemverify.conformance.properties.explanations import CAUSAL, ROWS_APART
from cemverify.conformance.properties.layers.base import Cases, states
from cemverify.conformance.properties.layers.oracle import (
    along,
    compared,
    drawn_mask,
    rounding,
    solved,
    terms,
    token_count,
    tokens,
    with_tokens,
)
from cemverify.conformance.questions.black_boxes import Named, Question, along_axis, dressed

_ALL = 24  # the most tokens or rows each of which is changed or tested by itself; of more, these are:
_SOME = 4  # some of them,
_HALVES = 4  # or random halves, which show what any token does to any other
_SEAMS = (32, 64, 128, 256)  # or the ends of tiles
_ONE_IN = 5  # one question in so many has large states
_SEVERAL = "there are several tokens, and their values are not zero"
_SEVERAL_TOKENS, _SEVERAL_ROWS = Cases({"J": 2}, long=2), Cases({"B": 2}, long=10, plain=True)
_states = partial(states, source="memory fixed during the call (Eq. 3)")


@_states(
    "structure/layer/causality",
    claim="A token's update does not depend on later tokens.",
    **CAUSAL,
    premise=_SEVERAL,
    needs={"causality"},
    cases=_SEVERAL_TOKENS,
    controls={"random"},
)
def future_is_not_read(box: Box, q: Question) -> Evidence:
    """If tokens from the i-th on are changed or left out, updates and energies of the earlier ones stay the same.

    Some questions have states so large that they outweigh a finite penalty in place of a mask. If they do not, the
    number of later tokens still changes the result, so a row is also compared with its beginnings.
    """
    loud = q.seed % _ONE_IN == 0 and not box.layer.draw
    if loud:
        q = box.rounded(dressed(q, "huge-states"))
    change, became = ((lambda a: 512.0 * a), "512 times as large") if loud else (_another, "3 - 2x")
    before = _of_tokens(box, q)
    comparisons = []
    J = token_count(box, q)
    lengths = list(range(1, J)) if J <= _ALL else [seam for seam in (*_SEAMS, J - 1) if seam < J]
    for i in lengths:
        after = _of_tokens(box, _tokens_changed(box, q, range(i, J), change, memory=True))
        claim = f"updates before token t when all from t on become {became}"
        comparisons += _unchanged(claim, box, q, after, before, range(i), solved(box))
    energy = box.layer.energy is not None and box.layer.stated.per == "token"
    energies = {"E": box.energies(box.mapped(q.x, q.memory), q.memory)} if energy else {}
    for i in [i for i in (lengths[:1] if box.caller.kind.compiles else lengths) if i >= box.layer.shortest]:
        alone = along_axis(q, box.form, TOKENS, list(range(i)))
        claim = f"updates of the first t tokens without the other {J - i} = in the whole row"
        comparisons += _unchanged(claim, box, q, _of_tokens(box, alone), before, range(i), solved(box))
        if energy:
            short = {"E": box.energies(box.mapped(alone.x, alone.memory), alone.memory)}
            text = f"energies of the first t tokens without the other {J - i} = in the whole row"
            claim = Compared.ENERGY(text)
            comparisons += _unchanged(claim, box, q, short, energies, range(i))
    return _judged(comparisons)


@_states(
    "structure/layer/own-state",
    claim="With the memory fixed, other tokens' states do not affect a token's update.",
    formula="x_j changed for all j != i at fixed memory:  x'_i unchanged",
    why="The energy is per token with the memory fixed. If states couple, what is minimised is another function.",
    premise=_SEVERAL,
    needs={"own-state"},
    cases=_SEVERAL_TOKENS,
    controls={"random"},
)
def own_state_only(box: Box, q: Question) -> Evidence:
    """With the memory fixed, changing the state of one token does not change the other tokens' updates."""
    return _others_stay(box, q, "updates", lambda question: _of_tokens(box, question), solved(box))


@_states(
    "structure/layer/energy-per-token",
    claim="With the memory fixed, other tokens' states do not affect a token's energy.",
    formula="x_j changed for all j != i at fixed memory:  E_i unchanged",
    why="A stated energy that mixes tokens is not the sum that the update descends token by token.",
    premise=_SEVERAL,
    needs={"energy", "energy-per-token"},
    cases=_SEVERAL_TOKENS,
    controls={"random-energy"},
)
def energy_is_per_token(box: Box, q: Question) -> Evidence:
    """With the memory fixed, changing the state of one token does not change the other tokens' energies."""
    g = box.mapped(q.x, q.memory)
    memory: Any = Fixed(g) if box.layer.reads_itself else q.memory
    return _others_stay(
        box, q, "energies", lambda question: {"E": box.energies(box.mapped(question.x, question.memory), memory)}
    )


def _others_stay(
    box: Box, q: Question, what: str, values: Callable[[Question], Named], slack: float = 0.0
) -> Evidence:
    before, comparisons = values(q), list[Comparison]()
    for chosen, witnesses in _apart(token_count(box, q), q):
        after = values(_tokens_changed(box, q, chosen, _another, memory=False))
        kind = Compared.ENERGY if what == "energies" else Compared.ANSWER
        claim = kind(f"the other tokens' {what} when token t of x becomes 3 - 2x")
        comparisons += _unchanged(claim, box, q, after, before, witnesses, slack)
    return _judged(comparisons)


@_states(
    "structure/layer/batch-independence",
    claim="A batch row's update and energy do not depend on the other rows.",
    **ROWS_APART,
    premise="the update is not zero",
    cases=_SEVERAL_ROWS,
    controls={"random"},
)
def batch_rows_are_independent(box: Box, q: Question) -> Evidence:
    """Every row alone has the same update and energy as among others."""
    among = box.answer_of_rows(q)
    tolerance = rounding(box, q, among) + solved(box)
    comparisons = []
    values = None
    if box.layer.energy is not None and box.layer.stated.per != "batch":
        values = box.energies(box.mapped(q.x, q.memory), q.memory).reshape(q.batch, -1)
    for i in _some(range(q.batch if q.batch > 1 else 0), q):
        row = q.rows([i])
        alone = box.answer(row, padded=False)
        expected = {name: array[i : i + 1] for name, array in among.items()}
        comparisons += compared("a batch row alone = the same row in a batch", alone, expected, tolerance[i : i + 1])
        if values is not None:
            single = box.energies(box.mapped(row.x, row.memory), row.memory, padded=False).reshape(1, -1)
            wide = rounding(box, row, {"E": single})
            claim = Compared.ENERGY("the energy of a batch row alone = the same row in a batch")
            comparisons += compared(claim, {"E": single}, {"E": values[i : i + 1]}, wide)
    return _judged(comparisons)


@_states(
    "structure/layer/batch-invariance",
    claim="A batch row's update has the same bits in any batch.",
    formula="u(x_b) among other rows = u(x_b) alone, bit for bit",
    why="Serving frameworks batch requests as they come. Where a kernel's order of sums follows the batch, the same "
    "prompt has other answers at other times, and what is sampled is not what is trained.",
    premise="the update is not zero",
    needs={"batch-invariant"},
    since="2026.12",
    cases=_SEVERAL_ROWS,
    controls={"random"},
)
def bits_do_not_depend_on_the_batch(box: Box, q: Question) -> Evidence:
    """The bits of some rows: alone, twice, and among the others in another order; in float32 if it is offered."""
    comparisons = []
    narrow = box if "dtype:float32" in box.layer.not_offered else box.at(torch.float32)
    q = narrow.rounded(q)
    among, order = narrow.answer(q), list(reversed(range(q.batch)))
    turned = {name: array[order] for name, array in narrow.answer(q.rows(order)).items()}
    for i in _some(range(q.batch if q.batch > 1 else 0), q):
        row, zero = {name: array[i : i + 1] for name, array in among.items()}, torch.zeros(1)
        for how, rows in (("alone", [i]), ("twice", [i, i])):
            alone = {name: array[:1] for name, array in narrow.answer(q.rows(rows), padded=False).items()}
            comparisons += compared(f"bits of a batch row {how} = in a batch", alone, row, zero)
        reversed_row = {name: array[i : i + 1] for name, array in turned.items()}
        comparisons += compared("bits of a batch row in another order = in a batch", reversed_row, row, zero)
    return _judged(comparisons)


@_states(
    "structure/layer/batch-energy",
    claim="The energy of a batch is the sum or mean of its rows' energies, as declared.",
    formula="E(x_1, ..., x_B) = sum or mean over b of E(x_b), as declared",
    why="Where a sum is declared and a mean is taken, the step is shorter by the size of the batch.",
    premise="there are several rows, and their energies are not zero",
    needs={"energy", "batch-energy"},
    cases=_SEVERAL_ROWS,
)
def batch_energy_is_the_rows(box: Box, q: Question) -> Evidence:
    """One scalar for the batch is the sum, or the mean, of the rows' scalars, as declared."""
    g = box.mapped(q.x, q.memory)
    whole = box.energies(g, q.memory)
    rows = torch.stack(
        [
            box.energies({k: a[i : i + 1] for k, a in g.items()}, {k: a[i : i + 1] for k, a in q.memory.items()})
            for i in range(q.batch)
        ]
    )
    mean = "batch" in box.layer.stated.mean_over
    expected = rows.mean() if mean else rows.sum()
    tolerance = (rounding(box, q, {"E": rows[:, None]}) * terms(q)).sum()
    claim = Compared.ENERGY(f"the energy of the batch = the {'mean' if mean else 'sum'} of the rows'")
    return Evidence.of(Comparison(claim, whole, expected, tolerance), telling=q.batch > 1 and moved(rows, tolerance))


@_states(
    "structure/layer/permutation",
    claim="The update of reordered tokens is the reordered update.",
    formula="F(pi x) = pi F(x)",
    why="A layer without positions that depends on the order has positions after all.",
    premise="the new order changes the update",
    needs={"permutable"},
    cases=_SEVERAL_TOKENS,
    controls={"random"},
)
def reordering_reorders(box: Box, q: Question) -> Evidence:
    """The update of reordered tokens is the reordered update."""
    J = token_count(box, q)
    order = torch.randperm(J, generator=torch.Generator().manual_seed(q.seed % 2**31))
    if torch.equal(order, torch.arange(J)):
        order = order.roll(1)
    other = along_axis(q, box.form, TOKENS, order.tolist())
    before, after = box.displacement(q), box.displacement(other)
    expected = with_tokens(before, box.layer.state, lambda array: array[:, order])
    tolerance = rounding(box, q, before) + solved(box)
    telling = moved(flat(expected) - flat(before), along(tolerance, flat(expected)))
    return Evidence.of(
        *compared("update of reordered tokens = reordered update", after, expected, tolerance), telling=telling
    )


@_states(
    "structure/layer/mask",
    claim="Masked tokens change nothing.",
    formula="x_j, h_j changed where mask_j = 0:  everything else unchanged",
    why="Padding that is read changes results with the length of the longest row in the batch.",
    premise="a token is masked, and the others' updates are not zero",
    needs={"masked"},
    cases=_SEVERAL_TOKENS,
)
def masked_tokens_do_not_count(box: Box, q: Question) -> Evidence:
    """What masked tokens hold changes nothing, and the other tokens act as in a row without the masked ones.

    If tokens have places, a row without a token in its middle is another row: its neighbours would move together. So
    then a row without its last tokens, or its first ones, is compared, as with padding.
    """
    J, mask = token_count(box, q), drawn_mask(box, q)
    counted, same = mask[0].nonzero().flatten().tolist(), mask[:1].expand(q.batch, J)
    other = _tokens_changed(box, q, (~mask[0]).nonzero().flatten().tolist(), _another, memory=True)
    state, before, after = box.layer.state, box.displacement(q, same), box.displacement(other, same)
    claim = "update where masked tokens become 3 - 2x"
    held = _unchanged(claim, box, q, tokens(after, state), tokens(before, state), counted, solved(box))
    held += _energies_held(box, q, other, same, counted)
    if not box.layer.permutable:
        mask = mask.sort(1, descending=box.layer.masked != "left").values
    counted_updates = flat(with_tokens(before, state, lambda array: array[:, counted]))
    telling = len(counted) < J and moved(counted_updates, along(rounding(box, q, before), counted_updates))
    return replace(Evidence.of(*held, *_as_without(box, q, mask), telling=telling), drawn={"mask": mask})


# --- helpers ----------------------------------------------------------------------------------------------


def _energies_held(box: Box, q: Question, other: Question, mask: Tensor, counted: list[int]) -> list[Comparison]:
    """The energies of the tokens that count do not change if the masked ones hold something else."""
    if box.layer.energy is None:
        return []
    expected, got = (
        box.energies(box.mapped(question.x, question.memory), question.memory, mask) for question in (q, other)
    )
    if box.layer.stated.per == "token":
        expected, got = expected[:, counted], got[:, counted]
    rows = expected if expected.dim() == 2 else expected.expand(q.batch)[:, None]
    tolerance = rounding(box, q, {"E": rows}).amax()
    claim = Compared.ENERGY("energy where masked tokens become 3 - 2x", "of the others")
    return [Comparison(claim, got, expected, tolerance.expand_as(expected))]


def _as_without(box: Box, q: Question, mask: Tensor) -> list[Comparison]:
    """Each row with masked tokens, compared with the same row without them."""
    got, g = box.displacement(q, mask), box.mapped(q.x, q.memory)
    comparisons: list[Comparison] = []
    for i in _some(range(q.batch), q):
        counted = mask[i].nonzero().flatten().tolist()
        row = along_axis(q.rows([i]), box.form, TOKENS, counted)
        expected = box.displacement(row, torch.ones((1, len(counted)), dtype=torch.bool))
        tolerance = rounding(box, q.rows([i]), expected) + solved(box)
        there = along_axis(replace(q, x=got), box.form, TOKENS, counted).rows([i]).x
        comparisons += compared("update with tokens masked = update without them", there, expected, tolerance)
        if box.layer.energy is not None and box.layer.stated.per != "batch":
            one = {k: a[i : i + 1] for k, a in g.items()}
            masked = box.energies(one, {k: a[i : i + 1] for k, a in q.memory.items()}, mask[i : i + 1])
            short = box.energies(
                box.mapped(row.x, row.memory), row.memory, torch.ones((1, len(counted)), dtype=torch.bool)
            )
            masked = masked[:, counted] if box.layer.stated.per == "token" else masked
            wide = rounding(box, row, {"E": short.reshape(1, -1)})
            claim = Compared.ENERGY("energy with tokens masked = energy without them")
            comparisons += compared(claim, {"E": masked}, {"E": short}, wide)
    return comparisons


def _some(places: range, q: Question) -> list[int]:
    """All places if they are few, in order; if many, the first, the last and some others."""
    if len(places) <= _ALL:
        return list(places)
    drawn = torch.randperm(len(places), generator=torch.Generator().manual_seed(q.seed % 2**31))[: _SOME - 2]
    return sorted({places[0], places[-1], *(places[int(i)] for i in drawn)})


def _apart(tokens: int, q: Question) -> list[tuple[list[int], list[int]]]:
    """Tokens to change, and those that must not notice: each by itself, or random halves if there are many."""
    if tokens <= _ALL:
        return [([i], [j for j in range(tokens) if j != i]) for i in range(tokens if tokens > 1 else 0)]
    generator = torch.Generator().manual_seed(q.seed % 2**31)
    halves = (torch.randperm(tokens, generator=generator).tolist() for _ in range(_HALVES))
    return [(sorted(order[: tokens // 2]), sorted(order[tokens // 2 :])) for order in halves]


def _of_tokens(box: Box, q: Question) -> Arrays:
    """The update of each token: (B, J, ...)."""
    return tokens(box.answer(q), box.layer.state)


def _another(tokens: Tensor) -> Tensor:
    return 3.0 - 2.0 * tokens


def _tokens_changed(
    box: Box, q: Question, which: Any, change: Callable[[Tensor], Tensor], *, memory: bool
) -> Question:
    """The question with some tokens of the state, and of the memory, changed, or redrawn by a sampler."""
    chosen, drawn = list(which), box.anew(q)

    def changed(part: Named, again: Named, shapes: Any) -> Arrays:
        return {
            name: _exchanged(array, again[name] if name in box.layer.draw else change(array), shapes[name], chosen)
            for name, array in part.items()
        }

    x = changed(q.x, drawn.x, box.layer.state)
    held = changed(q.memory, drawn.memory, box.layer.memories) if memory else q.memory
    return replace(q, x=x, memory=held)


def _exchanged(array: Tensor, other: Tensor, shape: Any, tokens: list[int]) -> Tensor:
    """The array with another array's numbers for some tokens, along each of its token axes."""
    chosen = torch.zeros(array.shape, dtype=torch.bool)
    for axis in (axis for axis, letter in enumerate(shape, 1) if letter == TOKENS):
        chosen.index_fill_(axis, torch.tensor(tokens, dtype=torch.int64), True)
    return torch.where(chosen, other, array)


def _unchanged(
    claim: str, box: Box, q: Question, got: Named, expected: Named, which: Any, slack: float = 0.0
) -> list[Comparison]:
    chosen = list(which)
    tolerance = rounding(box, q, {k: a.reshape(q.batch, -1) for k, a in expected.items()}) + slack
    some = {k: a[:, chosen] for k, a in got.items()}
    return compared(claim, some, {k: a[:, chosen] for k, a in expected.items()}, tolerance)


def _judged(comparisons: list[Comparison]) -> Evidence:
    return Evidence.of(*comparisons, telling=any(moved(c.expected, c.budget) for c in comparisons))
