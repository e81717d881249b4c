"""Who reads whom, and what a call may depend on: tokens, rows, masks, earlier calls, the layout of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor, plain
from cemverify.conformance.asking.boxes import Arrays, Box, Fixed, finite, flat, packed, unpacked
from cemverify.conformance.asking.experiments import experiment, long_experiment
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge, moved
from cemverify.conformance.properties.base import Property
from cemverify.conformance.properties.layers.base import Cases, layer_property
from cemverify.conformance.properties.layers.oracle import (
    along,
    compared,
    rounding,
    terms,
    token_count,
    tokens,
    with_tokens,
)
from cemverify.conformance.questions.black_boxes import Named, Question

_SEVERAL = "there are several tokens, and their values are not zero"


def future_is_not_read(box: Box, q: Question) -> Evidence:
    """Other tokens from the i-th on, in the state and in the memory, leave the earlier ones' updates as they were."""
    before = _of_tokens(box, q)
    comparisons = []
    for i in range(1, token_count(box, q)):
        after = _of_tokens(box, _tokens_changed(box, q, range(i, token_count(box, q)), memory=True))
        comparisons += _unchanged("updates before token t when it becomes 3 - 2t", box, q, after, before, range(i))
    return _judged(comparisons)


def own_state_only(box: Box, q: Question) -> Evidence:
    """With the memory fixed, another state of one token leaves the other tokens' updates as they were."""
    before, J = _of_tokens(box, q), token_count(box, q)
    comparisons = []
    for i in range(J if J > 1 else 0):
        after = _of_tokens(box, _tokens_changed(box, q, [i], memory=False))
        others = [j for j in range(J) if j != i]
        comparisons += _unchanged(
            "the other tokens' updates when token t of x becomes 3 - 2t", box, q, after, before, others
        )
    return _judged(comparisons)


def energy_is_per_token(box: Box, q: Question) -> Evidence:
    """With the memory fixed, another state of one token leaves the other tokens' energies as they were."""
    J = token_count(box, q)
    memory: Any = q.memory
    g = box.mapped(q.x)
    if box.layer.reads_itself:
        memory = Fixed(g)
    before = box.energies(g, memory)
    comparisons = []
    for i in range(J if J > 1 else 0):
        other = box.mapped(_tokens_changed(box, q, [i], memory=False).x)
        after = box.energies(other, memory)
        others = [j for j in range(J) if j != i]
        what = "the other tokens' energies when token t of x becomes 3 - 2t"
        comparisons += _unchanged(what, box, q, {"E": after}, {"E": before}, others)
    return _judged(comparisons)


def batch_rows_are_independent(box: Box, q: Question) -> Evidence:
    """Every row alone gives what it gives among others, in its update and in its energy."""
    among = box.answer(q, padded=False)
    room = rounding(box, q, among)
    comparisons = []
    values = None
    if box.layer.energy is not None and box.layer.stated.per != "batch":
        g = box.mapped(q.x)
        values = box.energies(g, q.memory, padded=False).reshape(q.batch, -1)
    for i in range(q.batch if q.batch > 1 else 0):
        row = q.rows([i])
        alone = box.answer(row, padded=False)
        due = {name: array[i : i + 1] for name, array in among.items()}
        comparisons += compared("a batch row alone = the same row in a batch", alone, due, room[i : i + 1])
        if values is not None:
            single = box.energies(box.mapped(row.x), row.memory, padded=False).reshape(1, -1)
            wide = rounding(box, row, {"E": single})
            what = "the energy of a batch row alone = the same row in a batch"
            comparisons += compared(what, {"E": single}, {"E": values[i : i + 1]}, wide)
    return _judged(comparisons)


def batch_energy_is_the_rows(box: Box, q: Question) -> Evidence:
    """One scalar for the batch is the sum, or the mean, of the rows' scalars, as declared."""
    g = box.mapped(q.x)
    whole = box.energies(g, q.memory)
    rows = torch.stack(
        [
            box.energies({k: a[i : i + 1] for k, a in g.items()}, {k: a[i : i + 1] for k, a in q.memory.items()})
            for i in range(q.batch)
        ]
    )
    mean = "batch" in box.layer.stated.mean_over
    due = rows.mean() if mean else rows.sum()
    room = _spread(box, q, rows[:, None]).sum()
    what = f"the energy of the batch = the {'mean' if mean else 'sum'} of the rows'"
    return judge(Comparison(what, whole, due, room), telling=q.batch > 1 and moved(rows, room))


