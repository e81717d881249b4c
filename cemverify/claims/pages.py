"""The claims ledger for its readers: a table, one claim in full, a page, a LaTeX table, a result file."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cemverify.claims import Judged, Standing
from cemverify.results import Maker, Table, result
from cemverify.tables import grid

_SHORT = ("claim", "source", "verdict", "statement")
_COLUMNS = (*_SHORT, "condition")
_PREFACE = (
    "What the paper (arXiv 2605.07588) states, and what is true. Every verdict is computed from the evidence that "
    "stands with it, gathered anew by `cemverify claims`; `cemverify claims ID` prints one in full. This page is "
    "generated: `cemverify claims --markdown docs/claims.md`."
)
_HEADINGS = {
    Standing.HOLDS: "What holds",
    Standing.CONDITIONAL: "What holds under a condition",
    Standing.REFUTED: "What does not hold",
    Standing.UNDECIDED: "What the evidence does not decide",
    Standing.NOT_MEASURED: "What is a matter of training",
}


def counts(judged: Sequence[Judged]) -> dict[str, int]:
    """How many claims have which verdict."""
    tally = Counter(j.verdict for j in judged)
    return {str(standing): tally[standing] for standing in Standing}


def claims_table(judged: Sequence[Judged]) -> Table:
    """One row per claim."""
    rows = [(j.claim.id, j.claim.source, str(j.verdict), j.claim.statement, j.claim.condition) for j in judged]
    return Table("What the paper states, and what is true", _COLUMNS, rows)


def as_terminal(judged: Sequence[Judged]) -> str:
    """The table, statements folded, and the counts."""
    rows = [
        (j.claim.id, textwrap.fill(j.claim.source, 18), textwrap.fill(str(j.verdict), 13), _folded(j)) for j in judged
    ]
    return f"{grid(Table('Claims', _SHORT, rows), 'boxed')}\n\n{summary(judged)}"


def summary(judged: Sequence[Judged]) -> str:
    """The counts in a line."""
    return f"{len(judged)} claims: " + ", ".join(f"{n} {name}" for name, n in counts(judged).items() if n) + "."


def in_full(judged: Judged) -> str:
    """One claim with its proof sketch and its evidence worked through."""
    claim = judged.claim
    parts = [f"{claim.id}: {judged.verdict}", _labelled("statement", claim.statement)]
    parts.append(_labelled("formula", claim.formula))
    parts.append(_labelled("source", claim.source))
    if claim.condition:
        parts.append(_labelled("condition", claim.condition))
    parts.append(_labelled("proof sketch" if judged.findings else "to measure", claim.proof))
    if claim.study:
        parts.append(_labelled("study", claim.study))
    for f in judged.findings:
        stands = "" if f.stands else " (DOES NOT STAND)"
        working = "\n".join(textwrap.indent(line, "      ") for line in f.lines)
        parts.append(f"  {f.side}{stands}: {f.summary}\n{working}".rstrip())
    parts.append(_labelled("again", f"cemverify claims {claim.id}"))
    return "\n\n".join(parts)


def as_markdown(judged: Sequence[Judged]) -> str:
    """The page: an overview, then every claim by verdict. Nothing in it depends on the machine or the day."""
    rows = [(f"[{j.claim.id}](#{j.claim.id})", j.claim.source, str(j.verdict)) for j in judged]
    overview = Table("Overview", ("claim", "source", "verdict"), rows)
    parts = ["# The claims ledger", _PREFACE, summary(judged), grid(overview, "markdown")]
    for standing, heading in _HEADINGS.items():
        chosen = [j for j in judged if j.verdict == standing]
        if chosen:
            parts.append(f"## {heading}")
            parts += [_section(j) for j in chosen]
    return "\n\n".join(parts) + "\n"


def as_latex(judged: Sequence[Judged]) -> str:
    """A booktabs table."""
    rows = [(j.claim.id, j.claim.source, str(j.verdict), j.claim.statement) for j in judged]
    return grid(Table("Claims", _SHORT, rows), "latex") + "\n"


def as_json(judged: Sequence[Judged], maker: Maker) -> dict[str, Any]:
    """The result file."""
    payload = {"counts": counts(judged), "claims": [j.describe() for j in judged]}
    return result("claims", maker, [claims_table(judged)], payload)


def _section(judged: Judged) -> str:
    claim = judged.claim
    lines = [f'### <a id="{claim.id}"></a>{claim.id}', f"{claim.statement} ({claim.source})", f"    {claim.formula}"]
    verdict = f"**{judged.verdict}**"
    lines.append(f"{verdict}: {claim.condition}." if claim.condition else f"{verdict}.")
    lines.append(claim.proof)
    if claim.study:
        lines.append(f"Measured by `{claim.study}`.")
    for f in judged.findings:
        lines.append(f"*{f.side.capitalize()}:* {f.summary}.")
        if f.lines:
            lines.append(textwrap.indent("\n".join(f.lines), "    "))
    return "\n\n".join(lines)


def _folded(judged: Judged) -> str:
    statement = textwrap.fill(judged.claim.statement, 68)
    if not judged.claim.condition:
        return statement
    return f"{statement}\n{textwrap.fill(f'if: {judged.claim.condition}', 68, subsequent_indent='    ')}"


def _labelled(label: str, text: str) -> str:
    return textwrap.fill(text, 100, initial_indent=f"  {label}: ", subsequent_indent="    ")
