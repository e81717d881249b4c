"""One property in full, for `cemverify list PROPERTY`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill

from cemverify.catalogue.index import Listed, largest
from cemverify.conformance.implementations.features import FEATURES
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.offered import not_offered
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.judging.verdicts import violation as in_words
from cemverify.conformance.properties import Property, by_id, declared_in
from cemverify.conformance.properties.base import Over
from cemverify.console.streams import READABLE, wrapped
from cemverify.power.mutants import Mutant, mutants
from cemverify.processes.cores import on_one_thread

_MUTANTS = 3  # tried, at most, to show a violation
_LABEL = 12  # width of the labels on the left


def explanation(property_: Property, width: int | None) -> str:
    """What it claims, why, and how it is tested.

    Args:
        width: columns of the terminal; None if there is no terminal.
    """
    killed = killers(property_)
    needs = [f"{name}: {FEATURES[name]}" if name in FEATURES else name for name in sorted(property_.needs)]
    telling = (
        f"an example is telling (could expose a wrong layer) only if {property_.premise}; with fewer than "
        f"{100 * property_.floor:.0f} % telling examples, the property is inconclusive"
    )
    controls = "no trivial implementation is tried on its examples"
    if property_.controls:
        controls = f"each of these trivial implementations must violate it: {', '.join(sorted(property_.controls))}"
    rows = [
        ("claim", [property_.claim]),
        ("formula", [property_.formula]),
        ("source", [property_.source]),
        ("why", [property_.why]),
        ("of", [f"{property_.kind}s"]),
        ("needs", needs or ["nothing that could be absent"]),
        ("tested", list(_tested(property_))),
        ("telling", [telling]),
        ("controls", [controls]),
        ("since", [f"catalogue {property_.since}"]),
        ("declared in", [f"{declared_in(property_.id).replace('.', '/')}.py"]),
        ("kills", [f"{mutant.id}: {mutant.fault}" for mutant in killed]),
    ]
    lines = [_row("" if i else label, text, width) for label, texts in rows for i, text in enumerate(texts)]
    return "\n".join([property_.id, "", *lines])


def violation(property_: Property, width: int | None) -> str:
    """A run's report on the first mutant that the property kills here, made by running it."""
    with on_one_thread():
        reason = "it has no mutant"
        for mutant in killers(property_)[:_MUTANTS]:
            subject = mutant.subject()
            effort = Effort()
            absent = not_offered(property_, subject.not_offered, effort.dtype)
            record = absent or judge_property(subject, property_, effort)
            if record.verdict == Verdict.VIOLATED:
                words = f"How a violation looks, found just now in the mutant {mutant.id}:\n\n"
                return wrapped(words + in_words(record), width)
            reason = f"it did not catch the mutant {mutant.id} ({record.reason or record.verdict})"
            if record.verdict == Verdict.NOT_OFFERED:
                reason = record.reason or ""
                break
        return wrapped(f"A violation cannot be shown here: {reason}", width)


def described(listed: Listed) -> dict[str, object]:
    """The entry of a property in a result file, without a violation."""
    return {
        **{name: getattr(listed, name) for name in ("id", "claim", "source", "needs", "asked_up_to")},
        "introduced": listed.since,
        "formula": listed.formula,
        "why": listed.why,
        "kills": [mutant.id for mutant in killers(by_id(listed.id))],
    }


def killers(property_: Property) -> Sequence[Mutant]:
    """The mutants that it must kill, its own first."""
    killed = [mutant for mutant in mutants() if mutant.kills(property_.id)]
    return sorted(killed, key=lambda mutant: mutant.property != property_.id)


def _row(label: str, text: str, width: int | None) -> str:
    indent = " " * _LABEL if width is None or width >= 60 else "  "
    columns = READABLE if width is None else min(width, READABLE)
    if len(indent) < _LABEL:  # on a narrow terminal, the label is above the text
        return "\n".join(filter(None, [label, fill(text, columns, initial_indent=indent, subsequent_indent=indent)]))
    return fill(f"{label:<{_LABEL}}{text}", columns, subsequent_indent=indent, drop_whitespace=True)


def _tested(property_: Property) -> Iterator[str]:
    dtype = "the dtype of the run" if property_.dtype is None else str(property_.dtype).removeprefix("torch.")
    yield f"{property_.asked.rows:.3g} scattered cases in {dtype} for each 60 examples"
    if reach := largest([property_.questions.reach()]):
        yield "up to " + ", ".join(f"{letter} = {size}" for letter, size in reach.items())
    if isinstance(property_.questions, Over):
        searched = ["small integer cases"] if property_.asked.small and not property_.questions.space.sizes else []
        yield ", then ".join([*searched, "cases spread evenly over sizes and options"])
    if property_.first:
        yield "first, in a process of its own"
    if property_.once:
        yield "one failure proves a violation, even if it cannot be reproduced"
