"""Faults down, properties beside them: the page of a detection matrix."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cemverify.results.envelope import ResultError, Table
from cemverify.results.tables import grid
from reports.kinds.power import largest

Content = Mapping[str, Any]


def page(contents: Sequence[Content], title: str) -> str:
    """The page of results of `cemverify power`, in Markdown.

    Args:
        contents: of one commit; what one measured, another may lack. At least one has a matrix.

    Raises:
        ResultError: one is another result, or none holds a matrix, or they are of different commits or seeds.
    """
    if any(content["kind"] != "power" for content in contents) or not any("matrix" in c for c in contents):
        raise ResultError("no matrix is there; make one with `cemverify power --matrix 1 --json FILE`")
    if len({(content["made_by"].get("commit"), *_seeds_of(content)) for content in contents}) > 1:
        raise ResultError("the results are of different commits or numbers of seeds; measure them from one commit")
    return "\n\n".join(_parts(contents, title)) + "\n"


def _parts(contents: Sequence[Content], title: str) -> Iterator[str]:
    made, matrix = contents[0]["made_by"], _matrix(contents)
    mutants = list({mutant["id"]: mutant for content in contents for mutant in content["mutants"]}.values())
    commit = f", from commit {made['commit'][:12]}" if made.get("commit") else ""
    yield f"# {title}"
    yield f"Measured on {made['created'][:10]}{commit}, by"
    yield "\n".join(f"    {command}" for command in dict.fromkeys(map(_asked, contents)))
    yield _summary(contents, mutants)
    asked = "All" if len(matrix["detected"]) == len(mutants) else f"{len(matrix['detected'])} of them"
    yield f"""\
A *mutant* has one deliberate fault. It is *killed* if the property named for it is violated for the cause named for
it. {asked} were put before every property, with {_seeds(matrix["seeds"])} each.
The last column lists the other properties that called them wrong, for whatever cause: what else shows the fault."""
    for family in dict.fromkeys(mutant["family"] for mutant in mutants):
        yield f"## {family.capitalize()}"
        chosen = [mutant for mutant in mutants if mutant["family"] == family]
        yield grid(_mutants(chosen, matrix), "markdown")
        yield "\n".join(f"* **{mutant['id']}**: {mutant['fault']}" for mutant in chosen)
    yield "## Properties"
    yield grid(_properties(mutants, matrix), "markdown")
    if correct := {a["implementation"]: a for content in contents for a in content["correct_implementations"]}:
        yield "## Correct implementations"
        yield grid(_correct(list(correct.values())), "markdown")
    if absent := {a["id"]: a["reason"] for content in contents for a in content["not_applicable"]}:
        yield "## Not measured here"
        yield "\n".join(f"* {id_}: {reason}" for id_, reason in absent.items())


def _asked(content: Content) -> str:
    """The command, without where and with how many processes it ran."""
    command: str = content["made_by"]["command"]
    return re.sub(r" --(store|json|markdown|workers) \S+", "", command)


def _matrix(contents: Sequence[Content]) -> Content:
    """The matrices of all results as one; of those with most seeds."""
    found = [content["matrix"] for content in contents if "matrix" in content]
    seeds = max(matrix["seeds"] for matrix in found)
    detected = {id_: seen for m in found if m["seeds"] == seeds for id_, seen in m["detected"].items()}
    return {"seeds": seeds, "detected": detected}


def _seeds_of(content: Content) -> tuple[int, ...]:
    return tuple(sorted({largest(mutant)["seeds"] for mutant in content["mutants"]}))


def _summary(contents: Sequence[Content], mutants: Sequence[Content]) -> str:
    seeds = max(largest(mutant)["seeds"] for mutant in mutants)
    killed = f"{sum(mutant['killed'] for mutant in mutants)} of {len(mutants)} mutants were killed by their property"
    said = f"**{killed}, with each of {_seeds(seeds)}.**"
    most = max(contents, key=lambda content: int(content["false_alarm_runs"]))
    if most["false_alarm_runs"]:
        runs, alarms = f"{most['false_alarm_runs']:,} runs of a property", most["false_alarms"]
        said += f" False alarms in {runs} on correct implementations: {alarms}."
        said += f" At 95 % confidence, their rate is at most {most['false_alarm_bound']:.2g}."
    return said


def _mutants(chosen: Sequence[Content], matrix: Content) -> Table:
    rows = []
    for mutant in chosen:
        last = largest(mutant)
        asked = mutant["id"] in matrix["detected"]
        others = ", ".join(_seen(matrix, mutant["id"], but=mutant["property"])) if asked else "(not asked)"
        rows.append((mutant["id"], mutant["property"], f"{last['detected']} of {last['seeds']}", others))
    return Table("", ("mutant", "its property", "killed", "also seen by"), rows)


def _properties(mutants: Sequence[Content], matrix: Content) -> Table:
    named = Counter(mutant["property"] for mutant in mutants)
    seen = Counter(id_ for mutant in mutants for id_ in _seen(matrix, mutant["id"]))
    asked = Counter(id_ for detected in matrix["detected"].values() for id_ in detected)
    rows = [(id_, str(named[id_]), str(seen[id_]), str(count)) for id_, count in sorted(asked.items())]
    return Table("", ("property", "mutants named for it", "mutants it sees", "asked of"), rows)


def _correct(alarms: Sequence[Content]) -> Table:
    rows = [[str(a[key]) for key in ("implementation", "properties", "runs", "alarms", "undecided")] for a in alarms]
    return Table("", ("implementation", "properties", "runs", "false alarms", "undecided"), rows)


def _seen(matrix: Content, mutant: str, but: str = "") -> list[str]:
    """The properties that called a mutant wrong with every seed of the matrix."""
    detected = matrix["detected"].get(mutant, {})
    return [id_ for id_, count in detected.items() if count == matrix["seeds"] and id_ != but]


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"
