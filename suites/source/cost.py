"""What reading the code costs: `python -m suites.source.cost` checks layers with their code read and without.

The seconds are those that the processors spent, of all processes of a check, so another program that computes beside
them changes little. Most properties ask the same questions either way; they tell what it costs to record the lines
that are reached. Those that look around numbers ask more, and are told apart.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median

from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.properties import select
from cemverify.conformance.workers import isolation
from cemverify.results.envelope import Table
from cemverify.results.tables import grid
from suites.apart import Row, apart

ROOT = Path(__file__).parents[2]
NAME = "asked"
FILES = (
    "examples/sdpa_torch.py",
    "examples/attention_module.py",
    "examples/energy_layer.py",
    "examples/energies_jax.py",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table, one row for each layer."""
    parser = argparse.ArgumentParser(prog="python -m suites.source.cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of checks of each layer (default 3)")
    parser.add_argument("--examples", type=int, default=60, metavar="N", help="for each property (default 60)")
    parser.add_argument("--properties", nargs="+", default=[], metavar="ID")
    options = parser.parse_args(arguments)
    same, more = (
        [property_.id for property_ in select(options.properties) if property_.looks_around is looks]
        for looks in (False, True)
    )
    rows = []
    for name, text in _layers():
        by_kind: dict[tuple[bool, bool], list[Row]] = {}
        for _ in range(options.rounds):
            for looks, reads in product((False, True), (False, True)):  # in turn
                outcome = apart(_checked, {f"{NAME}.py": text}, more if looks else same, options.examples, reads)
                by_kind.setdefault((looks, reads), []).append(outcome)
        print(f"{name}: {by_kind}", file=sys.stderr, flush=True)
        rows.append(_row(name, by_kind))
    columns = (
        "layer",
        "CPU s unread",
        "with reach",
        "more",
        "and questions around numbers",
        "more",
        "questions",
        "more",
    )
    print(grid(Table("What reading the code costs", columns, rows), "markdown"))
    return 0


def _row(name: str, by_kind: Mapping[tuple[bool, bool], Sequence[Row]]) -> tuple[str, ...]:
    """One layer's costs.

    Recording costs every question the same, so its share is that of the properties that ask no more than without it.
    """
    seconds, questions = (
        {key: _typical(rows, unit) for key, rows in by_kind.items()} for unit in ("cpu", "questions")
    )
    unread, read = seconds[False, False] + seconds[True, False], seconds[False, True] + seconds[True, True]
    share = seconds[False, True] / seconds[False, False] - 1
    fewer = questions[False, False] + questions[True, False]
    return (
        name,
        f"{unread:.1f}",
        f"{unread * (1 + share):.1f}",
        _percent(share),
        f"{read:.1f}",
        _percent(read / unread - 1),
        f"{fewer:.0f}",
        _percent((questions[False, True] + questions[True, True]) / fewer - 1),
    )


def _layers() -> list[tuple[str, str]]:
    readme = re.search(r"```python[^\n]*\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert readme is not None
    return [("README's layer", readme[1]), *((file, (ROOT / file).read_text()) for file in FILES)]


def _checked(properties: Sequence[str], examples: int, reads_code: bool) -> Row:
    effort = Effort(examples=examples, seconds=600.0, reads_code=reads_code)
    *_, finished = isolation.run(f"{NAME}:mine", select(properties), effort)
    assert isinstance(finished, RunFinished)
    return {"questions": sum(record.examples for record in finished.records)}


def _typical(rows: Sequence[Row], key: str) -> float:
    return float(median(row[key] for row in rows))


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


if __name__ == "__main__":
    sys.exit(main())
