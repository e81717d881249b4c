"""Result files of a run: JSON for machines, Markdown for readers, JUnit XML for CI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from cemverify.catalogue import versions
from cemverify.conformance.judging.diagnosis import diagnose
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict, asked_up_to, counts, violation, violations
from cemverify.conformance.listeners import reach, terminal
from cemverify.conformance.listeners.diagnosis import as_json as as_diagnosis
from cemverify.conformance.listeners.diagnosis import in_a_line
from cemverify.conformance.listeners.diagnosis import report as conclusion
from cemverify.console.escaping import visible
from cemverify.results.envelope import Table, result
from cemverify.results.provenance import Maker
from cemverify.results.tables import grid, markdown_cell


def as_json(
    event: RunFinished,
    maker: Maker,
    tables: Sequence[Table] = (),
    more: Mapping[str, Any] | None = None,
    *,
    pinned: str | None = None,
) -> dict[str, Any]:
    """The result file: the envelope of `cemverify.results.envelope`, the counts, the headline and every property.

    Args:
        tables, more: further tables, and further content. pinned: the catalogue version that was enforced.
    """
    violated, diagnosis = violations(event.records), diagnose(event)
    payload: dict[str, Any] = {
        "implementation": event.implementation,
        "counts": counts(event.records, len(event.unasked)),
        "headline": violated[0].id if violated else None,
        "asked_up_to": asked_up_to(event.records),
        "catalogue": {"version": versions.current(), "pinned": pinned},
        "source": {
            "digest": event.origin.digest,
            "functions": {name: {"file": at.file, "line": at.line} for name, at in event.origin.places.items()},
        },
        "properties": [record.describe() for record in event.records],
    }
    if event.interrupted:
        payload["interrupted"] = True
    if event.unasked:
        payload["unasked"] = list(event.unasked)
    if event.absences:
        payload["absences"] = {outcome: list(features) for outcome, features in event.absences.items()}
    if event.worth is not None:
        payload["worth"] = asdict(event.worth)
    if event.reach is not None:
        payload["reach"] = reach.as_json(event.reach)
    reached = [] if event.reach is None or not event.reach.files else [reach.table(event.reach)]
    told = [terminal.verdict_table(event), *reached, *tables]
    content = result("check", maker, told, {**payload, **(more or {})})
    if diagnosis is None:
        return content
    # right behind schema and kind, where somebody who opens the file looks
    kind = {name: content[name] for name in ("schema", "schema_version", "kind")}
    return {**kind, "diagnosis": as_diagnosis(diagnosis), **content}


def as_markdown(event: RunFinished, maker: Maker, tables: Sequence[Table] = (), words: str = "") -> str:
    """The table and the violations, with what made them.

    Args:
        tables, words: further tables, and a text below them.
    """
    table, diagnosis = terminal.verdict_table(event), diagnose(event)
    told = []
    if diagnosis is not None:
        told = [f"**{markdown_cell(diagnosis.sentence)}**", f"```\n{conclusion(diagnosis)}\n```"]
    made = maker.describe()
    parts = [
        f"# {table.title}",
        *told,
        *filter(
            None, (say(event) for say in (terminal.how_far, terminal.worth, terminal.absences, terminal.summary))
        ),
        *([f"```\n{reached}\n```"] if (reached := reach.as_text(event)) else []),
        f"`{made['command']}`, torch {made['versions']['torch']}, {made['device']['type']}, {made['created']}",
        grid(table, "markdown"),
    ]
    for further in tables:
        parts += [f"## {further.title}", grid(further, "markdown")]
    parts += [line for line in words.splitlines() if line]
    parts += [f"```\n{violation(record)}\n```" for record in violations(event.records)]
    return "\n\n".join(parts) + "\n"


def as_junit(event: RunFinished, pinned: str | None = None) -> str:
    """One test case per property: violations are failures, undecided properties are errors.

    Those that are known, not enforced or not offered are skipped.

    Args:
        pinned: the catalogue version that was enforced; None if all of it was.
    """
    c = counts(event.records, len(event.unasked))
    enforced = counts(record for record in event.records if not record.not_enforced)
    suite = ElementTree.Element(
        "testsuite",
        name=f"cemverify {event.implementation}",
        tests=str(c["applicable"]),
        failures=str(enforced["violated"] - enforced["known"]),
        errors=str(enforced["inconclusive"] + enforced["suite_error"]),
        skipped=str(c["not_offered"] + c["not_asked"] + c["known"] + c["not_enforced"]),
        time=f"{event.seconds:.3f}",
    )
    properties, diagnosis = ElementTree.SubElement(suite, "properties"), diagnose(event)
    stated = [("catalogue", versions.current()), ("catalogue enforced", pinned or versions.current())]
    if diagnosis is not None:
        stated.insert(0, ("diagnosis", f"{diagnosis.sentence}; {in_a_line(diagnosis.causes[0])}"))
    output = None
    if event.reach is not None and event.reach.percent is not None:
        stated.append(("reach", f"{event.reach.percent:.1f} %"))
        output = ElementTree.Element("system-out")
        output.text = visible(reach.as_text(event))
    for name, value in stated:
        ElementTree.SubElement(properties, "property", name=name, value=visible(value))
    for record in event.records:
        suite.append(_test_case(record))
    for id_ in event.unasked:
        case = ElementTree.SubElement(suite, "testcase", _named(id_, 0.0))
        ElementTree.SubElement(case, "skipped", type="not asked", message="the run ended early")
    if output is not None:
        suite.append(output)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _named(id_: str, seconds: float) -> dict[str, str]:
    family, _, name = id_.partition("/")
    return {"classname": f"cemverify.{family}", "name": name, "time": f"{seconds:.3f}"}


def _test_case(record: Record) -> ElementTree.Element:
    case = ElementTree.Element("testcase", _named(record.id, record.seconds))
    tags = {Verdict.VIOLATED: "failure", Verdict.NOT_OFFERED: "skipped",
            **dict.fromkeys((Verdict.INCONCLUSIVE, Verdict.SUITE_ERROR), "error")}  # fmt: skip
    if record.known is not None:
        message = f"known violation, accepted: {record.known}; {record.reason}"
        ElementTree.SubElement(case, "skipped", type="known violation", message=visible(message))
    elif record.not_enforced:
        message = f"{record.verdict}, but {terminal.too_new(record)}; {record.reason}"
        outcome = ElementTree.SubElement(case, "skipped", type="not enforced", message=visible(message))
        if record.verdict == Verdict.VIOLATED:
            outcome.text = visible(violation(record))
    elif record.verdict in tags:
        part = f"{record.part}: " if record.part is not None else ""
        message = visible(f"{part}{record.reason or ''}")
        outcome = ElementTree.SubElement(case, tags[record.verdict], message=message)
        outcome.set("type", record.cause or str(record.verdict))
        if record.verdict == Verdict.VIOLATED:
            outcome.text = visible(violation(record))
    return case
