"""What a mutant is: an implementation with one fault, and the property that must kill it for a named cause."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from torch import Tensor

from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.contract import Implementation, Subject
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.conformance.judging.verdicts import Record, Verdict

Wrap = Callable[[Any], Any]
Function = Callable[..., Any]
Kind = TypeVar("Kind", bound=type[Plain])
Condition = Callable[[Tensor, Any], bool]  # of a state (B, J, D) and a configuration
Part = Callable[..., Any]  # of the usual methods, and of a method's arguments

UPDATE = "update = -eta P grad energy*"  # the cause of whatever moves a layer's output


def sound() -> Implementation:
    """A correct implementation: `Plain`, with the reference's energies beside it."""
    energies = {name: reference.reference.functions[name] for name in ("attention_energy", "mlp_energy")}
    plain = Plain().subject()
    absent = {name: reason for name, reason in plain.not_offered.items() if name not in energies}
    return replace(plain, functions={**plain.functions, **energies}, not_offered=absent)


@dataclass(frozen=True)
class Mutant:
    """An implementation that is known to be wrong.

    It is killed if the named property is violated for the named cause; by another property or for another cause it
    is not.

    Attributes:
        id: its name. fault: one sentence.
        property: id of the property that must kill it.
        cause: a shell pattern for the cause that its record must give: which comparison failed, or the kind of fault.
        subject: makes it.
        family: where the fault lies.
        also_killed_by: patterns of further properties that must be violated.
        wrap: puts the same fault around any implementation; None where the fault is a difference of answers, which
            `injection` adds to any implementation's.
        original: makes what it is without the fault, from which answers differ.
        own_dtype: whether the fault is one of rounding, so that answers differ in the dtype asked and not in float64.
        needs: features beside its property's without which it has no fault.
        edits: whether it edits arrays in place, which not every kind of array allows.
    """

    id: str
    fault: str
    property: str
    cause: str
    subject: Callable[[], Subject] = field(repr=False)
    family: str = ""
    also_killed_by: tuple[str, ...] = ()
    wrap: Wrap | None = field(default=None, repr=False)
    original: Callable[[], Subject] = field(default=sound, repr=False)
    own_dtype: bool = False
    needs: frozenset[str] = frozenset()
    edits: bool = False

    def kills(self, property_id: str) -> bool:
        """Whether the property must be violated."""
        patterns = (self.property, *self.also_killed_by)
        return any(fnmatchcase(property_id, pattern) for pattern in patterns)

    def is_killed(self, record: Record) -> bool:
        """Whether a record of its named property is a violation for its named cause."""
        return (
            record.id == self.property
            and record.verdict == Verdict.VIOLATED
            and fnmatchcase(record.cause or "", self.cause)
        )


@dataclass(frozen=True)
class Call:
    """A function that a fault is put around.

    Attributes:
        name, function: its own. kept: what faults remember between the calls of all functions of an implementation.
    """

    name: str
    function: Function
    kept: dict[Any, Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@dataclass(frozen=True)
class TooLarge(Plain):
    """`Plain`, whose updates are too large where a condition holds.

    Attributes:
        where: the condition. factor: times the update. of: the configurations for which it is looked at.
    """

    where: Condition
    factor: float
    of: type

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads * self.factor if isinstance(c, self.of) and self.where(x, c) else heads, w, c)


def plain_but(parts: Mapping[str, Part]) -> Plain:
    """`Plain` with other parts in the place of its methods of these names; each part may call the usual methods."""

    def instead(part: Part) -> Part:
        return lambda self, *arguments: part(super(kind, self), *arguments)

    kind: type[Plain] = type("PlainBut", (Plain,), {name: instead(part) for name, part in parts.items()})
    return kind()


