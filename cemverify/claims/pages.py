"""The claims ledger for readers: a table, one claim in full, a page, a result file."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from cemverify.claims import ClaimVerdict, JudgedClaim
from cemverify.claims.arguments import Finding
from cemverify.claims.base import ARXIV, DRAFT
from cemverify.results.envelope import Table, result
from cemverify.results.provenance import Maker
from cemverify.results.tables import fitted, folded

_SHORT = ("claim", "kind", "verdict", "statement")
_WIDE = 140  # columns if there is no terminal
_COLUMNS = ("claim", "kind", "version", "section", "verdict", "statement", "condition")
OPENING = "What the paper states and whether it is true, for those who implement CEM and for readers of the paper."
_PREFACE = f"""\
The paper is "Revisiting Transformer Layer Parameterization Through Causal Energy Minimization". Two versions are
quoted: the **draft** on OpenReview, "Recasting Transformer Layers as Energy Models" (anonymous, ICLR 2026 submission
18341), whose equations and sections are cited, and **v1**, {ARXIV}, which numbers its sections
differently. We have the whole text of the draft, but of v1 only the abstract and reports. Quotes are verbatim: whole
sentences, words of one between dots, or formulas. The paper's formulas, counts and reported experiments have entries;
not every sentence has.

`cemverify claims` computes every verdict from arguments that it gathers anew. A statement is true or false of each
case. An *instance* is one case in numbers; *figures* are the numbers that the statement is about; *symbols* stand for
all cases; a *sample* lists many; a *search* looks for one that makes it false. A *lemma* is a step of the proof,
confirmed by algebra. *Properties* are those that `cemverify check` tests, here on the reference. The first example
against a statement is worked out below; `cemverify claims ID` works out all, and says how models were trained. This
page is generated: `cemverify claims --markdown docs/claims.md`.

