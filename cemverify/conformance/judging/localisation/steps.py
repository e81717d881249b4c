"""Whether an energy layer is right for another step size, or another number of steps, than the ones declared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from cemverify.conformance.asking.boxes import Arrays, Box, flat, plus
from cemverify.conformance.implementations.faults import Fault
from cemverify.conformance.judging.localisation.beginning import Asked, asked_of, is_wrong
from cemverify.conformance.judging.localisation.bench import WrongPart
from cemverify.conformance.judging.verdicts import DECLARED_STEPS, listed
from cemverify.conformance.questions.black_boxes import Named, Question

_SEVERAL = 3  # questions that are wrong as declared and must be right otherwise
_STEPS = range(1, 9)
_MOST_STEPS = 32
_MOST_SIZES = 24
_LARGEST = 8.0  # step size
_SAME = 1e-5  # relative, of a ratio and a number of three digits
_NEAR = 1e-3  # relative, of answers that are then compared as a property would


def other_steps(box: Box, comparisons: Sequence[Asked], numbers: Sequence[float]) -> WrongPart | None:
    """The declaration of steps with which every question is right, if one of few is; otherwise None.

    Args:
        numbers: those in the layer's code, any of which may be a step size or a number of steps.
    """
    step, wrong = box.layer.step, [asked for asked in comparisons if is_wrong(asked)]
    T, size = len(step.sizes), step.sizes[0]
    is_plain = step.kind == "gradient" and {*step.sizes} == {size} and not any(step.momentum) and not step.noise
    elsewhere = step.own_energies or step.unknown_preconditioner or step.varying or step.learned
    if len(wrong) < _SEVERAL or not is_plain or elsewhere:
        return None
    try:
        sizes = [size, *_ratio(box, wrong[0]), *numbers]
    except Fault:
        return None
    fits = list(_near(box, wrong[0], sizes, {*_STEPS, T, *numbers}))
    for other, n in sorted(fits, key=lambda fit: (fit[0] != size) + (fit[1] != T)):
        asked = [asked_of(_declared(box, other, n), q) for q, *_ in comparisons]
        if all(one is not None and not is_wrong(one) for one in asked):
            return _part((T, size), (n, other))
    return None


def _part(declared: tuple[int, float], right: tuple[int, float]) -> WrongPart | None:
    each = zip(("steps", "step_size"), declared, right, strict=True)
    changed = [(name, old, new) for name, old, new in each if old != new]
    left_out = all(old == 1 for _, old, _ in changed)  # the default of both
    # a single step with a factor, or other numbers than two that were given: then the update is likely to be wrong
    if not changed or (not left_out and (declared[0] == right[0] == 1 or len(changed) > 1)):
        return None
    new = listed(f"{name}={now:.10g}" for name, _, now in changed)
    old = listed(f"{was:.10g}" for _, was, _ in changed)
    told = f"with {new} every case that was tried holds, and {old} {'is' if len(changed) == 1 else 'are'} declared"
    name = DECLARED_STEPS if left_out else "number or size of the steps"
    return WrongPart(name, f"{told}: declare {new}, or correct the update")


def _declared(box: Box, size: float, n: int) -> Box:
    """The box of the layer, had it declared n steps of that size."""
    step = replace(box.layer.step, sizes=(size,) * n, momentum=(0.0,) * n)
    return replace(box, caller=replace(box.caller, subject=replace(box.layer, step=step)))


def _near(box: Box, asked: Asked, sizes: Iterable[float], counts: Iterable[float]) -> Iterator[tuple[float, int]]:
    """Step sizes and numbers of steps that lead nearly to where the layer went, from one question."""
    q, got, *_ = asked
    wanted = {int(n) for n in counts if n == int(n) and 0 < n <= _MOST_STEPS}
    for size in [size for size in dict.fromkeys(sizes) if 0 < size <= _LARGEST][:_MOST_SIZES]:
        with suppress(Fault):  # it leads to where the energy is infinite
            for n, off in enumerate(_off(box, q, got, size, max(wanted)), 1):
                if n in wanted and off <= _NEAR * float(flat(got).abs().max()):
                    yield size, n


def _off(box: Box, q: Question, got: Named, size: float, most: int) -> Iterator[float]:
    """How far from the layer's answer one step of that size ends, two steps, and so on."""
    x = dict(q.x)
    for _ in range(most):
        down = _down(box, x, q.memory)
        x = {name: x[name] - size * down[name] for name in x}
        moved = box.along(q.x, {name: x[name] - q.x[name] for name in x})
        yield float((flat(moved) - flat(got)).abs().max())


def _ratio(box: Box, asked: Asked) -> list[float]:
    """The size of a single step that leads where the layer went, if it has few digits."""
    q, got, *_ = asked
    a, b = flat(got), -flat(_down(box, q.x, q.memory))
    ratio = float((a * b).sum() / (b * b).sum().clamp(min=1e-300))
    short = float(f"{ratio:.3g}")
    return [short] if abs(ratio - short) <= _SAME * abs(ratio) else []


def _down(box: Box, x: Named, memory: Named) -> Arrays:
    """P times the gradient at x."""
    gradient = box.gradient(box.mapped(x, memory), memory)[0]
    return box.preconditioned(plus(gradient, x) if box.layer.leak else gradient, x, memory)
