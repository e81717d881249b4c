"""docs/blind-rounds.md: the results of each round at first, and today."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cemverify.results.envelope import Table
from cemverify.results.tables import folded, grid
from suites.blind.asking import Answer
from suites.blind.rounds import Fault, Round, answers, at_first, rounds

PREFACE = """\
# Blind rounds

How many faults a check catches that were written by authors who had not seen it, for whoever relies on a pass."""

ABOUT = """\
## How it was done

Our own mutants were written beside the properties that kill them. The faults on this page were not. The authors of
rounds 1 to 9 had the [contract](contract.md) and the [mathematics](mathematics.md); from round 2 on also the README,
mostly the tutorial, and correct implementations to change; and for energy layers [their page](energy-layers.md).
Those of rounds 10 to 13 had only the pages on their kind of layer and the help of the function that declares it. None
had read the code of any property, mutant or test. Rounds 1 to 4, 7 and 8 are of CEM layers, 5, 6 and 9 to 11 of
energy layers, 12 and 13 of [online layers](online-layers.md). Each fault makes a documented claim false, as its
author's own check shows. What the author of round N was told stands in `suites/blind/data/round_N/round.json`, word
for word.

Each fault is tested with the default number of examples and one seed, until some property is violated: then it is
*killed*. The check does not read its code, so it does not test around the numbers in it. What survived rounds 3, 5
and 6, and half of what survived round 4, was then checked with its code read. Most gaps that survivors showed were
closed, each for all faults of its kind, and then the survivors were tested again. Below are those of each round that
are not seen yet, with the fault, and those that are killed now, with the property.

Where fewer were tested than written, they were taken in random order, and their share is that of a
sample. Of JAX, which takes minutes for each, these are few.

The faults lie in `suites/blind/data`, each with inputs that show it. `python -m suites.blind ask N` tests what was
not yet tested in round N, `cemverify check suites.blind.faults:NAME` checks one fault, and `python -m suites.blind
page` writes this page. `python -m suites.blind matrix` finds out how many questions it takes to find each fault that
was killed; what it writes decides, beside our own mutants, how many a check asks."""

COLUMNS = ("round", "of", "written", "tested", "killed at first", "share", "killed when last tested", "share then")


def page() -> str:
    """The page: the results of each round."""
    asked = [(round_, answers(round_.number)) for round_ in rounds()]
    rows = [(round_.number, round_.written, *_counts(_names(round_.faults), results)) for round_, results in asked]
    table = grid(Table("Rounds", COLUMNS, rows), "markdown")
    sections = [_section(round_, results) for round_, results in asked]
    return "\n\n".join([PREFACE, table, ABOUT, "## The rounds", *sections]) + "\n"


def _names(faults: Iterable[Fault]) -> list[str]:
    return [fault.name for fault in faults]


def _section(round_: Round, results: Mapping[str, Answer]) -> str:
    faults = [f for f in round_.faults if f.name in results]
    groups = {framework: [f for f in faults if f.framework == framework] for framework in ("torch", "numpy", "jax")}
    groups["subtle in the view of their author"] = [f for f in faults if f.subtle]
    for when in sorted({results[f.name]["when"] for f in faults if "when" in results[f.name]}):
        groups[f"tested {when}"] = [f for f in faults if results[f.name].get("when") == when]
    killed = (_killed(words, _names(chosen), results) for words, chosen in groups.items() if chosen)
    parts = [f"Killed at first: {'; '.join(killed)}."]
    survivors = [f for f in faults if not at_first(results[f.name])]
    open_ = [f for f in survivors if not results[f.name]["violated"]]
    if open_:
        parts.append("\n".join(f"* **{f.name}**: {f.fault.rstrip('.')}. Now {_now(results[f.name])}." for f in open_))
    if closed := [f"{f.name} (`{results[f.name]['by']}`)" for f in survivors if f not in open_]:
        parts.append(f"Killed now: {', '.join(closed)}.")
    parts += _read(_names(survivors), results)
    right = [*round_.bases, *(style.name for style in round_.styles)]
    if tested := [name for name in right if name in results]:
        alarms = [name for name in tested if at_first(results[name])]
        number = f"{len(alarms)} of them {'was' if len(alarms) == 1 else 'were'}" if alarms else "None of them was"
        parts.append(
            f"Of {len(right)} correct implementations by the same author, {len(tested)} were tested."
            f" {number} called wrong{':' if alarms else '.'}"
        )
        parts += ["\n".join(_alarm(name, results[name]) for name in alarms)] if alarms else []
    return folded(
        f"Round {round_.number}, {round_.written}: {len(survivors)} of {len(faults)} survived at first", *parts
    )


def _read(survivors: Sequence[str], results: Mapping[str, Answer]) -> list[str]:
    """What reading the code of the survivors showed, before anything was fixed."""
    read = {name: results[name]["read"] for name in survivors if "read" in results[name]}
    if not read:
        return []
    by = {name: row["by"] for name, row in read.items() if row["by"] and not row["unread"]}
    killed = f": {', '.join(f'`{name}` by `{id_}`' for name, id_ in by.items())}" if by else ""
    checked = f"Before anything was mended, {len(read)} of these were checked with their code read."
    return [f"{checked} It killed {len(by)}{killed}."]


def _counts(names: Sequence[str], answers: Mapping[str, Answer]) -> tuple[Any, ...]:
    tested = [answers[name] for name in names if name in answers]
    first, now = sum(map(at_first, tested)), sum(answer["violated"] for answer in tested)
    if not tested:
        return len(names), 0, "", "", "", ""
    share = [f"{100 * n / len(tested):.1f} %" for n in (first, now)]
    return len(names), len(tested), first, share[0], now, share[1]


def _killed(words: str, names: Sequence[str], answers: Mapping[str, Answer]) -> str:
    return f"{words} {sum(at_first(answers[name]) for name in names)} of {len(names)}"


def _alarm(name: str, answer: Answer) -> str:
    """Which property called a correct implementation wrong, and what is known about that since."""
    if not answer["violated"]:
        why = answer.get("afterwards", "")
        return f"* `{name}`, which was called wrong no more when it was tested again{f': {why}' if why else ''}."
    sentences = [f"`{name}`, by `{answer['by']}` ({answer['cause']}).", answer.get("afterwards", "")]
    return f"* {' '.join(filter(None, sentences))}"


def _now(answer: Answer) -> str:
    """What is known about a survivor that nothing kills yet."""
    return str(answer.get("afterwards", "not seen")).rstrip(".")
