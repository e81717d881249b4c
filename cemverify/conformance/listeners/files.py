"""Result files of a run: JSON for machines, Markdown for readers, JUnit XML for CI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from cemverify.catalogue import versions
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict, asked_up_to, counts, violations
from cemverify.conformance.listeners import reach, terminal
from cemverify.conformance.listeners.cases import violation
from cemverify.results.envelope import Table, result
from cemverify.results.provenance import Maker
from cemverify.results.tables import grid


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
        tables, more: further tables, and what else the payload holds. pinned: the catalogue that was enforced.
    """
    violated = violations(event.records)
    payload = {
        "implementation": event.implementation,
        "counts": counts(event.records),
        "headline": violated[0].id if violated else None,
        "asked_up_to": asked_up_to(event.records),
        "catalogue": {"version": versions.current(), "pinned": pinned},
        "source": {
            "digest": event.origin.digest,
            "functions": {
                name: {"file": place.file, "line": place.line} for name, place in event.origin.places.items()
            },
        },
        "properties": [record.describe() for record in event.records],
    }
    if event.reach is not None:
        payload["reach"] = reach.as_json(event.reach)
    return result("check", maker, [*_tables(event), *tables], {**payload, **(more or {})})


def _tables(event: RunFinished) -> list[Table]:
    reached = [] if event.reach is None or not event.reach.files else [reach.table(event.reach)]
    return [terminal.verdict_table(event), *reached]


def as_markdown(event: RunFinished, maker: Maker, tables: Sequence[Table] = (), words: str = "") -> str:
    """The table and the violations, with what made them.

    Args:
        tables, words: further tables, and what is said below them.
    """
    table = terminal.verdict_table(event)
    made = maker.describe()
    parts = [
        f"# {table.title}",
        *filter(None, [terminal.how_far(event), terminal.summary(event)]),
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
    """One test case per property: a violation is a failure, the undecided are errors.

    What is known, not enforced or not offered is a skip.

    Args:
        pinned: the version of the catalogue that was enforced; None if all of it was.
    """
    c = counts(event.records)
    enforced = counts(record for record in event.records if not record.not_enforced)
    suite = ElementTree.Element(
        "testsuite",
        name=f"cemverify {event.implementation}",
        tests=str(c["applicable"]),
        failures=str(enforced["violated"] - enforced["known"]),
        errors=str(enforced["inconclusive"] + enforced["suite_error"]),
        skipped=str(c["not_offered"] + c["known"] + c["not_enforced"]),
        time=f"{event.seconds:.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, version in (("catalogue", versions.current()), ("catalogue enforced", pinned or versions.current())):
        ElementTree.SubElement(properties, "property", name=name, value=version)
    if event.reach is not None and event.reach.percent is not None:
        ElementTree.SubElement(properties, "property", name="reach", value=f"{event.reach.percent:.1f} %")
        output = ElementTree.Element("system-out")
        output.text = printable(reach.as_text(event))
    else:
        output = None
    for record in event.records:
        suite.append(_test_case(record))
    if output is not None:
        suite.append(output)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _test_case(record: Record) -> ElementTree.Element:
    family, _, name = record.id.partition("/")
    case = ElementTree.Element("testcase", classname=f"cemverify.{family}", name=name, time=f"{record.seconds:.3f}")
    tags = {
        Verdict.VIOLATED: "failure",
        Verdict.INCONCLUSIVE: "error",
        Verdict.SUITE_ERROR: "error",
        Verdict.NOT_OFFERED: "skipped",
    }
    if record.known is not None:
        message = f"known violation, accepted: {record.known}; {record.reason}"
        ElementTree.SubElement(case, "skipped", type="known violation", message=printable(message))
    elif record.not_enforced:
        message = f"{record.verdict}, but {terminal.too_new(record)}; {record.reason}"
        outcome = ElementTree.SubElement(case, "skipped", type="not enforced", message=printable(message))
        if record.verdict == Verdict.VIOLATED:
            outcome.text = printable(violation(record))
    elif record.verdict in tags:
        outcome = ElementTree.SubElement(case, tags[record.verdict], message=printable(record.reason or ""))
        outcome.set("type", record.cause or str(record.verdict))
        if record.verdict == Verdict.VIOLATED:
            outcome.text = printable(violation(record))
    return case


def printable(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c if c in "\n\t" or ord(c) >= 32 else "\N{REPLACEMENT CHARACTER}" for c in text)