Notation: D model dimension, K heads, R head dimension, M hidden units, J tokens, h the memory, x the state, tau the
temperature, eta the step size, P the preconditioner, u the unit roundoff, eps the attention energy, xi the MLP's, g a
gradient; beta_kj = A_k h_j. The [mathematics](mathematics.md) has the derivations: claims begin with the number of
the section."""

Chosen = Callable[[JudgedClaim], bool]


def _paper(*verdicts: ClaimVerdict) -> Chosen:
    return lambda j: j.claim.kind == "paper" and j.verdict in verdicts


# headings of the page, their meaning, and which claims are below them
SECTIONS: tuple[tuple[str, str, Chosen], ...] = (
    (
        "Errors of the draft",
        "What the draft states and is false; the version on arXiv was not checked.",
        _paper(ClaimVerdict.REFUTED),
    ),
    (
        "Slips of the pen",
        "Where the draft contradicts itself, its source or arithmetic, and plainly means the right thing.",
        lambda j: j.claim.kind == "slip",
    ),
    (
        "True under a condition",
        "What the paper states without a condition that it needs.",
        _paper(ClaimVerdict.CONDITIONAL),
    ),
    ("Holds", "What the paper states and is true.", _paper(ClaimVerdict.HOLDS)),
    (
        "Cannot be told",
        "What the paper states too vaguely to be judged, or in words missing from our copy.",
        _paper(ClaimVerdict.UNDECIDED, ClaimVerdict.UNTELLABLE),
    ),
    (
        "Ours",
        "Lemmas that the paper does not state, each with what rests on it: a finding, a property or code.",
        lambda j: j.claim.kind == "ours",
    ),
    (
        "Training",
        "What the paper's experiments report, compared with our studies at a far smaller scale.",
        lambda j: j.claim.kind == "training",
    ),
)


def counts(judged: Sequence[JudgedClaim]) -> dict[str, dict[str, int]]:
    """The number of claims of each kind with each verdict."""
    tally = Counter((j.claim.kind, j.verdict) for j in judged)
    return {
        kind: {str(verdict): tally[kind, verdict] for verdict in ClaimVerdict if tally[kind, verdict]}
        for kind in ("paper", "slip", "ours", "training")
    }


def claims_table(judged: Sequence[JudgedClaim]) -> Table:
    """A table with one row for each claim."""
    rows = [
        (
            j.claim.id,
            j.claim.kind,
            j.claim.source.version,
            j.claim.source.section,
            j.conclusion,
            j.claim.statement,
            j.claim.condition,
        )
        for j in judged
    ]
    return Table("What the paper states, and what is true", _COLUMNS, rows)


def as_terminal(judged: Sequence[JudgedClaim], width: int | None = None) -> str:
    """The table and the counts.

    Args:
        width: columns of the terminal; None if there is none.
    """
    rows = [(j.claim.id, j.claim.kind, str(j.verdict), _with_condition(j)) for j in judged]
    return f"{fitted(Table('Claims', _SHORT, rows), width or _WIDE)}\n\n{summary(judged)}"


def _with_condition(judged: JudgedClaim) -> str:
    claim = judged.claim
    return f"{claim.statement} If: {claim.condition}." if claim.condition else claim.statement


def summary(judged: Sequence[JudgedClaim]) -> str:
    """The counts, a line for each kind."""
    titles = {"paper": "the paper's", "slip": "slips of the pen", "ours": "ours", "training": "training"}
    return "\n".join(
        f"{titles[kind]}: {sum(tally.values())}: " + ", ".join(f"{n} {name}" for name, n in tally.items())
        for kind, tally in counts(judged).items()
        if tally
    )


def in_full(judged: JudgedClaim) -> str:
    """One claim with its finding, and its arguments with their workings."""
    claim = judged.claim
    parts = [f"{claim.id}: {judged.conclusion}", _labelled("statement", claim.statement)]
    parts.append(_labelled("formula", claim.formula))
    parts.append(_labelled("where", f"{claim.source.where} ({claim.kind})"))
    if claim.source.version:
        parts.append(_labelled("quoted", _quoted(judged)))
    if claim.condition:
        parts.append(_labelled("condition", claim.condition))
    parts.append(_labelled("finding", claim.finding))
    parts.append(_labelled("for your implementation", claim.advice))
    if claim.study:
        parts.append(_labelled("study", claim.study))
    if claim.rests:
        page = "docs/explanation/findings.md"
        named = (f"{name} of {page}" if name.startswith("finding ") else name for name in claim.rests)
        parts.append(_labelled("what rests on it", ", ".join(named)))
    for f in judged.findings:
        working = "\n".join(textwrap.indent(line, "      ") for line in f.lines)
        parts.append(f"  {_side(f)}: {f.summary}\n{working}".rstrip())
    parts.append(_labelled("again", f"cemverify claims {claim.id}"))
    return "\n\n".join(parts)


def as_markdown(judged: Sequence[JudgedClaim]) -> str:
    """The page: every claim in its section. Nothing in it depends on the machine or the day."""
    sections = [(heading, words, [j for j in judged if chosen(j)]) for heading, words, chosen in SECTIONS]
    sections = [section for section in sections if section[2]]
    families = [
        f"- [{name}](#{name.lower().replace(' ', '-')}), {len(rows)}: {words}" for name, words, rows in sections
    ]
    parts = [
        "# The claims ledger",
        OPENING,
        "\n".join(families),
        "[Ten findings](explanation/findings.md) say what changes in your code.",
        "## How to read it",
        _PREFACE,
    ]
    for heading, _, rows in sections:
        parts += [f"## {heading}", folded(f"{len(rows)} claims", *map(as_section, rows))]
    return "\n\n".join(parts) + "\n"


def as_json(judged: Sequence[JudgedClaim], maker: Maker) -> dict[str, Any]:
    """The claims for a result file."""
    payload = {"counts": counts(judged), "claims": [j.describe() for j in judged]}
    return result("claims", maker, [claims_table(judged)], payload)


def as_section(judged: JudgedClaim) -> str:
    """A claim's part of the page: the working of the first example against it, and the kinds of all arguments."""
    claim, findings = judged.claim, judged.findings
    where = claim.source.where.replace(DRAFT, "draft").replace(ARXIV, "v1")
    parts = [f'### <a id="{claim.id}"></a>{claim.id}', claim.statement, f"    {claim.formula}"]
    parts.append(f"> {_quoted(judged)} ({where})" if claim.source.version else f"*{where}*")
    condition = f": {claim.condition}" if claim.condition else ""
    parts.append(f"**{judged.verdict.capitalize()}**{condition}. {claim.finding}")
    parts.append(f"*Advice:* {claim.advice}.")
    if claim.rests:
        parts.append(f"*What rests on it:* {', '.join(map(_named, claim.rests))}.")
    worked = [f for f in findings if f.kind in ("instance", "figures") and f.side == "against"]
    for f in worked[:1]:
        parts += [f"*{_side(f)}:* {f.summary}.", textwrap.indent("\n".join(f.lines), "    ")]
    studies = [f for f in findings if f.kind == "study"]
    if claim.study:
        parts.append(f"*Measured by* `{claim.study}`{':' if studies else '.'}")
    if studies:
        scales = dict.fromkeys(f.scale for f in studies)
        parts.append("\n".join(f"- {at}: {'; '.join(f.summary for f in studies if f.scale == at)}" for at in scales))
    if kinds := list(dict.fromkeys(f.kind for f in findings if f not in studies)):
        parts.append(f"*Tested by* {', '.join(kinds)}.")
    return "\n\n".join(parts)


def _named(name: str) -> str:
    """A finding by its number; the id of a property, or a name in the code."""
    return f"[{name}](explanation/findings.md)" if name.startswith("finding ") else f"`{name}`"


def _side(finding: Finding) -> str:
    words = {"for": "For", "against": "Against", "finding": "Lemma", "neither": "Decides nothing"}[finding.side]
    return words if finding.within else f"{words}, beyond the condition"


def _quoted(judged: JudgedClaim) -> str:
    source = judged.claim.source
    if source.wording == "sentence":
        return f'"{source.quote}"'
    if source.wording == "words":
        return f'"... {source.quote} ..."'
    if source.wording == "formula":
        return f"`{source.quote}`"
    return f"{source.quote + '; ' if source.quote else ''}known by a report"


def _labelled(label: str, text: str) -> str:
    return textwrap.fill(text, 100, initial_indent=f"  {label}: ", subsequent_indent="    ", break_on_hyphens=False)
