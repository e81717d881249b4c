"""`python -m reports compare`: compares two results, or two folders of them."""

from __future__ import annotations

import argparse

from cemverify.console.parsing import path

DESCRIPTION = """\
Compares old results with new ones: verdicts and margins, ratios of a study by their intervals, times as ratios from
one kind of machine. Results of the same kind and subject are paired; two single files are compared even
if they are of different implementations.
"""

EPILOG = """\
examples:
  python -m reports compare main.json branch.json            a commit against another
  python -m reports compare mine.json theirs.json            an implementation against another
  python -m reports compare out/before out/after --json changes.json

exit code: 0 if nothing got worse; 1 if something did, which is named; 2 if the results cannot be compared, or a file
cannot be read, with the reason.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `python -m reports compare` to its parser."""
    parser.add_argument("old", metavar="OLD", type=path, help="a result file, or a folder of them")
    parser.add_argument("new", metavar="NEW", type=path, help="a result file, or a folder of them")
    parser.add_argument("--json", metavar="FILE", type=path, help="also write what was found as JSON")


def run(options: argparse.Namespace) -> int:
    """Compares; returns the exit code."""
    from cemverify.console.errors import Refusal
    from cemverify.console.escaping import one_line
    from cemverify.results.envelope import check_outputs, show, write
    from reports.collect import collect
    from reports.comparing.comparison import Comparison, compare
    from reports.comparing.findings import Finding, Incomparable

    check_outputs(options.json, read=[options.old, options.new])
    try:
        old, new = collect([options.old]), collect([options.new])
        check_outputs(options.json, read=[source.path for source in (*old, *new)])
        comparison: Comparison = compare(old, new)
    except Incomparable as reason:
        raise Refusal(f"not comparable: {reason}") from None
    if options.json is not None:
        write(options.json, {"schema": "cemverify.comparison", "schema_version": 1, **comparison.describe()})
    listed: list[Finding | str] = [*comparison.missing]
    for pair in comparison.pairs:
        listed += [pair.name, *pair.findings]
        if not pair.findings and not pair.reason:
            listed.append("  the same")
    listed += comparison.added
    lines = [one if isinstance(one, str) else f"  {one.weight.upper():<11} {one}" for one in listed]
    weights = [finding.weight for finding in comparison.findings]
    counts = [(weights.count(weight), weight) for weight in ("regression", "improvement")]
    lines.append(", ".join(f"{n} {weight}{'' if n == 1 else 's'}" for n, weight in counts))
    if comparison.pairs and not all(pair.reason for pair in comparison.pairs):
        show("\n".join(one_line(line) for line in lines))
    if comparison.reasons:
        raise Refusal(f"not comparable: {'; '.join(comparison.reasons)}")
    return comparison.code
