"""What is wrong with an energy layer: a constant ratio, or the sub-identity that fails.

The update is compared with -eta P times the gradient of the stated energy on questions that isolate something:

    every coordinate              is the ratio of the two the same everywhere, and then which number is it?
    one token, several tokens     own terms, or what tokens do to each other
    one channel after another     a head, a group of channels, a bias
    other variables               the norm left out, applied twice, or differentiated through where it is not
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cemverify.conformance.asking.boxes import Arrays, Box, flat, form_of, plus, shaped
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.energy_layers import TOKENS, EnergyLayer
from cemverify.conformance.implementations.faults import Discard, Fault, NotFinite
from cemverify.conformance.judging.localisation.beginning import (
    Asked,
    asked_of,
    fails_at,
    is_wrong,
    longest_right,
    onset,
    where_it_begins,
)
from cemverify.conformance.judging.localisation.bench import WrongPart, two_answers
from cemverify.conformance.judging.localisation.loops import localise_loop
from cemverify.conformance.judging.localisation.steps import other_steps
from cemverify.conformance.judging.verdicts import (
    DECLARED_STEPS,
    EDITED,
    NO_ENERGY,
    NO_STEP_SIZE,
    TWO_ANSWERS,
    listed,
)
from cemverify.conformance.properties.layers.oracle import (
    jacobian,
    rounding,
    token_count,
    velocity,
    with_tokens,
)
from cemverify.conformance.questions.black_boxes import Question, scattered

_SEEDS = (1, 2, 3, 4, 5)
_SAME = 1e-5  # relative spread of a ratio that counts as constant
_ONE = 1e-9  # factors nearer to 1 explain nothing
_CUT = 1e-8  # what is left off beyond a threshold such as softplus' 20, exp(-20) = 2e-9, times a few weights
_SLIGHTLY = 1e-4  # of an update: such an error may come from rounded constants
_NEAR = 1e-5  # relative distance of a question at which roundoff differs, but a formula is nearly the same
_TWICE = 2  # questions that are asked again
_ASIDE = (1 / 64, 64.0)  # factors on the states, to be before and beyond a threshold
_TELLING = 1e4  # times its tolerance: an update must be so large that its ratio to the right one is telling
_JUMP = 8.0  # times its tolerance: an error that jumps exceeds this right behind a threshold; others are at 1 there


_NO_GRADIENT = "not the stated energy's gradient"


def localise_layer(caller: Caller, question: Question, numbers: Sequence[float] = ()) -> WrongPart | None:
    """What is wrong with the update, if the question and some dense ones of its form can tell; otherwise None.

    Args:
        numbers: those in the layer's code.
    """
    layer = caller.subject
    assert isinstance(layer, EnergyLayer)
    if layer.others:
        return localise_loop(caller, question)
    if (part := undefined(caller, question)) is not None or {"energy", "gradient-step"} & layer.not_offered.keys():
        return part
    box = Box.of(caller)
    form = replace(form_of(layer), shapes=None)
    each = 3 * max(1, len(form.letters()))
    cases = [question, *(scattered(form, each * seed + 3, {"J": 3}) for seed in _SEEDS)]
    comparisons = [asked for q in cases if (asked := asked_of(box, box.asked(q))) is not None]
    wrong = [asked for asked in comparisons if is_wrong(asked)]
    if not wrong:
        return None
    part = _asked_again(box, wrong) or (
        _edited(box, wrong)
        or _returned(box, wrong)
        or _rounded_to_float32(box, wrong)
        or other_steps(box, comparisons, numbers)
        or _ratio(box, comparisons)
        or _additive(wrong)
        or _tokens(box, wrong[0][0])
        or _other_variables(box, wrong)
        or _channels(box, wrong)
        or _direction(box, wrong)
    )
    everywhere = part is not None and part.name in (TWO_ANSWERS, EDITED, DECLARED_STEPS)
    if not everywhere and (begins := where_it_begins(caller, cases, wrong)):
        part = WrongPart(part.name, f"{part.because}; {begins}") if part else WrongPart(_NO_GRADIENT, begins)
    if part is not None and part.name == _NO_GRADIENT and (off := _share(wrong)) < _SLIGHTLY:
        part = replace(part, because=f"{part.because}; all but {off:.1g} of it is right, as with a rounded constant")
    return part and (_asked_again(box, wrong) or part)


def _share(wrong: Sequence[Asked]) -> float:
    """The largest error, relative to the largest number of the update."""
    return max(float((flat(got) - flat(due)).abs().max() / flat(due).abs().max()) for _, got, due, _ in wrong)


def undefined(caller: Caller, question: Question) -> WrongPart | None:
    """Whether the declaration is undefined at the question: it may lack a domain."""
    if "energy" in caller.subject.not_offered:
        return None
    box = Box.of(caller)
    try:
        q = box.asked(question)
    except Fault:  # in the function of the domain
        return None
    domain = "say in domain= which states and memories are allowed"
    with suppress(Fault):
        least = min(float(torch.as_tensor(size).min()) for size in box.step_sizes(0, q.x, q.memory).values())
        if not least > 0:
            because = f"the declared step size is {least:.3g} there, and must be positive: {domain}"
            return WrongPart(NO_STEP_SIZE, because)
    try:
        box.energies(box.mapped(q.x, q.memory), q.memory)
    except NotFinite:
        finite = "make it finite there (a small number under a root or a norm), if the update is"
        return WrongPart(NO_ENERGY, f"the declared energy is infinite or NaN there: {finite}; or {domain}")
    except Fault:
        pass
    return None


def localise_mask(caller: Caller) -> WrongPart | None:
    """What a layer does with tokens that its mask excludes; None if it takes no mask, or if that cannot be told."""
    layer = caller.subject
    assert isinstance(layer, EnergyLayer)
    box = Box.of(caller)
    form = replace(form_of(layer), shapes=None)
    q = box.asked(scattered(form, 3 * len(form.letters()) + 3, {"J": max(4, layer.shortest + 1)}))
    J = token_count(box, q)
    if not layer.masked or J < 2:
        return None
    mask = torch.ones((q.batch, J), dtype=torch.bool)
    mask[:, -1] = False

    def unmasked_updates(case: Question, with_mask: Tensor) -> Tensor:
        """The updates of all tokens but the last: (B, J - 1, ...), flat."""
        return flat(with_tokens(box.displacement(case, with_mask), layer.state, lambda array: array[:, :-1]))

    def elsewhere(array: Tensor) -> Tensor:
        other = array.clone()
        other[:, -1] = 3.0 - 2.0 * other[:, -1]
        return other

    moved = replace(
        q, x=with_tokens(q.x, layer.state, elsewhere), memory=with_tokens(q.memory, layer.memories, elsewhere)
    )
    try:
        masked, after = (unmasked_updates(case, mask) for case in (q, moved))
        unmasked = unmasked_updates(q, torch.ones_like(mask))
        tolerance = 2 * rounding(box, q, {"u": masked})[:, None]
    except (Fault, Discard):
        return None
    if bool(((masked - unmasked).abs() <= tolerance).all()):
        return WrongPart("mask", "the updates are the same with and without a mask: it is not used")
    if bool(((after - masked).abs() > tolerance).any()):
        because = (
            "changing a masked token changes the others' updates: its score must be -inf, not 0, "
            "which it is if a mask multiplies the logits"
        )
        return WrongPart("mask", because)
    return WrongPart("mask", "the value of a masked token does not matter, but its presence does: it counts in a sum")


def _asked_again(box: Box, wrong: list[Asked]) -> WrongPart | None:
    """Whether the update or the gradient has changed: no experiment can explain answers that change."""
    for q, got, expected, tolerance in wrong[:_TWICE]:
        now = asked_of(box, q)
        for before, after in () if now is None else ((got, now[1]), (expected, now[2])):
            if (part := two_answers(flat(before), flat(after), tolerance[:, None])) is not None:
                return part
    return None


def _edited(box: Box, wrong: list[Asked]) -> WrongPart | None:
    """Whether an argument is edited in place, and the update is right for its new values."""
    edited: set[str] = set()
    for q, got, _, tolerance in wrong:
        try:
            after = box.left_behind(q)
        except Fault:
            return None
        there = replace(q, x={k: after[k] for k in q.x}, memory={k: after[k] for k in q.memory})
        if (asked := asked_of(box, there)) is None:
            return None
        moved = flat(there.x) - flat(q.x) if box.layer.step.returns == "next state" else 0.0
        if bool(((flat(got) - flat(asked[2]) - moved).abs() > 2 * (tolerance + asked[3])[:, None]).any()):
            return None
        edited |= {name for name, array in {**q.x, **q.memory}.items() if not torch.equal(array, after[name])}
    because = "the update is right for the arguments as the call leaves them, but not for those it was given"
    return WrongPart(EDITED, f"{', '.join(sorted(edited))}: {because}") if edited else None


def _returned(box: Box, wrong: list[Asked]) -> WrongPart | None:
    """Whether the update is right except for the state, which is added contrary to the declaration, or left out."""
    next_state = box.layer.step.returns == "next state"
    sign, other = (-1, "difference") if next_state else (1, "next state")
    for q, got, expected, tolerance in wrong:
        if not bool(((flat(got) - flat(expected) - sign * flat(q.x)).abs() <= 2 * tolerance[:, None]).all()):
            return None
    what = "the difference and not the next state" if next_state else "the next state and not the difference"
    return WrongPart("what is returned", f"it returns {what}: declare returns={other!r}")


# --- float32 inside ---------------------------------------------------------------------------------------


def _rounded_to_float32(box: Box, wrong: list[Asked]) -> WrongPart | None:
    """Errors of the size of float32's roundoff, in no fixed proportion to the answer."""
    if box.caller.dtype != torch.float64:
        return None
    unit = torch.finfo(torch.float32).eps
    ratios, explained = [], True
    for q, got, expected, _ in wrong:
        a, b = flat(got), flat(expected)
        size = 1 + float(torch.cat((b, flat(q.x)), 1).abs().max())
        if float((a - b).abs().max()) > 32 * unit * size:
            return None
        c = float((a * b).sum()) / max(float((b * b).sum()), 1e-300)
        ratios.append(c - 1)
        explained = explained and float((a - c * b).abs().max()) < float((a - b).abs().max()) / 4
    if explained and max(ratios) - min(ratios) < 0.1 * abs(ratios[0]):
        return None  # a single factor explains every answer
    if (cut := _cut_off(box, wrong)) is not None:
        return cut
    if any(_goes_on(box, q, flat(got) - flat(expected)) for q, got, expected, _ in wrong):
        return None
    because = (
        "it is right only to the roundoff of float32: something inside computes in float32. "
        "Declare working_dtype='float32', or run with --dtype float32"
    )
    return WrongPart("precision", because)