def twice_gives_the_same(box: Box, q: Question) -> Evidence:
    """The same call twice, with another between, gives the same bits, of both functions."""
    other = replace(q, x={k: a + 1 for k, a in q.x.items()}, memory={k: a + 1 for k, a in q.memory.items()})
    first, between, second = (box.answer_as_it_comes(asked) for asked in (q, other, q))
    zero = torch.zeros(q.batch, dtype=torch.float64)
    comparisons = compared("second call = first call", second, first, zero)
    if box.layer.energy is not None:
        g = box.mapped(q.x)
        one, two = (box.energies_as_they_come(g, q.memory) for _ in range(2))
        comparisons.append(Comparison("second energy = first energy", two, one, torch.zeros(())))
    return judge(*comparisons, telling=not torch.equal(flat(between), flat(first)))


def inputs_are_left_alone(box: Box, q: Question) -> Evidence:
    """State, memory and noise are bit for bit what they were before the call, of the energy too."""
    q = box.rounded(q)
    before = {**q.x, **q.memory, **{f"noise {name}": array for name, array in q.noise.items()}}
    after = finite(_after_a_call(box, q), before)
    return judge(
        *(Comparison(f"{name} after the call", after[name], array, torch.zeros(())) for name, array in before.items())
    )


@long_experiment
def _after_a_call(box: Box, q: Question) -> dict[str, Tensor]:
    """What the arguments hold after a call of each function."""
    state, memory, noise, _ = box.own(q)
    with box.caller.guarded():
        box.update_on(state, memory, noise)
        if box.layer.energy is not None:
            box.layer.energy(
                state, *(() if memory is None else (memory,)) if not box.layer.reads_itself else (state,)
            )
    names = [*q.x, *q.memory, *(f"noise {name}" for name in q.noise)]
    return dict(zip(names, map(as_tensor, listed(state) + listed(memory) + listed(noise)), strict=False))


def edits_are_seen(box: Box, q: Question) -> Evidence:
    """Arrays that were edited in place are read anew, and an answer that was given does not move with them."""
    other = replace(q, x={k: 3 - 2 * a for k, a in q.x.items()}, memory={k: 3 - 2 * a for k, a in q.memory.items()})
    first, kept, again = (finite(answer, q.x) for answer in _around_an_edit(box, q, other))
    fresh = box.answer(other)
    room = rounding(box, other, fresh)
    zero = torch.zeros(q.batch, dtype=torch.float64)
    telling = moved(flat(fresh) - flat(first), along(room, flat(fresh)))
    return judge(
        *compared("an output after its arguments were edited = before", kept, first, zero),
        *compared("update for edited arrays = update for new arrays", again, fresh, room),
        telling=telling,
    )


@long_experiment
def _around_an_edit(box: Box, q: Question, other: Question) -> tuple[Arrays, Arrays, Arrays]:
    """An answer, the same answer after its arguments were edited, and the answer to what they hold then."""
    state, memory, noise, _ = box.own(q)
    with box.caller.guarded():
        returned = box.update_on(state, memory, noise)
        first = box.read(returned, q.x)
        changed = box.own(other)
        for array, new in zip(listed(state) + listed(memory), listed(changed[0]) + listed(changed[1]), strict=True):
            array[...] = new
        kept = box.read(returned, q.x)
        return first, kept, box.read(box.update_on(state, memory, noise), q.x)


def windows_are_read_as_they_lie(box: Box, q: Question) -> Evidence:
    """Arrays that are windows into larger ones give what arrays of their own give."""
    usual = box.answer_as_it_comes(q)
    seen = finite(_of_windows(box, q), q.x)
    room = rounding(box, q, usual)
    return judge(
        *compared("update for views = update for separate arrays", seen, usual, room),
        telling=moved(flat(usual), along(room, flat(usual))),
    )


@experiment
def _of_windows(box: Box, q: Question) -> Arrays:
    around = replace(q, x={k: _wider(a) for k, a in q.x.items()}, memory={k: _wider(a) for k, a in q.memory.items()})
    state, memory, _, _ = box.own(around)
    noise = box.own(q)[2]
    with box.caller.guarded():
        returned = box.update_on(_inside(state, q.x, "State"), _inside(memory, q.memory, "Memory"), noise)
        return box.read(returned, q.x)


