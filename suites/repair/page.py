"""docs/results/repair.md: what became of the mistakes that a program made."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from cemverify.results.envelope import Table
from cemverify.results.tables import grid
from suites.repair.mistakes import BASES
from suites.repair.trying import EXAMPLES, FAMILIES

PREFACE = """\
# Repair, measured

A program made mistakes of one token in right implementations: a variable, an operator, a number, a letter of an
einsum or the key of a weight was exchanged for another. It knows nothing of the edits that `cemverify repair`
tries. But 156 mistakes of another seed had shown that 19 could be undone by no edit, and the kinds that were missing
were added; the mistakes on this page are others. Each was mended as `cemverify repair` does: {examples} examples for
each property of the families that ask about the formula ({families}).

*Violated* says how many mistakes violate a property: the rest change nothing, or nothing that these properties see,
or the layer cannot be imported with them. *Mended* are those for which an edit was found with which every property
holds. *True edit* says where the author's own text stood among the edits that were offered. Edits that give the same
answers are one offer: the likeliest is shown as a diff, and the others are named beside it (three of them in a
terminal, all in the result file). *As the diff* counts those whose diff was the author's text. *CPU s* are the
seconds that the processors spent on all of it, with the check that finds the violations, the search, and the judging
of what passed.

`python -m suites.repair try` makes and mends mistakes, `python -m suites.repair page` writes this page."""


def page(rows: Sequence[dict[str, Any]]) -> str:
    """The page on measured repairs, from the mistakes that were tried."""
    tables = [_table(rows)]
    preface = PREFACE.format(examples=EXAMPLES, families=", ".join(FAMILIES))
    return "\n\n".join([preface, *(grid(table, "markdown") for table in tables), _rest(rows)]) + "\n"


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    named = [base for base in BASES if any(row["base"] == base for row in rows)]
    body = [_row(base, BASES[base], [row for row in rows if row["base"] == base]) for base in named]
    columns = (
        *("implementation", "library", "mistakes", "violated", "mended"),
        *("true edit first", "as the diff", "within three", "median CPU s", "most"),
    )
    return Table("Mistakes of one token", columns, [*body, _row("all", "", rows)], rules=[len(body)])


def _row(name: str, library: str, rows: Sequence[dict[str, Any]]) -> tuple[Any, ...]:
    violated = [row for row in rows if _is_violated(row)]
    mended = [row for row in violated if row.get("mended")]
    ranks = [rank for row in mended if (rank := _rank(row)) is not None]
    seconds = [row["cpu"] for row in violated if "cpu" in row]
    first, as_shown = sum(rank == 1 for rank in ranks), sum(row["rank"] == 1 for row in mended)
    within_three = sum(rank <= 3 for rank in ranks)
    typical, most = (f"{median(seconds):.0f}", f"{max(seconds):.0f}") if seconds else ("–", "–")
    return (name, library, len(rows), len(violated), len(mended), first, as_shown, within_three, typical, most)


def _rank(row: dict[str, Any]) -> int | None:
    """Where the author's text stood, as a diff or beside one."""
    return min((rank for key in ("rank", "rank_of_alike") if (rank := row.get(key))), default=None)


def _is_violated(row: dict[str, Any]) -> bool:
    return "error" not in row and not row["said"].startswith("Nothing to mend")


def _rest(rows: Sequence[dict[str, Any]]) -> str:
    left = [row for row in rows if _is_violated(row) and not row.get("mended")]
    if not left:
        return "Every violated mistake was mended."
    listed = [f"* `{row['base']}`, line {row['line']}: `{row['before']}` became `{row['after']}`" for row in left]
    return "\n\n".join(["## Not mended", "\n".join(listed)])
