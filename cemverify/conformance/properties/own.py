"""Properties of your own: statements about a layer that you add to the catalogue.

    @layer_property(claim="Twice the memory, twice the update.", source="our design notes, section 2")
    def is_linear_in_the_memory(layer, question):
        twice = replace(question, memory={name: 2 * array for name, array in question.memory.items()})
        due = {name: 2 * array for name, array in layer.update(question).items()}
        return layer.update(twice), due, layer.roundoff(question) + layer.roundoff(twice)

`cemverify check LAYER --properties-from FILE` tests them like those of the catalogue: with the same questions, in the
same processes. Violations are made smaller, saved and reported in the same way. Their ids begin with "own/"; no id in
the catalogue does.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from cemverify.catalogue.budgets import USUAL
from cemverify.catalogue.index import listed
from cemverify.conformance.asking.boxes import Arrays, Box
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.contract import Subject, as_subject, module
from cemverify.conformance.implementations.edited import forget
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.implementations.features import FEATURES, LAYER_FEATURES, SHARED_FEATURES
from cemverify.conformance.implementations.naming import LoadError, module_name
from cemverify.conformance.oracle.budgets import energy_budget
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, moved
from cemverify.conformance.oracle.golden import golden
from cemverify.conformance.oracle.relations import relation_budget
from cemverify.conformance.properties.base import CONTROLS, Over, Property
from cemverify.conformance.properties.layers.base import Cases
from cemverify.conformance.properties.layers.oracle import beyond_nudges, rounding, solved
from cemverify.conformance.properties.layers.oracle import golden as descended
from cemverify.conformance.questions.black_boxes import Question
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.spaces import Space, mixed

OWN = "own"  # the family of their ids

Of = Literal["energy layer", "attention", "mlp", "block"]
Statement = Any  # what a property's function returns: (got, due, allowed), (got, due, allowed, telling) or None

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class LayerUnderTest:
    """An energy layer as a property of your own calls it: named float64 arrays in, named float64 arrays out."""

    box: Box

    @property
    def declared(self) -> EnergyLayer:
        """The layer's declaration; its functions cannot be called here."""
        return self.box.layer

    def update(self, question: Question) -> Arrays:
        """x' - x, what one call adds to the state: arrays of the names and shapes of `question.x`."""
        return self.box.displacement(question)

    def energy(self, question: Question) -> Tensor:
        """The stated energy of each batch row at the question's state: (B,)."""
        return self.box.whole_energies(question.x, question.memory)

    def right(self, question: Question) -> Arrays:
        """The correct update: -eta P dE/dg, T times, from the stated energy."""
        return descended(self.box, question).arrays

    def roundoff(self, question: Question) -> Tensor:
        """How far off roundoff may put the update of a correct layer, for each batch row: (B,).

        The layer's arithmetic is not known. The bound grants sums of as many terms as there are numbers, and the
        effect of a small change of the question's numbers on the layer's own answer, enlarged.
        """
        return solved(self.box) + self._tolerance(question, self.update)

    def roundoff_of_energy(self, question: Question) -> Tensor:
        """How far off roundoff may put the stated energy of each batch row: (B,)."""
        return self._tolerance(question, lambda near: {"E": self.energy(near)[:, None]})

    def _tolerance(self, question: Question, ask: Callable[[Question], Arrays]) -> Tensor:
        answer = ask(question)
        return beyond_nudges(self.box, question, rounding(self.box, question, answer), answer, ask)


