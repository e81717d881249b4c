"""What a mutant is: an implementation with one fault, and the property that must kill it for a named cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.contract import Implementation, Subject
from cemverify.conformance.implementations.edited import edited, module_of
from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.conformance.judging.verdicts import Record, Verdict

Wrap = Callable[[Any], Any]
Function = Callable[..., Any]
Answer = TypeVar("Answer", bound=Callable[..., Any])
Condition = Callable[[Tensor, Any], bool]  # of a state (B, J, D) and a configuration

ANSWER = "answer*"  # the cause of every fault that changes a layer's output


def sound() -> Implementation:
    """A correct implementation: `Plain`, with the reference's energies."""
    energies = {name: reference.reference.functions[name] for name in ("attention_energy", "mlp_energy")}
    plain = Plain().subject()
    absent = {name: reason for name, reason in plain.not_offered.items() if name not in energies}
    return replace(plain, functions={**plain.functions, **energies}, not_offered=absent)


@dataclass(frozen=True)
class Mutant:
    """An implementation that is known to be wrong.

    It counts as killed only if the named property is violated, and for the named cause.
    """

    id: str  # its name
    fault: str  # one sentence
    property: str  # id of the property that must kill it
    # a shell pattern for the record's key, which says what was compared, or the kind of fault
    cause: str
    subject: Callable[[], Subject] = field(repr=False)  # makes it
    family: str = ""  # where the fault lies
    also_killed_by: tuple[str, ...] = ()  # patterns for the ids of further properties that must be violated
    # puts the same fault around any implementation; None if the fault is a difference of answers, which `injection`
    # adds to the answers of any implementation
    wrap: Wrap | None = field(default=None, repr=False)
    # makes the same implementation without the fault
    original: Callable[[], Subject] = field(default=sound, repr=False)
    # whether the fault is one of rounding: answers then differ only in the requested dtype, not in float64
    own_dtype: bool = False
    needs: frozenset[str] = frozenset()  # further features, beside its property's, that the fault needs to show
    edits: bool = False  # whether it edits arrays in place, which some kinds of arrays do not allow

    def kills(self, property_id: str) -> bool:
        """Whether the property must be violated."""
        patterns = (self.property, *self.also_killed_by)
        return any(fnmatchcase(property_id, pattern) for pattern in patterns)

    def is_killed(self, record: Record) -> bool:
        """Whether a record of its named property is a violation for its named cause."""
        return (
            record.id == self.property
            and record.verdict == Verdict.VIOLATED
            and fnmatchcase(str(record.key), self.cause)
        )


@dataclass(frozen=True)
class Call:
    """A function with a fault around it."""

    # name, function: its own
    name: str
    function: Function
    memory: dict[Any, Any]  # shared by all functions of an implementation, for faults that remember earlier calls

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@dataclass(frozen=True)
class After:
    """A part that changes the usual method's answer; `change` gets the answer, then the method's arguments."""

    change: Callable[..., Any]


Part = Callable[..., Any] | After  # gets the usual methods, then the method's arguments


def plain_but(parts: Mapping[str, Part]) -> Plain:
    """`Plain` with other parts in place of its methods with these names; each gets the usual methods first."""

    def instead(name: str, part: Part) -> Function:
        if isinstance(part, After):
            return lambda self, *arguments: part.change(getattr(super(kind, self), name)(*arguments), *arguments)
        return lambda self, *arguments: part(super(kind, self), *arguments)

    kind: type[Plain] = type("PlainBut", (Plain,), {name: instead(name, part) for name, part in parts.items()})
    return kind()