class Zoo(list[Mutant]):
    """The mutants of one family, in the order of their definition."""

    def __init__(self, family: str) -> None:
        self.family = family

    def killed_by(
        self,
        fault: str,
        property_: str,
        cause: str = UPDATE,
        *,
        also: tuple[str, ...] = (),
        own_dtype: bool = False,
        needs: tuple[str, ...] = (),
    ) -> Callable[[Kind], Kind]:
        """Enters a subclass of Plain; its name becomes the id.

        Args:
            fault: what is wrong with it, as a sentence. property_: the one that must be violated, for which cause.
            also: patterns of properties that may be violated as well.
        """

        def enter(kind: Kind) -> Kind:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()
            self.append(self._of_plain(words, fault, property_, cause, kind, also, own_dtype, needs))
            return kind

        return enter

    def but(
        self,
        id_: str,
        fault: str,
        property_: str,
        cause: str = UPDATE,
        *,
        also: tuple[str, ...] = (),
        own_dtype: bool = False,
        needs: tuple[str, ...] = (),
        **parts: Part,
    ) -> Mutant:
        """A mutant that is `Plain` but for some parts.

        Args:
            fault, property_, cause, also, own_dtype, needs: as for `killed_by`. parts: as for `plain_but`.
        """
        return self._of_plain(id_, fault, property_, cause, lambda: plain_but(parts), also, own_dtype, needs)

    def too_large(
        self,
        id_: str,
        fault: str,
        property_: str,
        where: Condition,
        factor: float = 1.01,
        *,
        of: type = object,
        cause: str = UPDATE,
        own_dtype: bool = False,
        needs: tuple[str, ...] = (),
    ) -> Mutant:
        """A mutant whose updates are too large where a condition holds.

        Args:
            fault, property_, cause, own_dtype, needs: as for `killed_by`. where, factor, of: as for `TooLarge`.
        """
        return self._of_plain(id_, fault, property_, cause, lambda: TooLarge(where, factor, of), (), own_dtype, needs)

    def _of_plain(
        self,
        id_: str,
        fault: str,
        property_: str,
        cause: str,
        make: Callable[[], Plain],
        also: tuple[str, ...],
        own_dtype: bool,
        needs: tuple[str, ...],
    ) -> Mutant:
        return Mutant(
            id_,
            fault,
            property_,
            cause,
            lambda: make().subject(),
            self.family,
            also,
            original=lambda: Plain().subject(),
            own_dtype=own_dtype,
            needs=frozenset(needs),
        )

    def calling(
        self,
        id_: str,
        fault: str,
        property_: str,
        cause: str,
        *,
        answer: Function,
        of: str = "*",
        also: tuple[str, ...] = (),
        original: Callable[[], Implementation] = sound,
        edits: bool = False,
    ) -> Mutant:
        """A mutant of any implementation, some of whose functions answer otherwise.

        Args:
            fault, property_, cause, also: as for `killed_by`. answer: gets the right function as a `Call`, then the
            arguments. of: a pattern of the names of functions that it stands in for. original: what is wrapped.
            edits: as in `Mutant`.
        """

        def wrap(implementation: Implementation) -> Implementation:
            kept: dict[Any, Any] = {}

            def change(name: str, function: Function) -> Function:
                call = Call(name, function, kept)
                return (lambda *arguments: answer(call, *arguments)) if fnmatchcase(name, of) else function

            return around(implementation, change)

        return self._of_any(id_, fault, property_, cause, wrap, also, original, edits)

    def calls(self, fault: str, property_: str, cause: str, **more: Any) -> Callable[[Function], Function]:
        """Enters a function as the `answer` of `calling`, which names the arguments; its name becomes the id."""

        def enter(answer: Function) -> Function:
            id_ = answer.__name__.replace("_", "-")
            self.append(self.calling(id_, fault, property_, cause, answer=answer, **more))
            return answer

        return enter

    def wraps(
        self,
        fault: str,
        property_: str,
        cause: str,
        *,
        also: tuple[str, ...] = (),
        original: Callable[[], Implementation] = sound,
        edits: bool = False,
    ) -> Callable[[Wrap], Wrap]:
        """Enters a function from an implementation to a faulty one around it; its name becomes the id.

        Args:
            fault: what is wrong with it, as a sentence. property_: the one that must be violated, for which cause.
            also: patterns of properties that may be violated as well. original: what is wrapped.
        """

        def enter(wrap: Wrap) -> Wrap:
            id_ = wrap.__name__.replace("_", "-")
            self.append(self._of_any(id_, fault, property_, cause, wrap, also, original, edits))
            return wrap

        return enter

    def _of_any(
        self,
        id_: str,
        fault: str,
        property_: str,
        cause: str,
        wrap: Wrap,
        also: tuple[str, ...],
        original: Callable[[], Subject],
        edits: bool,
    ) -> Mutant:
        return Mutant(
            id_,
            fault,
            property_,
            cause,
            lambda: wrap(original()),
            self.family,
            also,
            wrap=wrap,
            original=original,
            edits=edits,
        )


def around(implementation: Implementation, change: Callable[[str, Function], Function]) -> Implementation:
    """The implementation with `change(name, function)` in the place of each of its functions."""
    functions: Mapping[str, Function] = {
        name: change(name, function) for name, function in implementation.functions.items()
    }
    return replace(implementation, functions=functions)