@dataclass(frozen=True)
class ImplementationUnderTest:
    """A CEM implementation as a property of your own calls it: float64 arrays (B, J, D) out."""

    caller: Caller

    def update(self, question: Case) -> Tensor:
        """x^(T) - x of the question's layer: (B, J, D)."""
        return self.caller.output(question) - question.x

    def decoded(self, question: Case) -> Tensor:
        """x^(T) - x of self-attention of h, decoded token by token; the property needs "decode": (B, J, D)."""
        return self.caller.decoded(question) - question.h

    def energy(self, question: Case) -> Tensor:
        """The stated energy at x; the property needs "attention_energy" or "mlp_energy": (B, J)."""
        return self.caller.energy(question)

    def right(self, question: Case) -> Tensor:
        """The correct update, by float64 autograd of the paper's energy: (B, J, D)."""
        return golden(question) - question.x

    def roundoff(self, question: Case) -> Tensor:
        """How far off roundoff may put the update: (B, J, D).

        A faulty layer is granted the roundoff of what it does compute, so that it violates only what it breaks.
        """
        return relation_budget(question, self.caller.output(question), self.caller.dtype)

    def roundoff_of_energy(self, question: Case) -> Tensor:
        """How far off roundoff may put the stated energy of a correct layer: (B, J)."""
        return energy_budget(question, question.x, self.caller.dtype)


@dataclass(frozen=True, eq=False)
class OwnProperty:
    """A function that states a property, and may still be called; `layer_property` makes it."""

    function: Callable[[Any, Any], Statement]
    property: Property

    def __call__(self, layer: Any, question: Any) -> Statement:
        """What the function returns: (got, due, allowed), or these and telling, or None."""
        return self.function(layer, question)


@dataclass(frozen=True)
class OwnCheck:
    """The function of a property of your own as a check of a caller."""

    function: Callable[[Any, Any], Statement]
    claim: str
    at_most: bool

    def __call__(self, caller: Caller, question: Any) -> Evidence:
        layer: LayerUnderTest | ImplementationUnderTest
        if isinstance(question, Case):
            layer, question = ImplementationUnderTest(caller), question.to(caller.dtype).to(torch.float64)
        else:
            box = Box.of(caller)
            layer, question = LayerUnderTest(box), box.rounded(question)
        statement = self.function(layer, question)
        if statement is None:
            raise Discard("the property says nothing of it")
        if not isinstance(statement, tuple) or len(statement) not in (3, 4):
            raise TypeError(f"a property must return (got, due, allowed), not {type(statement).__name__}")
        comparisons = list(_compared(self.claim, *statement[:3], at_most=self.at_most))
        if len(statement) == 4:
            return Evidence.of(*comparisons, telling=bool(statement[3]))
        sides = ((c.got - c.expected if self.at_most else c.expected, c.budget) for c in comparisons)
        return Evidence.of(*comparisons, telling=any(moved(*pair) for pair in sides))