def _goes_on(box: Box, q: Question, error: Tensor) -> bool:
    """Whether the error is nearly the same at a near question, as roundoff would not be."""
    near = asked_of(box, box.rounded(q.each(lambda a: (1 + _NEAR) * a)))
    if near is None:
        return False
    there = flat(near[1]) - flat(near[2])
    return float((there - error).abs().max()) < float(error.abs().max()) / 4


def _cut_off(box: Box, wrong: list[Asked]) -> WrongPart | None:
    """Errors that vanish far before and far beyond a threshold, unlike those of float32, and jump at it."""
    for q, got, expected, _ in wrong:
        size = 1 + float(flat(expected).abs().max())
        if not float((flat(got) - flat(expected)).abs().max()) <= _CUT * size:
            return None
        for factor in _ASIDE:
            asked = asked_of(box, _times(box, q, factor))
            if asked is None or is_wrong(asked):
                return None
    if onset(box, lambda factor: _times(box, wrong[0][0], factor), beyond=1.0, least=_JUMP) is None:
        return None
    because = (
        "it is right where all numbers are 64 times smaller or larger, and off by less than 1e-8 in between: "
        "a term is dropped beyond a threshold, as in torch's softplus, linear beyond 20. Give it threshold=40"
    )
    return WrongPart("a threshold", because)


