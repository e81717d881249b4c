"""What reading the code costs: `python -m suites.source.cost` checks layers with their code read and without.

The seconds are those that the processors spent, of all processes of a check, so another program that computes beside
them changes little. A check that reads code asks more, too: around the numbers. Its cost is told per question, too.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
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
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="pairs of checks of each layer (default 3)"
    )
    parser.add_argument("--examples", type=int, default=60, metavar="N", help="for each property (default 60)")
    parser.add_argument("--properties", nargs="+", default=[], metavar="ID")
    options = parser.parse_args(arguments)
    rows = []
    for name, text in _layers():
        read, unread = [], []
        for _ in range(options.rounds):  # in turn
            unread.append(apart(_checked, {f"{NAME}.py": text}, options.properties, options.examples, False))
            read.append(apart(_checked, {f"{NAME}.py": text}, options.properties, options.examples, True))
        print(f"{name}: {unread} {read}", file=sys.stderr, flush=True)
        without, with_ = _typical(unread, "cpu"), _typical(read, "cpu")
        fewer, more = _typical(unread, "questions"), _typical(read, "questions")
        each = (with_ / more) / (without / fewer) - 1
        rows.append(
            (name, f"{without:.1f}", f"{with_:.1f}", _percent(with_ / without - 1), *_counts(fewer, more, each))
        )
    columns = ("layer", "CPU s without", "with", "more", "questions without", "with", "more CPU for a question")
    print(grid(Table("What reading the code costs", columns, rows), "markdown"))
    return 0


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


def _counts(fewer: float, more: float, each: float) -> tuple[str, str, str]:
    return f"{fewer:.0f}", f"{more:.0f}", _percent(each)


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


if __name__ == "__main__":
    sys.exit(main())