def layer_property(
    *,
    claim: str,
    source: str,
    of: Of = "energy layer",
    name: str | None = None,
    formula: str = "",
    why: str = "",
    premise: str | None = None,
    at_most: bool = False,
    needs: Iterable[str] = (),
    options: Mapping[str, Any] | None = None,
    least: Mapping[str, int] | None = None,
    floor: float = 0.1,
    controls: Iterable[str] = (),
    mutants: Mapping[str, Any] | None = None,
) -> Callable[[Callable[[Any, Any], Statement]], OwnProperty]:
    """States a property of your own: put it above a function of (layer, question) in a file of such functions.

    The function calls the layer (`LayerUnderTest`, `ImplementationUnderTest`) and returns (got, due, allowed): the
    result, the correct result, and how far apart the two may be. All are numbers, arrays, or mappings of arrays by
    name; `allowed` may also be a number per batch row, (B,). A fourth value says whether the question could have
    exposed a wrong layer; by default it could if |due| (with `at_most`, |got - due|) exceeds twice `allowed`. Return
    None if the claim is not about this question.

    Args:
        claim: one sentence. source: where the claim comes from.
        of: what is asked: any "energy layer", or the "attention", "mlp" or "block" of a CEM implementation.
        name: the id is "own/NAME"; the function's name with hyphens if not given.
        formula: the claim as a formula. why: what goes wrong where it does not hold.
        premise: what makes a question telling, as a phrase.
        at_most: the claim is got <= due, not got = due.
        needs: features without which the property is not tested: "energy", "gradient-step", "start", "decode" ...
        options: of a CEM layer: the options that it has, all others absent; None for all options in combination.
        least: the smallest sizes that are tested, by letter: {"J": 2} for two tokens, "B" is the batch.
        floor: the share of telling questions below which the property is inconclusive.
        controls: names of trivial answers that must violate it, in every run.
        mutants: wrong layers of the same kind, by what is wrong with them. Unless each violates the property in
            every run, the property does not hold.

    Raises:
        ValueError: the declaration cannot be used; the message says why.
    """

    def stated(function: Callable[[Any, Any], Statement]) -> OwnProperty:
        last = getattr(function, "__name__", "").replace("_", "-").strip("-") if name is None else name
        about = f"layer_property {last!r}"
        _check(about, function, last, claim, source, of, options)
        implied = (need for p in listed() if p.kind == "energy layer" for need in p.needs)
        of_layers = sorted({*LAYER_FEATURES, *SHARED_FEATURES, *implied})
        wanted = _all_words(about, "needs", needs, of_layers if of == "energy layer" else FEATURES)
        tried = _all_words(about, "controls", controls, CONTROLS)
        if mutants is not None and not isinstance(mutants, Mapping):
            raise ValueError(f"{about}: mutants must map what is wrong to a wrong layer, as {{'too far': layer}}")
        if not 0 <= floor <= 1:
            raise ValueError(f"{about}: floor must be a share from 0 to 1, not {floor!r}")
        questions: Cases | Over
        if of == "energy layer":
            questions, features = Cases(dict(least or {})), frozenset(wanted)
        else:
            space = _space(of, options, least or {})
            questions, features = Over(space), space.features() | set(wanted)
        sides = "the two sides differ" if at_most else "what is due differs from zero"
        return OwnProperty(
            function,
            Property(
                f"{OWN}/{last}",
                claim=claim,
                source=source,
                formula=formula or claim,
                why=why,
                check=OwnCheck(function, claim, at_most),
                questions=questions,
                needs=features,
                kind="energy layer" if of == "energy layer" else "CEM implementation",
                dtype=torch.float64 if of == "energy layer" else None,
                asked=replace(USUAL, small=USUAL.most) if at_most else USUAL,  # few questions reach a bound
                premise=premise or f"{sides} by more than twice what is allowed",
                floor=floor,
                controls=frozenset(tried),
                mutants={word: _mutant(about, word, mutant, of) for word, mutant in (mutants or {}).items()},
            ),
        )

    return stated


def _check(about: str, function: Any, name: str, claim: Any, source: Any, of: Any, options: Any) -> None:
    if not callable(function):
        raise ValueError(f"{about}: it must stand above a function of (layer, question), not above {function!r}")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise ValueError(
            f"{about}: its function must take (layer, question), not {inspect.signature(function)}"
        ) from None
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise ValueError(
            f"{about}: an id must have only lower-case letters, digits and hyphens; {OWN}/ is put before it"
        )
    for word, words in (("claim", claim), ("source", source)):
        if not isinstance(words, str) or not words.strip():
            raise ValueError(f"{about}: {word} must be a sentence for the report, not {words!r}")
    if of not in ("energy layer", "attention", "mlp", "block"):
        raise ValueError(f"{about}: of must be 'energy layer', 'attention', 'mlp' or 'block', not {of!r}")
    if of == "energy layer" and options is not None:
        raise ValueError(f"{about}: an energy layer has no options; leave them out, or say of which CEM layer it is")


def _all_words(about: str, field_name: str, names: Iterable[str], allowed: Iterable[str]) -> Sequence[str]:
    if isinstance(names, str):
        raise ValueError(f"{about}: {field_name} must be a collection of names: write ({names!r},)")
    words = list(names)
    if strange := [word for word in words if word not in set(allowed)]:
        raise ValueError(f"{about}: {field_name} has {strange[0]!r}, which is not one of {', '.join(allowed)}")
    return words