def _times(box: Box, q: Question, factor: float) -> Question:
    return box.rounded(q.each(lambda array: factor * array))


# --- a constant ratio ------------------------------------------------------------------------------------


def _ratio(box: Box, comparisons: list[Asked]) -> WrongPart | None:
    """got = c times expected, with one c for each question; it is 1 for those that are right."""
    ratios = []
    for asked in comparisons:
        q, got, expected, tolerance = asked
        a, b = flat(got), flat(expected)
        size = float((b * b).sum())
        if not is_wrong(asked) and bool((b.abs() <= _TELLING * tolerance[:, None]).all()):
            continue
        if size == 0:
            return None
        c = float((a * b).sum()) / size
        slack = _SAME * min(1.0, abs(c - 1)) * b.abs().max()  # far below what the factor explains
        if not bool(((a - c * b).abs() <= (1 + abs(c)) * tolerance[:, None] + slack).all()):
            return None
        ratios.append((q, c))
    if all(abs(c - 1) < _ONE for _, c in ratios):
        return None  # an error in the last digits: every small error is a factor of nearly 1
    because = _what_ratio(box, ratios)
    return WrongPart("a constant factor", because) if because else None


def _what_ratio(box: Box, ratios: list[tuple[Question, float]]) -> str:
    text = f"the update is everywhere {ratios[0][1]:.10g} times what it must be"
    words = []
    if all(abs(c + 1) <= 1e-8 for _, c in ratios):
        return f"{text}: the sign is wrong, and the energy is climbed"
    for name, value, is_size in _numbers(box):
        # a size may have the factor's value by chance, unless it varies
        if not is_size or len({value(q) for q, _ in ratios}) > 1:
            for power, phrase in ((1, name), (-1, f"one over {name}")):
                fits = all(abs(c - value(q) ** power) <= 1e-8 * abs(c) for q, c in ratios)
                words += [phrase] if fits else []
    if words:
        return f"{text}: {', or '.join(words)}"
    factors = [c for _, c in ratios]
    if any(abs(c - 1) < _ONE for c in factors):
        return ""  # no constant factor explains why some are right
    if max(factors) - min(factors) > 1e-4 * max(abs(c - 1) for c in factors):
        some = ", ".join(f"{c:.4g} at {q}" for q, c in ratios[:3])
        return f"the update is a multiple of what it must be, by a factor that depends on the sizes: {some}"
    return text


