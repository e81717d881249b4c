"""Where an energy layer's error begins: beyond a value, with more tokens than some number, or with one row alone.

It is reported only if several unrelated questions agree: a single one may begin to be wrong anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from cemverify.conformance.asking.boxes import Anywhere, Arrays, Box, flat
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.energy_layers import TOKENS
from cemverify.conformance.implementations.faults import Discard, Fault
from cemverify.conformance.properties.layers.oracle import golden
from cemverify.conformance.questions.black_boxes import Question, along_axis, axis_size, scattered

_LEAST = 1 / 64  # the factor on a question's numbers at which the layer must be right
_HALVINGS = 16  # of the way from there to a question that is wrong
# An error begins at a value if it grows a thousandfold within 5 %; an error that grows as a power does not.
_BEYOND, _GROWS = 1.05, 1e3
_ALIKE = 1e-3  # relative, of the values at which the errors of several questions begin
_QUESTIONS = 3
_SEEDS = (1, 2)

# a question, the update, the one that is expected, and how far apart they may be: (B,)
Asked = tuple[Question, Arrays, Arrays, Tensor]


def asked_of(box: Box, q: Question) -> Asked | None:
    """A question with its answer and the right one; None if there is no answer."""
    try:
        got, expected = box.along(q.x, box.displacement(q)), golden(box, q)
        return q, got, expected.arrays, expected.tolerance_for(box, q, got)
    except (Fault, Discard):
        return None


def is_wrong(asked: Asked) -> bool:
    """Whether the answer is wrong."""
    return _excess(asked) > 1


def fails_at(box: Box, q: Question) -> bool:
    """Whether there is an answer, and it is wrong."""
    asked = asked_of(box, q)
    return asked is not None and is_wrong(asked)


def _excess(asked: Asked) -> float:
    """The error divided by what is allowed."""
    _, got, expected, tolerance = asked
    return float(((flat(got) - flat(expected)).abs() / tolerance[:, None]).max())


def onset(
    box: Box, scaled: Callable[[float], Question], beyond: float = _BEYOND, least: float = _GROWS
) -> Question | None:
    """The scaled question at which an error begins suddenly; None if it does not.

    Args:
        beyond, least: suddenly means: at `beyond` times the scale, the error is over `least` times what is allowed.
    """

    def excess(factor: float) -> float:
        asked = asked_of(box, scaled(factor))
        return 0.0 if asked is None else _excess(asked)

    right, wrong = _LEAST, 1.0
    if excess(right) > 1 or not excess(wrong) > 1:
        return None
    for _ in range(_HALVINGS):
        middle = (right + wrong) / 2
        right, wrong = (right, middle) if excess(middle) > 1 else (middle, wrong)
    return scaled(wrong) if excess(beyond * wrong) > least else None


def where_it_begins(caller: Caller, cases: Sequence[Question], wrong: Sequence[Asked]) -> str:
    """Where the error begins, in words; empty if that cannot be told.

    Args:
        cases: the question that is wrong, and others of its form. wrong: those of them that are wrong.
    """
    box = Box.of(caller)
    return _with_rows(box, wrong) or _with_length(box, wrong[0][0]) or _beyond_a_value(Anywhere.of(caller), cases)


def _with_rows(box: Box, wrong: Sequence[Asked]) -> str:
    def fails(q: Question, rows: Sequence[int]) -> bool:
        return fails_at(box, q.rows(rows))

    alone = [(q, next((i for i in range(q.batch) if fails(q, [i])), None)) for q, *_ in wrong[:_QUESTIONS]]
    if all(i is not None and not fails(q, [i] * 2) and not fails(q, [i] * 3) for q, i in alone):
        return "the error appears only with one row"
    return ""


def _with_length(box: Box, q: Question) -> str:
    for letter in box.form.letters():
        if (right := longest_right(box, q, letter, partial(fails_at, box)) or 0) > 1:
            where = f"with more than {right} tokens" if letter == TOKENS else f"where {letter} > {right}"
            return f"the error begins {where}"
    return ""


def longest_right(box: Box, q: Question, letter: str, is_wrong_at: Callable[[Question], bool]) -> int | None:
    """The largest size of an axis at which questions are right, if two are wrong with one more; else None.

    Args:
        q: one that is wrong, and so long that others of its length are wrong, too.
    """
    form = replace(box.form, shapes=None)

    def fails(question: Question, length: int) -> bool:
        return is_wrong_at(along_axis(question, form, letter, range(length)))

    right, long = form.least(letter), axis_size(q, form, letter)
    first, second = (box.asked(scattered(form, seed, {letter: long})) for seed in _SEEDS)
    if long <= right or fails(first, right) or not fails(first, long):
        return None
    while long - right > 1:
        middle = (right + long) // 2
        right, long = (right, middle) if fails(first, middle) else (middle, long)
    return right if fails(second, long) and not fails(second, right) else None


def _beyond_a_value(box: Box, cases: Sequence[Question]) -> str:
    """For one array after the other: the value beyond which the question and others of its form are wrong."""
    for part, name in (*(("x", name) for name in cases[0].x), *(("memory", name) for name in cases[0].memory)):
        largest = 2 * float(getattr(cases[0], part)[name].abs().max())
        found: list[Tensor] = []
        for q in cases:
            at = onset(box, partial(_scaled, box, q.rows([0]), part, name, largest))
            found += [] if at is None else [getattr(at, part)[name]]
            if not found:
                break
        each = [dict(_values(name, array)) for array in found]
        for words in each[0] if len(each) >= _QUESTIONS else ():
            least, *_, most = sorted(one[words] for one in each)[:_QUESTIONS]  # roundoff may hide one's beginning
            if most - least <= _ALIKE * least:
                return f"the error begins where {words.format(f'{least:.4g}')}"
    return ""


def _scaled(box: Box, q: Question, part: str, name: str, largest: float, factor: float) -> Question:
    """The question with one array scaled, so that its largest number is factor times largest."""
    arrays = getattr(q, part)
    size = max(float(arrays[name].abs().max()), 1e-300)
    changed: Any = {part: {**arrays, name: factor * largest / size * arrays[name]}}
    return box.rounded(replace(q, **changed))


def _values(name: str, array: Tensor) -> Iterator[tuple[str, float]]:
    """The quantities that may decide, in words with a place for the number."""
    yield f"|{name}| > {{}}", float(array.abs().max())
    yield f"the norm of {name} > {{}}", float(array.norm(dim=-1).max())
    if array.dim() > 2:
        points = array.flatten(2)
        yield (
            f"two rows of {name} are more than {{}} apart",
            float((points[:, :, None] - points[:, None]).norm(dim=-1).max()),
        )