def _space(
    of: Literal["attention", "mlp", "block"], options: Mapping[str, Any] | None, least: Mapping[str, int]
) -> Space:
    if strange := set(least) - {"J", "B"}:
        raise ValueError(f"the smallest sizes of a CEM layer are those of J and B, not of {min(strange)!r}")
    sizes: dict[str, Any] = {"tokens": least.get("J", 1), "batch": least.get("B", 1), "apart": of != "block"}
    return mixed(of, steps=(1, 2), **sizes) if options is None else Space(of, dict(options), **sizes)


def _mutant(about: str, word: str, target: Any, of: Of) -> Subject:
    try:
        subject = as_subject(target, f"the mutant {word!r}")
    except LoadError as error:
        raise ValueError(f"{about}: {error}") from None
    if isinstance(subject, EnergyLayer) != (of == "energy layer"):
        raise ValueError(f"{about}: the mutant {word!r} is no {'energy layer' if of == 'energy layer' else of}")
    return subject


def _compared(claim: str, got: Any, expected: Any, allowed: Any, *, at_most: bool) -> Iterable[Comparison]:
    """One comparison per array, named as in `got`."""
    if not isinstance(got, Mapping):
        got, expected, allowed = ({"": part} for part in (got, expected, allowed))
    for name, values in got.items():
        left, right, tolerance = (
            _tensor(part[name] if isinstance(part, Mapping) else part) for part in (values, expected, allowed)
        )
        if tolerance.dim() == 1 < left.dim():
            tolerance = tolerance.reshape(-1, *[1] * (left.dim() - 1))  # a number per batch row
        try:
            right, tolerance = right.expand_as(left), tolerance.expand_as(left)
        except RuntimeError:
            raise ValueError(
                f"got has the shape {tuple(left.shape)}, due {tuple(right.shape)} and allowed "
                f"{tuple(tolerance.shape)}: they do not fit"
            ) from None
        if bool((tolerance < 0).any()):
            raise ValueError("what is allowed must be a distance of at least 0")
        full_claim = f"{claim.rstrip('.')} ({name})" if name and len(got) > 1 else claim.rstrip(".")
        yield Comparison(
            Compared.OWN(full_claim, full_claim), left, right, tolerance, "at most" if at_most else "equal"
        )


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(values).detach().to("cpu", torch.float64)


# --- files of them ------------------------------------------------------------------------------------------


@cache
def properties_of(name: str) -> Mapping[str, Property]:
    """The properties that a module states, by id, in its order.

    Raises:
        LoadError: it cannot be imported, states none, or two of one id.
    """
    stated = [value for value in vars(module(name)).values() if isinstance(value, OwnProperty)]
    if not stated:
        raise LoadError(
            f"{name!r} states no property: put @layer_property(claim=..., source=...) above a function of "
            "(layer, question)"
        )
    properties: dict[str, Property] = {}
    for own in dict.fromkeys(stated):
        if own.property.id in properties:
            raise LoadError(f"{name!r} states {own.property.id} twice; give one of them an id of its own")
        properties[own.property.id] = replace(own.property, stated_in=name)
    return properties


def forget_properties(names: Sequence[str | Path]) -> None:
    """Makes the next import of these modules or files of properties run them anew."""
    forget(module_name(str(name)) for name in names)
    properties_of.cache_clear()


def own_properties(names: Sequence[str | Path]) -> tuple[Property, ...]:
    """The properties of modules or files of your own, in the order of the names.

    Raises:
        LoadError: one cannot be imported, states none, or two state one id.
    """
    if isinstance(names, str):
        raise LoadError(f"files of properties must be a list: write [{names!r}]")
    properties: dict[str, Property] = {}
    for name in dict.fromkeys(module_name(str(name)) for name in names):
        for id_, property_ in properties_of(name).items():
            if id_ in properties:
                raise LoadError(
                    f"{properties[id_].stated_in!r} and {name!r} both state {id_}; give one of them another id"
                )
            properties[id_] = property_
    return tuple(properties.values())
