"""What the properties of energy layers share: where their questions come from, and the shape of a property."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from hypothesis.strategies import SearchStrategy

from cemverify.conformance.asking.boxes import Box, form_of
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.faults import Discard, Fault, OutOfMemory
from cemverify.conformance.oracle.evidence import Evidence
from cemverify.conformance.properties.base import Offer, Property, statement
from cemverify.conformance.questions.aims import Aim, Questions, aims
from cemverify.conformance.questions.black_boxes import (
    LEAST_LONG,
    Form,
    Question,
    aimed,
    crowded,
    dressed,
    halved,
    longest,
    questions,
    scattered,
    smaller,
    stretched,
    wears,
)
from cemverify.conformance.source.reading.numbers import Number

Check = Callable[[Box, Question], Evidence]


@dataclass(frozen=True)
class Cases(Questions):
    """Questions of the layer's declared form."""

    least: Mapping[str, int] = field(default_factory=dict)  # the least size of some axes, by letter; "B" is the batch
    crowd: int = 1  # the fewest rows that are drawn; a question that was made smaller has fewer
    texture: str | None = None  # a form that every question takes
    few: bool = False  # whether only scattered questions are asked, because a single one takes a second
    # one in so many scattered questions has a long axis; 0 for none. If each shape is compiled, only long=1 counts,
    # for which all have one
    long: int = 0
    many: int = 0  # one in so many has more rows than kernels take at once
    # whether JAX makes plain calls, in which it compiles operation by operation, or calls in a dtype of the
    # property's own: then in one shape
    plain: bool = False
    sometimes: tuple[str, ...] = ()  # textures that every fourth scattered question takes, in turn
    tokens: int = 0  # the length of another fourth of them, unless each shape is compiled
    spread: bool = False  # whether yet another fourth has that length and a large memory, spread over an interval

    def search(self, offer: Offer) -> SearchStrategy[Any] | None:
        if self.few:
            return None
        strategy = questions(self._form(offer), self._drawn)
        return strategy if self.texture is None else strategy.map(partial(self._dressed, offer))

    def scattered(self, offer: Offer, seed: int) -> Any | None:
        form = self._form(offer)
        if self.sometimes and seed % 4 == 1:
            return dressed(scattered(form, seed, self._drawn), self.sometimes[seed // 4 % len(self.sometimes)])
        if self.many and seed % self.many == 1 and form.shapes is None:
            return crowded(form, seed, self.least)
        if self.long and seed % self.long == 0 and (self.long == 1 or form.shapes is None):
            return stretched(form, seed // self.long, self.least)
        if self.tokens and (seed % 4 == 2 or (self.spread and seed % 4 == 0)) and form.shapes is None:
            crowd = crowded(form, seed, self._drawn, "J", self.tokens)
            return crowd if seed % 4 else dressed(crowd, "large-memory")
        question = scattered(form, seed, self._drawn)
        return question if self.texture is None else self._dressed(offer, question)

    def smaller(self, offer: Offer, question: Any) -> Iterator[Any]:
        form = form_of(offer.declared)
        questions = smaller(question, form, self.least)
        if self.long != 1:
            return questions
        still = min(LEAST_LONG, longest(question, form))
        return (one for one in questions if longest(one, form) >= still)

    def aims(self, offer: Offer, numbers: Sequence[Number]) -> Iterator[Aim]:
        """What numbers in the layer's code may stand for: a question's sizes, and the magnitudes of its arrays."""
        form = self._form(offer)
        axes = ["B", *form.letters()] if form.shapes is None else []  # another shape would be compiled
        return aims(numbers, axes, [*(name for name in form.state if name not in form.zeros), *form.memory])

    def aimed(self, offer: Offer, aim: Aim, seed: int) -> Any | None:
        question = aimed(self._form(offer), aim, seed, self._drawn)
        return question if self.texture is None or question is None else self._dressed(offer, question)

    def _form(self, offer: Offer) -> Form:
        form = form_of(offer.declared)
        return replace(form, shapes=1) if self.plain and form.shapes else form

    @property
    def _drawn(self) -> Mapping[str, int]:
        return {**self.least, "B": max(self.crowd, self.least.get("B", 1))}

    def _dressed(self, offer: Offer, question: Question) -> Question:
        assert self.texture is not None
        # at 256 times the size, float32 roundoff of an energy changes its exponential by as much as itself
        narrow = offer.declared.working_dtype == "float32" and self.texture.startswith("huge")
        return dressed(question, self.texture, 0.25 if narrow else 1.0)


_USUAL = Cases()


@dataclass(frozen=True)
class Asking:
    """A check of a box as a check of a caller; comparable, so that properties are.

    If a question takes more memory than there is, its length is halved until it does not.
    """

    check: Check
    texture: str | None = None

    def __call__(self, caller: Caller, question: Question) -> Evidence:
        if self.texture is not None and not wears(question, self.texture):
            raise Discard(f"outside the premise: a question without {self.texture}")
        box = Box.of(caller)
        try:
            q = box.asked(question)
            try:
                evidence = self.check(box, q)
            except Fault as fault:
                fault.case = fault.case or q
                raise
            return replace(evidence, case=evidence.case or q) if box.is_bounded or box.layer.draw else evidence
        except OutOfMemory:  # taking much memory is no fault; the result says how long a row was
            shorter = halved(question, box.form)
            if shorter is None:
                raise
        evidence = self(caller, shorter)
        return replace(evidence, case=evidence.case or shorter)


def energy_layer_property(
    id_: str,
    *,
    check: Check,
    needs: Iterable[str] = (),
    source: str = "x' = x - eta P dE/dg, memory fixed (Eq. 3)",
    cases: Cases = _USUAL,
    controls: Iterable[str] = (),
    **more: Any,
) -> Property:
    """A property of energy layers, whose check gets a box: float64 throughout, unless `more` says otherwise."""
    texture = "" if cases.texture in (None, "plain") else str(cases.texture)  # a sampler would undo it
    free = {"any-memory"} if texture == "huge-memory" else {"any-states"} if texture else set()
    return Property(
        id_,
        source=source,
        check=Asking(check, cases.texture),
        questions=cases,
        needs=frozenset(needs) | free,
        kind="energy layer",
        controls=frozenset(controls),
        **{"dtype": torch.float64, **more},
    )


def states(id_: str, **more: Any) -> Callable[[Check], Check]:
    """Put above a check: the property that it judges, by the arguments of `energy_layer_property`."""
    return statement(lambda check: [energy_layer_property(id_, check=check, **more)])