def answers_have_the_arguments_dtype(box: Box, q: Question) -> Evidence:
    """What comes back has the dtype of what went in: a step is added to its state."""
    got, due = (torch.tensor(widths, dtype=torch.float64) for widths in _widths(box, q))
    what = "bytes per number of the output = of the state"
    return judge(Comparison(what, got, due, torch.zeros(())))


@experiment
def _widths(box: Box, q: Question) -> tuple[list[float], list[float]]:
    """Bytes per number: of each array of the answer, and of the state."""
    state, memory, noise, _ = box.own(q)
    with box.caller.guarded():
        returned = unpacked(box.update_on(state, memory, noise), q.x)
    return [_width(plain(array)) for array in returned], [_width(array) for array in listed(state)]


def reordering_reorders(box: Box, q: Question) -> Evidence:
    """The update of reordered tokens is the reordered update."""
    J = token_count(box, q)
    order = torch.randperm(J, generator=torch.Generator().manual_seed(q.seed % 2**31))
    if torch.equal(order, torch.arange(J)):
        order = order.roll(1)

    def change(array: Tensor) -> Tensor:
        return array[:, order]

    state, memories = box.layer.state, box.layer.memories
    other = replace(
        q,
        x=with_tokens(q.x, state, change),
        memory=with_tokens(q.memory, memories, change),
        noise=with_tokens(q.noise, state, change) if q.noise else {},
    )
    before, after = box.displacement(q), box.displacement(other)
    due = with_tokens(before, state, change)
    room = rounding(box, q, before)
    telling = moved(flat(due) - flat(before), along(room, flat(due)))
    return judge(*compared("update of reordered tokens = reordered update", after, due, room), telling=telling)


def masked_tokens_do_not_count(box: Box, q: Question) -> Evidence:
    """Tokens that the mask leaves out change nothing: the others do what they do in a row without them."""
    J, low = token_count(box, q), box.layer.shortest
    generator = torch.Generator().manual_seed(q.seed % 2**31)
    mask = torch.rand((q.batch, J), generator=generator) < 0.5
    for i in range(q.batch):
        for j in torch.randperm(J, generator=generator).tolist():
            if int(mask[i].sum()) < low:
                mask[i, j] = True
    got = box.displacement(q, mask)
    g = box.mapped(q.x)
    comparisons, told = [], False
    state = box.layer.state
    for i in range(q.batch):
        kept = mask[i].nonzero().flatten()

        def only(array: Tensor, kept: Tensor = kept) -> Tensor:
            return array[:, kept]

        row = q.rows([i])
        row = replace(
            row,
            x=with_tokens(row.x, state, only),
            memory=with_tokens(row.memory, box.layer.memories, only),
            noise=with_tokens(row.noise, state, only) if row.noise else {},
        )
        due = box.displacement(row, torch.ones((1, len(kept)), dtype=torch.bool))
        room = rounding(box, q.rows([i]), due)
        there = with_tokens({name: a[i : i + 1] for name, a in got.items()}, state, only)
        comparisons += compared("update with tokens masked = update without them", there, due, room)
        told = told or (len(kept) < J and moved(flat(due), along(room, flat(due))))
        if box.layer.energy is not None and box.layer.stated.per != "batch":
            one = {k: a[i : i + 1] for k, a in g.items()}
            held = {k: a[i : i + 1] for k, a in q.memory.items()}
            masked = box.energies(one, held, mask[i : i + 1])
            short = box.energies(box.mapped(row.x), row.memory, torch.ones((1, len(kept)), dtype=torch.bool))
            masked = masked[:, kept] if box.layer.stated.per == "token" else masked
            wide = rounding(box, row, {"E": short.reshape(1, -1)})
            what = "energy with tokens masked = energy without them"
            comparisons += compared(what, {"E": masked}, {"E": short}, wide)
    return judge(*comparisons, telling=told)


# --- helpers ----------------------------------------------------------------------------------------------


def _of_tokens(box: Box, q: Question) -> Arrays:
    """The update of each token: (B, J, ...)."""
    return tokens(box.answer(q), box.layer.state)


def _tokens_changed(box: Box, q: Question, which: Any, *, memory: bool) -> Question:
    chosen = list(which)

    def change(array: Tensor) -> Tensor:
        other = array.clone()
        other[:, chosen] = 3.0 - 2.0 * other[:, chosen]
        return other

    x = with_tokens(q.x, box.layer.state, change)
    held = with_tokens(q.memory, box.layer.memories, change) if memory else q.memory
    return replace(q, x=x, memory=held)


