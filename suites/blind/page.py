"""docs/blind-rounds.md: what each round found, and what is seen today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cemverify.results import Table
from cemverify.tables import grid
from suites.blind.asking import Answer
from suites.blind.rounds import Round, answers, rounds

PREFACE = """\
# Blind rounds

Our own mutants were written beside the properties that kill them. The faults on this page were not: their authors had
the [contract](contract.md) and the [mathematics](mathematics.md), and had seen neither properties nor mutants nor
tests. Each fault is asked at the default budget with one seed, until a first property is violated. What survived was
generalised: the gap was closed for all faults of its kind, and then the survivors were asked again. A round that was
not asked to its end was asked in random order, so that its shares are those of a fair sample.

The faults lie in `suites/blind`; `python -m suites.blind ask N` asks round N again, `cemverify check
suites.blind.faults:NAME` checks one of them, and `python -m suites.blind page` writes this page."""


def page() -> str:
    """The page: what each round found."""
    parts = [PREFACE]
    for round_ in rounds():
        parts += _section(round_, answers(round_.number))
    return "\n\n".join(parts) + "\n"


def _section(round_: Round, found: Mapping[str, Answer]) -> list[str]:
    rows = []
    frameworks = list(dict.fromkeys(fault.framework for fault in round_.faults))
    for framework in (*frameworks, "all"):
        chosen = [f for f in round_.faults if framework in (f.framework, "all")]
        rows.append((framework, *_counts([f.name for f in chosen], found)))
    subtle = [f.name for f in round_.faults if f.subtle]
    rows.append(("of them subtle, says their author", *_counts(subtle, found)))
    columns = ("faults", "written", "asked", "killed at first", "share", "killed when last asked", "share then")
    parts = [
        f"## Round {round_.number}, {round_.written}",
        f"*What the author was told:* {round_.instructions}",
        grid(Table("Faults", columns, rows), "markdown"),
    ]
    survivors = [f for f in round_.faults if f.name in found and not _at_first(found[f.name])]
    if survivors:
        lines = [(f.name, f.fault, f.shown_by, _now(found[f.name])) for f in survivors]
        table = Table("What survived at first", ("fault", "what is wrong", "shown by", "when last asked"), lines)
        parts += [f"### {table.title}", grid(table, "markdown")]
    right = [*round_.bases, *(style.name for style in round_.styles)]
    if known := [name for name in right if name in found]:
        alarms = [name for name in known if _at_first(found[name])]
        still = sum(found[name]["violated"] for name in known)
        named = f" ({', '.join(alarms)})" if alarms else ""
        parts.append(
            f"Correct implementations by the same author: {len(right)}, of which {len(known)} were asked,"
            f" {len(alarms)} called wrong at first{named} and {still} when last asked."
        )
    return parts


def _counts(names: Sequence[str], answers: Mapping[str, Answer]) -> tuple[Any, ...]:
    asked_ = [answers[name] for name in names if name in answers]
    first, now = sum(map(_at_first, asked_)), sum(answer["violated"] for answer in asked_)
    if not asked_:
        return len(names), 0, "", "", "", ""
    share = [f"{100 * n / len(asked_):.1f} %" for n in (first, now)]
    return len(names), len(asked_), first, share[0], now, share[1]


def _at_first(answer: Answer) -> bool:
    """Whether it was called wrong when it was asked first."""
    return bool(answer.get("first", answer)["violated"])


def _now(answer: Answer) -> str:
    return f"`{answer['by']}`" if answer["violated"] else "not seen"