def with_changes(module: str, changes: Iterable[tuple[str, str]]) -> ModuleType:
    """A second copy of a module, with some of its text replaced.

    Raises:
        ModuleNotFoundError: there is no such module. ValueError: a text to replace does not occur exactly once.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    return module_of(edited(Path(spec.origin).read_text(encoding="utf-8"), *changes), f"{module}_with_a_fault")


def in_both(layer: Function) -> Mapping[str, Any]:
    """The same part for attention and the MLP; it gets the usual method of either, then its arguments."""
    return {
        "attention": lambda usual, *arguments: layer(usual.attention, *arguments),
        "mlp": lambda usual, *arguments: layer(usual.mlp, *arguments),
    }


def fault(sentence: str) -> Callable[[Answer], Answer]:
    """States what is wrong with a function; this decorator goes under that of a `Zoo`, which adds the mutant."""

    def state(answer: Answer) -> Answer:
        setattr(answer, _FAULT, sentence)
        return answer

    return state


_FAULT = "fault_of_a_mutant"


class OfPlain(TypedDict, total=False):
    """Optional arguments of a mutant that is a variant of `Plain`; as in `Mutant`."""

    # further properties; for the same property of another function, the name of that function is enough
    also: tuple[str, ...]
    own_dtype: bool
    needs: tuple[str, ...]


class OfAny(TypedDict, total=False):
    """Optional arguments of a mutant that wraps any implementation; as in `Mutant`."""

    also: tuple[str, ...]
    original: Callable[[], Implementation]
    edits: bool


class Zoo(list[Mutant]):
    """The mutants of one family, in the order of their definition."""

    def __init__(self, family: str, original: Callable[[], Implementation] = sound) -> None:
        self.family = family
        self.original = original  # what mutants wrap by default

    # These decorators stand above `fault` and add the function as a mutant: its name becomes the id, and property_
    # must be violated for the cause.

    def calls(
        self, property_: str, cause: str, *, of: str = "*", **more: Unpack[OfAny]
    ) -> Callable[[Answer], Answer]:
        """Adds a function as the `answer` of `calling`."""
        return self.enter(self.calling, property_, cause, of=of, **more)

    def enter(
        self, make: Callable[..., Mutant], property_: str, cause: str, **more: Any
    ) -> Callable[[Answer], Answer]:
        """Adds the mutant that `make` makes from the decorated function."""

        def enter(answer: Answer) -> Answer:
            id_ = answer.__name__.replace("_", "-")
            self.append(make(id_, getattr(answer, _FAULT), property_, cause, answer, **more))
            return answer

        return enter

    # The others are expressions that make a mutant, as in the rows of a table.

    def but(
        self,
        id_: str,
        fault: str,
        property_: str,
        cause: str = ANSWER,
        *,
        also: tuple[str, ...] = (),
        own_dtype: bool = False,
        needs: tuple[str, ...] = (),
        **parts: Part,
    ) -> Mutant:
        """A mutant that is `Plain` except for some parts, as in `plain_but`."""
        make, more = partial(plain_but, parts), OfPlain(also=also, own_dtype=own_dtype, needs=needs)
        return self._of_plain(id_, fault, property_, cause, make, **more)

    def edited(
        self,
        id_: str,
        fault: str,
        property_: str,
        *changes: tuple[str, str],
        cause: str = ANSWER,
        base: type[Plain] = Plain,
        **more: Unpack[OfPlain],
    ) -> Mutant:
        """A mutant that is `Plain`, or another `base`, with some of the text of its file replaced."""

        def make() -> Plain:
            made: Plain = getattr(with_changes(base.__module__, changes), base.__name__)()
            return made

        return self._of_plain(id_, fault, property_, cause, make, **more)

    def too_large(
        self,
        id_: str,
        fault: str,
        property_: str,
        where: Condition,
        factor: float = 1.01,
        *,
        of: type = object,
        cause: str = ANSWER,
        **more: Unpack[OfPlain],
    ) -> Mutant:
        """A mutant whose updates are too large by a factor where a condition holds, for configurations of a class."""

        def advance(usual: Plain, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
            return usual.advance(x, heads * factor if isinstance(c, of) and where(x, c) else heads, w, c)

        return self._of_plain(id_, fault, property_, cause, partial(plain_but, {"advance": advance}), **more)

    def calling(
        self,
        id_: str,
        fault: str,
        property_: str,
        cause: str,
        answer: Function,
        *,
        of: str = "*",
        **more: Unpack[OfAny],
    ) -> Mutant:
        """A mutant of any implementation in which some functions give other answers.

        Args:
            answer: gets the right function as a `Call`, then the arguments. of: a pattern for the names of the
                functions that it replaces.
        """

        def wrap(implementation: Implementation) -> Implementation:
            memory: dict[Any, Any] = {}

            def change(name: str, function: Function) -> Function:
                return partial(answer, Call(name, function, memory)) if fnmatchcase(name, of) else function

            return around(implementation, change)

        return self.wrapping(id_, fault, property_, cause, wrap, **more)

    def wrapping(
        self,
        id_: str,
        fault: str,
        property_: str,
        cause: str,
        wrap: Wrap,
        *,
        original: Callable[[], Subject] | None = None,
        **more: Any,
    ) -> Mutant:
        """A mutant that `wrap` makes from any implementation."""
        make = original or self.original
        return self.made(id_, fault, property_, cause, lambda: wrap(make()), wrap=wrap, original=make, **more)

    def _of_plain(
        self, id_: str, fault: str, property_: str, cause: str, make: Callable[[], Plain], **more: Unpack[OfPlain]
    ) -> Mutant:
        return self.made(
            id_, fault, property_, cause, lambda: make().subject(), original=lambda: Plain().subject(), **more
        )

    def made(
        self,
        id_: str,
        fault: str,
        property_: str,
        cause: str,
        subject: Callable[[], Subject],
        *,
        also: tuple[str, ...] = (),
        needs: tuple[str, ...] = (),
        **more: Any,
    ) -> Mutant:
        """A mutant of this family, made by `subject`; more as in `Mutant`."""
        family, _, name = property_.split("/")
        also = tuple(other if "/" in other else f"{family}/{other}/{name}" for other in also)
        return Mutant(id_, fault, property_, cause, subject, self.family, also, needs=frozenset(needs), **more)


def arrays_of(arguments: tuple[Any, ...]) -> list[Any]:
    """The states and weights of a call."""
    return [*arguments[:-2], *arguments[-2].values()]


def in_dtype(array: Any, dtype: str) -> Any:
    """An array of torch or NumPy in another dtype."""
    return array.to(getattr(torch, dtype)) if isinstance(array, Tensor) else array.astype(dtype)


def remembering(key: Callable[..., Any], again: Callable[[Any], Any] = lambda answer: answer + 0) -> Function:
    """An `answer` that is stored under a key of the arguments, and returned again for an equal key.

    Args:
        key: may return None to store nothing. again: applied to a stored answer before it is returned; copies it by
            default.
    """

    def answer(call: Call, *arguments: Any) -> Any:
        if (key_ := key(*arguments)) is None:
            return call(*arguments)
        if (name := (call.name, key_)) not in call.memory:
            # keep the arrays too, or other arrays could soon get their ids
            call.memory[name] = call(*arguments), arrays_of(arguments)
        return again(call.memory[name][0])

    return answer


def preceded_by(change: Callable[..., object]) -> Function:
    """An `answer` that is right; before it, `change` gets the call and its arguments."""

    def answer(call: Function, *arguments: Any) -> Any:
        change(call, *arguments)
        return call(*arguments)

    return answer


def followed_by(change: Callable[..., object]) -> Function:
    """An `answer` that is right; after it, `change` gets the call and its arguments."""

    def answer(call: Function, *arguments: Any) -> Any:
        right = call(*arguments)
        change(call, *arguments)
        return right

    return answer


def overwrite(array: Any, values: Any) -> Any:
    """Writes into an array of torch or NumPy."""
    array[...] = values
    return array


def around(implementation: Implementation, change: Callable[[str, Function], Function]) -> Implementation:
    """The implementation with `change(name, function)` in place of each of its functions."""
    functions: Mapping[str, Function] = {
        name: change(name, function) if name in FUNCTIONS else function
        for name, function in implementation.functions.items()
    }
    return replace(implementation, functions=functions)
