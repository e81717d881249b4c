"""Known violations and the baseline, added to a run's own report: on the terminal, as JSON, Markdown and JUnit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

from cemverify.conformance.gate.baselines import BaselineComparison
from cemverify.conformance.gate.known_violations import Settled
from cemverify.console.escaping import visible
from cemverify.results.envelope import Table
from cemverify.results.tables import grid


def report(settled: Settled | None, compared: BaselineComparison | None) -> str:
    """For the terminal: a heading and a line for each entry and each difference; empty if there is no gate."""
    parts = []
    if settled is not None:
        lines = [_known_heading(settled)]
        for outcome in settled.outcomes:
            mark = "STALE" if outcome.stale else "  "
            why = f": {outcome.entry.reason}" if outcome.standing == "known" else ""
            lines.append(f"  {mark:<5} line {outcome.entry.line}: {outcome.sentence}{why}")
        parts.append("\n".join(lines))
    if compared is not None:
        lines = [_baseline_heading(compared)]
        lines += [f"  {_mark(f.regression):<10} {f.sentence}" for f in compared.differences]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def with_gate(
    content: Mapping[str, Any], settled: Settled | None, compared: BaselineComparison | None
) -> dict[str, Any]:
    """A result of kind "check" with the known violations and the comparison with the baseline."""
    content = dict(content)
    content["tables"] = [*content["tables"], *(vars(table) for table in _tables(settled, compared))]
    if settled is not None:
        content["known"] = {
            "file": settled.name,
            "elsewhere": settled.elsewhere,
            "entries": [outcome.describe() for outcome in settled.outcomes],
        }
    if compared is not None:
        content["baseline"] = {
            "file": str(compared.path),
            "on_regression": "fail" if compared.strict else "warn",
            "regressions": len(compared.regressions),
            "findings": [difference.describe() for difference in compared.differences],
        }
    return content


def as_markdown(settled: Settled | None, compared: BaselineComparison | None) -> str:
    """Sections to add to a run's page; empty if there is no gate."""
    headings = []
    if settled is not None:
        headings.append(_known_heading(settled))
    if compared is not None:
        headings.append(_baseline_heading(compared))
    parts = []
    for table, heading in zip(_tables(settled, compared), headings, strict=True):
        parts.append(f"\n## {table.title}\n\n{heading[0].upper()}{heading[1:]}.")
        if table.rows:
            parts.append(grid(table, "markdown"))
    return "\n\n".join(parts) + "\n" if parts else ""


def with_suites(junit: str, settled: Settled | None, compared: BaselineComparison | None) -> str:
    """JUnit XML with one more suite per gate, in which stale entries and enforced regressions are failures."""
    root = ElementTree.fromstring(junit)  # noqa: S314 (our own)
    if settled is not None:
        cases = [
            (f"line {o.entry.line}: {o.entry.property}", o.sentence, "failure" if o.stale else "")
            for o in settled.outcomes
        ]
        root.append(_suite(f"known violations {settled.name}", "cemverify.known", cases))
    if compared is not None:
        outcome = "failure" if compared.strict else "skipped"
        differences = (
            (f"{f.property or 'all'}: {f.change}", f.sentence, outcome if f.regression else "")
            for f in compared.differences
        )
        root.append(_suite(f"baseline {compared.path}", "cemverify.baseline", differences))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(name: str, classname: str, cases: Iterable[tuple[str, str, str]]) -> ElementTree.Element:
    """A suite of cases, each (name, sentence, tag of the outcome or nothing)."""
    suite = ElementTree.Element("testsuite", name=name)
    tally: Counter[str] = Counter()
    for case_name, sentence, tag in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=classname, name=case_name, time="0")
        tally[tag] += 1
        if tag:
            ElementTree.SubElement(case, tag, message=visible(sentence))
        else:
            ElementTree.SubElement(case, "system-out").text = visible(sentence)
    failures, skipped = str(tally["failure"]), str(tally["skipped"])
    suite.attrib.update(tests=str(tally.total()), failures=failures, errors="0", skipped=skipped)
    return suite


def _tables(settled: Settled | None, compared: BaselineComparison | None) -> list[Table]:
    tables = []
    if settled is not None:
        described = [outcome.describe() for outcome in settled.outcomes]
        columns: tuple[str, ...] = ("line", "property", "standing", "cause", "reason", "expires")
        tables.append(Table("Known violations", columns, [[d[key] for key in columns] for d in described]))
    if compared is not None:
        columns = ("", "property", "change", "before", "after")
        rows = [
            (_mark(f.regression), f.property or "all", str(f.change), f.before, f.after) for f in compared.differences
        ]
        tables.append(Table("Compared with the baseline", columns, rows))
    return tables


def _known_heading(settled: Settled) -> str:
    tally = Counter(str(outcome.standing) for outcome in settled.outcomes)
    stand = ", ".join(f"{count} {standing}" for standing, count in tally.items()) or "none for this implementation"
    elsewhere = f"; {settled.elsewhere} for other implementations" if settled.elsewhere else ""
    return f"known violations in {settled.name}: {stand}{elsewhere}"


def _baseline_heading(compared: BaselineComparison) -> str:
    count = len(compared.regressions)
    noted = len(compared.differences) - count
    if not compared.differences:
        return f"compared with {compared.path}: nothing got worse"
    effect = ", which fails the run" if compared.failed else ", a warning" if count else ""
    return f"compared with {compared.path}: {count} regression{'' if count == 1 else 's'}{effect}; {noted} noted"


def _mark(regression: bool) -> str:
    return "REGRESSION" if regression else "noted"
