"""Every declared parameter matters: if it is set to something else, the update or the energy changes.

Gradients cannot show this. If update and energy use a copy of a parameter, or another tensor of that name, no
gradient reaches the declared one, neither by backpropagation nor by differences, and the two agree.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from cemverify.conformance.asking.boxes import Arrays, Box
from cemverify.conformance.asking.experiments import experiment, shapes
from cemverify.conformance.asking.parameters import parameters_of, set_to, some_of
from cemverify.conformance.implementations.faults import Discard, Fault
from cemverify.conformance.oracle.evidence import Claim, Compared, Comparison, Evidence
from cemverify.conformance.properties.layers.base import states
from cemverify.conformance.questions.black_boxes import Named, Question, scattered

_AT_ONCE = 64  # parameters in one question; the seed says which
_DRAWS = 40  # one of so many reaches an expert or a unit that few tokens reach
_FARS = (1.0, 0.1, 0.01)  # changes, in turn: a large one may leave the range in which a parameter must lie


@states(
    "training/layer/parameters-matter",
    claim="Changing any declared parameter changes the update or the energy.",
    formula="u(x, m; w) != u(x, m; w')  or  E(g, m; w) != E(g, m; w')  for some x, m and w'",
    why="Where update and energy use a copy of a parameter, or another tensor of that name, it is never "
    "learned, and no gradient is wrong: there is none.",
    premise="a changed parameter gives an answer",
    needs={"parameters"},
    source="u = u(x, m; w), E = E(g, m; w)",
)
def parameters_matter(box: Box, q: Question) -> Evidence:
    values = parameters_of(box)
    one, tolerance = torch.ones(1), torch.full((1,), 0.5)
    return Evidence.of(
        *(
            Comparison(_changes(name), one * _matters(box, q, values, name), one, tolerance)
            for name in some_of(values, q, _AT_ONCE)
        )
    )


def _changes(name: str) -> Claim:
    return Compared.ANSWER(f"changing {name} changes the update or the energy", name)


def _matters(box: Box, q: Question, values: Named, name: str) -> bool:
    """Whether some draw shows a change."""
    answered = False
    for draw in range(_DRAWS):
        generator = torch.Generator().manual_seed((q.seed + draw) % 2**31)
        question = box.asked(scattered(box.form, q.seed % 2**31 + draw))
        far = _FARS[draw // 2 % len(_FARS)]
        # a parameter that multiplies zeros shows only if these are changed
        elsewhere = {k: _elsewhere(v, far, generator) for k, v in values.items()}
        here = dict(values) if draw % 2 == 0 else box.allowed(elsewhere)
        there = box.allowed({**here, name: _elsewhere(here[name], far, generator)})
        with suppress(Fault):
            before, after = (_answers_with(box, question, at) for at in (here, there))
            answered = True
            if any(not torch.equal(before[k], after[k]) for k in before):
                return True
    if not answered:
        raise Discard(f"there is no answer with another value of {name}")
    return False


def _elsewhere(value: torch.Tensor, far: float, generator: torch.Generator) -> torch.Tensor:
    size = far * (1 + float(value.abs().max()))
    return value + size * torch.randn(value.shape, generator=generator, dtype=torch.float64)


def _shapes_of_answer(arguments: Any) -> dict[str, torch.Size]:
    box, q = arguments.box, arguments.q
    answer_shapes = {f"update {name}": shape for name, shape in shapes(q.x).items()}
    return answer_shapes if box.layer.energy is None else {**answer_shapes, "energy": box.energy_shape(q.x)}


@experiment(_shapes_of_answer, calls=2)
def _answers_with(box: Box, q: Question, values: Arrays) -> Arrays:
    """The displacement, and the energy if there is one."""
    with set_to(box, values):
        answers = {f"update {name}": array for name, array in box.displacement(q).items()}
        if box.layer.energy is not None:
            answers["energy"] = box.energies(box.mapped(q.x, q.memory), q.memory)
        return answers