def _numbers(box: Box) -> Sequence[tuple[str, Callable[[Question], float], bool]]:
    """Numbers by which a gradient is often multiplied, as functions of the question, and whether each is a size."""
    eta = box.layer.step.sizes[0]
    return (
        ("the number of tokens", lambda q: float(token_count(box, q)), True),
        ("the batch size", lambda q: float(q.batch), True),
        ("the number of tokens times the batch size", lambda q: float(q.batch * token_count(box, q)), True),
        ("the step size", lambda _: eta, False),
        ("the step size squared", lambda _: eta**2, False),
        ("the dimension", lambda q: float(next(iter(q.x.values())).shape[-1]), True),
        ("two", lambda _: 2.0, False),
    )


# --- what is added, and where it leads ------------------------------------------------------------------


def _additive(wrong: list[Asked]) -> WrongPart | None:
    """Whether the same vector is added everywhere: a bias where the energy has none."""
    if len(wrong[0][1]) > 1:
        return None
    (name,) = wrong[0][1]
    errors = [
        (got[name] - expected[name]).reshape(-1, got[name].shape[-1]) for _, got, expected, _ in wrong
    ]  # (B J, D) each
    if len({error.shape[-1] for error in errors}) > 1 or sum(len(error) for error in errors) < 2:
        return None
    every = torch.cat(errors)
    off = torch.cat([t.repeat_interleave(len(e) // len(t)) for e, (*_, t) in zip(errors, wrong, strict=True)])
    bias = every[off.argmin()]
    telling = off < bias.abs().max() / 4
    if int(telling.sum()) < 2 or bool(((every - bias).abs() > 2 * (off + off.min())[:, None]).any()):
        return None
    some = ", ".join(f"{float(b):.4g}" for b in bias[:4]) + (" ..." if len(bias) > 4 else "")
    return WrongPart("an additive bias", f"the update is what it must be plus ({some}) everywhere")


def _direction(box: Box, wrong: list[Asked]) -> WrongPart | None:
    """Whether the update climbs the energy, or descends without being the gradient's step, at the wrong questions."""
    slopes = []
    for q, got, _, _ in wrong:
        try:
            moved, _ = velocity(box, q, got)
            gradient = box.gradient(box.mapped(q.x, q.memory), q.memory)[0]
        except Fault:
            return None
        slopes.append(float((flat(gradient) * flat(moved)).sum()))
    if len(slopes) < len(_SEEDS) or box.layer.leak:
        return None
    if all(slope > 0 for slope in slopes):
        because = "where it was tried, the energy rises along the update: it goes uphill, as if the sign were wrong"
        return WrongPart("direction of the update", because)
    if all(slope < 0 for slope in slopes):
        because = (
            "where it was tried, the energy falls along the update: it descends, but is not a step along the gradient"
        )
        return WrongPart(_NO_GRADIENT, because)
    if min(slopes) < 0 < max(slopes):
        return WrongPart(_NO_GRADIENT, "where it was tried, the energy falls along the update here and rises there")
    return None


# --- tokens, channels ---------------------------------------------------------------------------------------


def _tokens(box: Box, q: Question) -> WrongPart | None:
    """Whether a single token is right and several are wrong."""
    if "tokens" in box.layer.not_offered or longest_right(box, q, TOKENS, partial(fails_at, box)) != 1:
        return None
    return WrongPart("what tokens do to each other", "a single token is right, but several together are wrong")


def _other_variables(box: Box, wrong: list[Asked]) -> WrongPart | None:
    """Whether another reading of the state map explains every answer."""
    layer = box.layer
    if (layer.state_map is None and layer.lagrangian is None) or len(layer.step.sizes) > 1:
        return None
    if layer.step.unknown_preconditioner or layer.step.varying is not None:
        return None
    eta = layer.step.sizes[0]

    def at(q: Question, times: int) -> Arrays:
        g = q.x
        for _ in range(times):
            g = box.mapped(g, q.memory)
        return box.gradient(g, q.memory)[0]

    def through(q: Question) -> Arrays:
        J, _ = jacobian(box, lambda other: box.mapped(other.x, q.memory), q, rounding(box, q, q.x))
        return shaped(torch.einsum("bij,bi->bj", J, flat(at(q, 1))), q.x)

    readings = (
        ("the norm", "the state map is applied twice: the update is the gradient at G(G(x))", lambda q: at(q, 2)),
        ("the norm", "the state map is left out: the update is the gradient at x itself", lambda q: at(q, 0)),
        ("the norm", "the update is the gradient in x, through the state map, and not the gradient in g", through),
    )

    def fits(gradient: Callable[[Question], Arrays], q: Question, got: Arrays, expected: Arrays, off: Tensor) -> bool:
        try:
            step = gradient(q)
        except Fault:
            return False
        other = -eta * flat(box.preconditioned(plus(step, q.x) if layer.leak else step, q.x, q.memory))
        return bool(((flat(got) - other).abs() <= off[:, None] + 1e-6 * flat(expected).abs().max()).all())

    found = (
        WrongPart(name, because)
        for name, because, gradient in readings
        if all(fits(gradient, *asked) for asked in wrong)
    )
    return next(found, None)


def _channels(box: Box, wrong: list[Asked]) -> WrongPart | None:
    """Which of the last axis' channels are wrong, if some are right in every question."""
    if len(box.layer.state) > 1:
        names = [
            k
            for k in wrong[0][1]
            if any(_far(got[k], expected[k], tolerance) for _, got, expected, tolerance in wrong)
        ]
        right = [k for k in wrong[0][1] if k not in names]
        if right:
            return WrongPart(", ".join(names), f"the update of {', '.join(right)} is right")
        return None
    (name,) = wrong[0][1]
    D = wrong[0][1][name].shape[-1]
    bad: set[int] = set()
    # with the channels' values exchanged, too: an error that depends on the values moves with them
    for q, *_ in wrong:
        for by in range(D):
            exchanged = q.each(lambda a, by=by: a.roll(by, -1) if a.shape[-1] == D else a)
            if (asked := asked_of(box, box.rounded(exchanged))) is not None:
                _, got, expected, off = asked
                bad |= {d for d in range(D) if _far(got[name][..., d], expected[name][..., d], off)}
        if len(bad) == D:
            return None
    many = "entry" if len(bad) == 1 else "entries"
    named, part = _entries(sorted(bad)), _equal_part(sorted(bad), D)
    are = "is" if len(bad) == 1 else "are"
    because = f"in every example, only {many} {named} of the last axis ({D}) {are} wrong, even with values exchanged"
    return WrongPart(f"{many} {named} of the last axis", f"{because}{part}")


def _entries(entries: Sequence[int]) -> str:
    first, last = entries[0], entries[-1]
    if len(entries) > 2 and last - first == len(entries) - 1:
        return f"{first} to {last}"
    return listed(entries)


def _equal_part(entries: Sequence[int], D: int) -> str:
    """Which of several equal parts of the axis these entries are, as a phrase; empty if they are none."""
    size, first = len(entries), entries[0]
    if size == 1 or D % size or first % size or entries[-1] - first != size - 1:
        return ""
    i = first // size
    ordinal = ("first", "second", "third", "fourth")[i] if i < 4 else f"{i + 1}th"
    return f": the {ordinal} of {D // size} equal parts, as heads are"


def _far(got: Tensor, expected: Tensor, tolerance: Tensor) -> bool:
    return bool(((got - expected).abs() > tolerance.reshape(-1, *[1] * (got.dim() - 1))).any())