def _unchanged(what: str, box: Box, q: Question, got: Named, due: Named, which: Any) -> list[Comparison]:
    kept = list(which)
    room = rounding(box, q, {k: a.reshape(q.batch, -1) for k, a in due.items()})
    some = {k: a[:, kept] for k, a in got.items()}
    return compared(what, some, {k: a[:, kept] for k, a in due.items()}, room)


def _judged(comparisons: list[Comparison]) -> Evidence:
    if not comparisons:
        return judge(Comparison("nothing to compare", torch.zeros(1), torch.zeros(1), torch.zeros(1)), telling=False)
    return judge(*comparisons, telling=any(moved(c.expected, c.budget) for c in comparisons))


def _spread(box: Box, q: Question, values: Tensor) -> Tensor:
    return rounding(box, q, {"E": values}) * terms(q)


def listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, tuple) else [given]


def _wider(array: Tensor) -> Tensor:
    """The same numbers with others around them, along the last axis."""
    around = torch.full((*array.shape[:-1], array.shape[-1] + 3), 7.0, dtype=array.dtype)
    around[..., 1 : 1 + array.shape[-1]] = array
    return around


def _inside(given: Any, like: Named, kind: str) -> Any:
    """The windows into wider arrays that hold the numbers of `like`; views, where arrays have views."""
    windows = [
        array[..., 1 : 1 + narrow.shape[-1]] for array, narrow in zip(listed(given), like.values(), strict=True)
    ]
    return packed(dict(zip(like, windows, strict=True)), kind) if like else None


def _width(array: Any) -> float:
    return float(array.dtype.itemsize)


def properties() -> Iterator[Property]:
    """The properties of the family."""
    several = Cases({"J": 2})
    rows, plain = Cases({"B": 2}, plain=True), Cases(plain=True)
    for name, claim, check, premise, needs, cases, controls in (
        ("causality", "A token's update does not depend on later tokens.",
         future_is_not_read, _SEVERAL, {"causality"}, several, {"random"}),
        ("own-state", "With the memory fixed, other tokens' states do not affect a token's update.",
         own_state_only, _SEVERAL, {"own-state"}, several, {"random"}),
        ("energy-per-token", "With the memory fixed, other tokens' states do not affect a token's energy.",
         energy_is_per_token, _SEVERAL, {"energy", "energy-per-token"}, several, {"random-energy"}),
        ("batch-independence", "A batch row's update and energy do not depend on the other rows.",
         batch_rows_are_independent, "the update is not zero", set(), rows, {"random"}),
        ("batch-energy", "The energy of a batch is the sum or mean of its rows' energies, as declared.",
         batch_energy_is_the_rows, "there are several rows, and their energies are not zero",
         {"energy", "batch-energy"}, rows, set()),
        ("determinism", "The same call returns the same bits, whatever was called in between.",
         twice_gives_the_same, "the call in between returns something else", set(), plain, set()),
        ("inputs-unchanged", "A call of either function leaves its arguments unchanged.",
         inputs_are_left_alone, "the call returns an answer", set(), plain, set()),
        ("edited-arrays", "Arrays edited between calls are read again, and earlier outputs do not change.",
         edits_are_seen, "the edit changes the update", {"editable"}, None, set()),
        ("windows", "A view into a larger array is read correctly.",
         windows_are_read_as_they_lie, "the update is not zero", set(), plain, set()),
        ("dtype", "The output has the dtype of the state.",
         answers_have_the_arguments_dtype, "the call returns an answer", set(), plain, set()),
        ("permutation", "The update of reordered tokens is the reordered update.",
         reordering_reorders, "the new order changes the update", {"permutable"}, several, {"random"}),
        ("mask", "Masked tokens change nothing.",
         masked_tokens_do_not_count, "a token is masked, and the others' updates are not zero",
         {"masked"}, several, set()),
    ):  # fmt: skip
        share = {"batch-independence": 0.7, "dtype": 0.2, "inputs-unchanged": 0.4, "edited-arrays": 0.4}.get(
            name, 1.0
        )
        yield layer_property(
            f"structure/layer/{name}",
            claim,
            check,
            premise,
            needs=needs,
            cases=cases,
            once=check is twice_gives_the_same,
            share=share,
            controls=controls,
            source="memory fixed during the call (Eq. 3)",
        )
