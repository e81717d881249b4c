"""What a call may depend on, and what it may change, tested for every function that the layer declares.

The energy, the state map, the Lagrangian and a preconditioner that is a function are called as often as the update,
and keep the same contract. If tokens may be masked, every second question has a mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from cemverify.conformance.asking.boxes import SCALARS, Box, flat
from cemverify.conformance.oracle.evidence import (
    Compared,
    Comparison,
    Evidence,
    moved,
    unchanged_but,
)
from cemverify.conformance.properties.base import Property
from cemverify.conformance.properties.explanations import (
    ARGUMENTS_KEPT,
    READ_ANEW,
    REPEATABLE,
    SETTINGS_KEPT,
    UNMOVED,
    UNRECORDED,
    WINDOWS_READ,
    Explanation,
)
from cemverify.conformance.properties.function_calls import (
    gradients_change_no_answer,
    settings_are_left_alone,
    surroundings_change_no_answer,
    twice_gives_the_same,
    unchanged,
)
from cemverify.conformance.properties.layers.base import Cases, energy_layer_property
from cemverify.conformance.properties.layers.calls import (
    BoxCall,
    OfCalls,
    after_a_call,
    answered,
    arguments_of,
    around_an_edit,
    around_exchanges,
    comparisons_of,
    each_of,
    mask_of,
    part_of,
    phrase_of,
    rows_of,
    twins,
    widths,
)
from cemverify.conformance.properties.layers.oracle import along, repeated, rounding
from cemverify.conformance.questions.black_boxes import Question


def inputs_are_left_alone(box: Box, q: Question) -> Evidence:
    """State, memory, noise, mask and parameters are bit for bit what they were, and so are modules in eval mode."""
    if box.layer.pieces > 1 and q.seed % 2:  # padded arrays are copies; those that fill their mini-batches are not
        q = repeated(box, q, box.layer.pieces)
    mask, comparisons, changed = mask_of(box, q), [], list[str]()
    for name, question in box.functions(box.rounded(q)).items():
        question = box.rounded(question)
        before = arguments_of(name, question, mask)
        after, states = after_a_call(box, name, question, mask)
        changed += states
        call = "call" if name == "update" else f"call of the {name}"
        comparisons += [
            Comparison(
                Compared.KEPT(f"{part} after the {call}", part_of(name, part)), after[part], array, torch.zeros(())
            )
            for part, array in before.items()
        ]
    kept = Evidence.of(*comparisons, unchanged_but(list(dict.fromkeys(changed)), "nothing else changes"))
    return replace(kept, case=q)


def edits_are_seen(box: Box, q: Question) -> Evidence:
    """Arrays that were edited in place are read anew, and an earlier answer does not change with them.

    So they are if two neighbouring numbers of one array are exchanged, which leaves its ends and its sum.
    """
    other = box.anew(replace(q, x=each_of(lambda a: 3 - 2 * a, q.x), memory=each_of(lambda a: 3 - 2 * a, q.memory)))
    mask, edits = mask_of(box, q), box.functions(other)
    comparisons, telling = [], False
    for name, question in box.functions(q).items():
        edited = edits[name]
        fresh = answered(box, name, edited, mask)
        first, unmoved, again, later, anew = around_an_edit(box, name, question, edited, mask)
        tolerance = rounding(box, edited, rows_of(fresh, q.batch))
        zero = torch.zeros(q.batch, dtype=torch.float64)
        for claim, got, expected, allowed in (
            (Compared.LATER("an output after further calls = before them"), later, first, zero),
            (
                Compared.LATER("an output after its arguments were edited = before", "edits"),
                unmoved,
                first,
                zero,
            ),
            (Compared.EDITED("update for edited arrays = update for new arrays"), again, fresh, tolerance),
            (
                Compared.OVERWRITTEN("update after an earlier one was overwritten = before"),
                anew,
                again,
                tolerance,
            ),
        ):
            comparisons += comparisons_of(name, claim, got, expected, allowed)
        for key, (got, expected) in around_exchanges(box, name, question, mask).items():
            text = f"update for two numbers exchanged in {key} = update for new arrays"
            claim = Compared.EDITED(text, key)
            comparisons += comparisons_of(
                name, claim, got, expected, rounding(box, question, rows_of(expected, q.batch))
            )
        if name == "update":
            telling = moved(flat(fresh) - flat(first), along(tolerance, flat(fresh)))
    return Evidence.of(*comparisons, telling=telling)


def windows_are_read_as_they_lie(calls: Sequence[BoxCall]) -> Evidence:
    """Windows have the same answer as arrays of their own, and so has one array that is both state and memory."""
    evidence = unchanged(calls, lambda call: call.of_windows())
    itself = [call.of_itself() for call in calls if twins(call.box, call.q)]
    shared = unchanged(itself, lambda call: call.of_shared_memory("one array")).comparisons if itself else ()
    return Evidence.of(*evidence.comparisons, *shared, telling=evidence.telling)


_OF_THE_LAST = "bytes per number of the last state = of the first (if float32 is meant, declare narrow-state absent)"


def answers_have_the_arguments_dtype(box: Box, q: Question) -> Evidence:
    """The result has the dtype of the arguments, also in float32, because a step is added to its state."""
    return _dtypes_are_kept(box, q, torch.float32)  # float64 constants widen float32 arrays


def every_answer_has_the_arguments_dtype(box: Box, q: Question) -> Evidence:
    """The same also in bfloat16: what is accumulated in float32 may be returned in float32."""
    return _dtypes_are_kept(box, q, torch.float32, torch.bfloat16)


def _dtypes_are_kept(box: Box, q: Question, *narrow: torch.dtype) -> Evidence:
    comparisons = []
    offered = [
        box.at(dtype) for dtype in narrow if str(dtype).replace("torch.", "dtype:") not in box.layer.not_offered
    ]
    for at in (box, *offered):
        may_be_wide = at.caller.dtype == torch.bfloat16 and "narrow-state" in box.layer.not_offered
        for name, question in at.functions(q).items():
            for part, *pair in zip(question.x, *widths(at, name, question), strict=False):
                is_last = bool(box.layer.outputs) and part not in box.layer.outputs
                if is_last and may_be_wide:
                    continue
                claim = Compared.DTYPE(_OF_THE_LAST if is_last else "bytes per number of the output = of the state")
                got, expected = (torch.tensor([width], dtype=torch.float64) for width in pair)
                several = len(question.x) > 1 and name not in SCALARS
                phrase = phrase_of(name, claim, part if several else "")
                comparisons.append(Comparison(phrase, got, expected, torch.zeros(())))
    return Evidence.of(*comparisons)


def properties() -> Iterator[Property]:
    """What the contract says about calls, tested for every function that an energy layer declares."""
    also = "If state and memory lie in one array, the answer is the same as for copies."
    of_windows = Explanation(
        formula="F(views) = F(copies of the views), F(x, x) = F(x, copy of x)", why=f"{WINDOWS_READ['why']} {also}"
    )
    of_dtype = Explanation(
        formula="dtype(x') = dtype(x), of float64, float32 and bfloat16",
        why="A layer that changes the dtype changes that of all that follows.",
    )
    answers, moves = "the call returns an answer", "the update is not zero"
    repeated = OfCalls(twice_gives_the_same)
    for id_, claim, explanation, check, premise in (
        ("structure/layer/determinism", "The same call returns the same bits, whatever was called in between.",
         REPEATABLE, repeated, "the call in between returns something else"),
        ("structure/layer/inputs-unchanged",
         "A call of any of the layer's functions leaves arguments, parameters and modules in eval mode unchanged.",
         ARGUMENTS_KEPT, inputs_are_left_alone, answers),
        ("structure/layer/edited-arrays",
         "Edited arrays are read again, even if two numbers are exchanged, and earlier outputs do not change.",
         READ_ANEW, edits_are_seen, "the edit changes the update"),
        ("structure/layer/windows",
         "A view into a larger array is read correctly, and so are state and memory in one array.",
         of_windows, OfCalls(windows_are_read_as_they_lie), moves),
        ("structure/layer/dtype", "The output of each of the layer's functions has the dtype of the state.",
         of_dtype, every_answer_has_the_arguments_dtype, answers),
        ("structure/layer/settings",
         "A call leaves settings of the process as they are, whatever they are, and seeds no random generator.",
         SETTINGS_KEPT, OfCalls(settings_are_left_alone), answers),
        ("modes/layer/no-gradients", "Recording gradients changes no output.",
         UNRECORDED, OfCalls(gradients_change_no_answer), moves),
        ("modes/layer/surroundings", "Settings of the process change no output.",
         UNMOVED, OfCalls(surroundings_change_no_answer), moves),
    ):  # fmt: skip
        yield energy_layer_property(
            id_,
            claim=claim,
            **explanation,
            check=check,
            premise=premise,
            needs={"editable"} if check is edits_are_seen else {"torch"} if id_.endswith("no-gradients") else set(),
            cases=Cases(plain=True),
            once=check in (repeated, edits_are_seen),  # a cache may be spoilt for good
            source="contract",
        )
