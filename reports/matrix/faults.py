"""Faults down, properties beside them: the page of a detection matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cemverify.results import ResultError, Table
from cemverify.tables import grid

Content = Mapping[str, Any]


def page(content: Content, title: str) -> str:
    """The page of a result of `cemverify power --matrix N`, in Markdown.

    Raises:
        ResultError: it is another result, or holds no matrix.
    """
    if content["kind"] != "power" or "matrix" not in content:
        raise ResultError("it holds no matrix; make one with `cemverify power --matrix 1 --json FILE`")
    return "\n\n".join(_parts(content, title)) + "\n"


def _parts(content: Content, title: str) -> Iterator[str]:
    made, matrix = content["made_by"], content["matrix"]
    commit = f", from commit {made['commit'][:12]}" if made.get("commit") else ""
    yield f"# {title}"
    yield f"Measured on {made['created'][:10]}{commit}, by"
    yield f"    {made['command']}"
    yield _summary(content)
    yield f"""\
A *mutant* has one deliberate fault. It is *killed* if the property named for it is violated for the cause named for
it. The last column lists the other properties that call it wrong, for whatever cause, with {_seeds(matrix["seeds"])}
each: what else shows the fault."""
    for family in dict.fromkeys(mutant["family"] for mutant in content["mutants"]):
        yield f"## {family.capitalize()}"
        chosen = [mutant for mutant in content["mutants"] if mutant["family"] == family]
        yield grid(_mutants(chosen, matrix), "markdown")
        yield "\n".join(f"* **{mutant['id']}**: {mutant['fault']}" for mutant in chosen)
    yield "## Properties"
    yield grid(_properties(content), "markdown")
    if content["correct_implementations"]:
        yield "## Correct implementations"
        yield grid(_correct(content["correct_implementations"]), "markdown")
    if content["not_applicable"]:
        yield "## Not measured here"
        yield "\n".join(f"* {absent['id']}: {absent['reason']}" for absent in content["not_applicable"])


def _summary(content: Content) -> str:
    seeds = max(_last(mutant)["seeds"] for mutant in content["mutants"])
    killed = f"{content['killed']} of {content['total']} mutants were killed by their property"
    said = f"**{killed}, with each of {_seeds(seeds)}.**"
    if content["false_alarm_runs"]:
        runs, alarms = f"{content['false_alarm_runs']:,} runs of a property", content["false_alarms"]
        said += f" False alarms in {runs} on correct implementations: {alarms}."
        said += f" At 95 % confidence, their rate is at most {content['false_alarm_bound']:.2g}."
    return said


def _last(mutant: Content) -> Content:
    """The detection at the largest budget."""
    found: Content = max(mutant["budgets"], key=lambda budget: budget["examples"])
    return found


def _mutants(chosen: list[Content], matrix: Content) -> Table:
    rows = []
    for mutant in chosen:
        last = _last(mutant)
        others = _seen(matrix, mutant["id"], but=mutant["property"])
        rows.append((mutant["id"], mutant["property"], f"{last['detected']} of {last['seeds']}", ", ".join(others)))
    return Table("", ("mutant", "its property", "killed", "also seen by"), rows)


def _properties(content: Content) -> Table:
    matrix, named, seen = content["matrix"], dict[str, int](), dict[str, int]()
    for mutant in content["mutants"]:
        named[mutant["property"]] = named.get(mutant["property"], 0) + 1
        for id_ in _seen(matrix, mutant["id"]):
            seen[id_] = seen.get(id_, 0) + 1
    asked: dict[str, int] = {}
    for detected in matrix["detected"].values():
        for id_ in detected:
            asked[id_] = asked.get(id_, 0) + 1
    rows = [(id_, str(named.get(id_, 0)), str(seen.get(id_, 0)), str(count)) for id_, count in sorted(asked.items())]
    return Table("", ("property", "mutants named for it", "mutants it sees", "asked of"), rows)


def _correct(alarms: list[Content]) -> Table:
    rows = [
        (a["implementation"], str(a["properties"]), str(a["runs"]), str(a["alarms"]), str(a["undecided"]))
        for a in alarms
    ]
    return Table("", ("implementation", "properties", "runs", "false alarms", "undecided"), rows)


def _seen(matrix: Content, mutant: str, but: str = "") -> list[str]:
    """The properties that called a mutant wrong with every seed of the matrix."""
    detected = matrix["detected"].get(mutant, {})
    return [id_ for id_, count in detected.items() if count == matrix["seeds"] and id_ != but]


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"
