"""How often `cemverify repair` mends mistakes of one token, and how quickly.

`python -m suites.repair try --each 12` makes mistakes and has them mended; `python -m suites.repair page` writes what
came of it.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from suites.repair.mistakes import BASES, ROOT, Mistake, mistakes
from suites.repair.page import page

MEASURED = Path(__file__).with_name("measured.jsonl")
PAGE = ROOT / "docs" / "results" / "repair.md"
# What a mistake in a formula violates; the rest asks the process, long rows or other dtypes, and takes long.
FAMILIES = ("gradient", "training", "descent", "tying", "recursion", "structure", "metamorphic")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(prog="python -m suites.repair", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    attempt = commands.add_parser("try", help="make mistakes, and have them mended; goes on where it was stopped")
    attempt.add_argument("--each", type=int, default=12, metavar="N", help="mistakes in each implementation")
    attempt.add_argument("--seed", type=int, default=0)
    attempt.add_argument("--bases", nargs="+", default=list(BASES), choices=list(BASES), metavar="FILE")
    attempt.add_argument("--workers", type=int, default=2, metavar="N", help="processes that try edits (default 2)")
    attempt.set_defaults(run=_try)
    write = commands.add_parser("page", help="write docs/results/repair.md")
    write.set_defaults(run=_page)
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _page(_options: argparse.Namespace) -> int:
    PAGE.write_text(page(read(MEASURED)))
    return 0


def _try(options: argparse.Namespace) -> int:
    done = {(row["base"], row["line"], row["before"], row["after"]) for row in read(MEASURED)}
    # in turn, so that what a stopped run has tried is a fair sample
    drawn = [mistakes(base, options.each, options.seed) for base in options.bases]
    wanted = [mistake for row in zip_longest(*drawn) for mistake in row if mistake is not None]
    for i, mistake in enumerate(wanted, 1):
        if (mistake.base, mistake.line, mistake.before, mistake.after) in done:
            continue
        row = tried(mistake, options.workers)
        with MEASURED.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{i} of {len(wanted)}: {json.dumps(row)}", file=sys.stderr, flush=True)
    return 0


def read(path: Path) -> list[dict[str, Any]]:
    """What was tried so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tried(mistake: Mistake, workers: int) -> dict[str, Any]:
    """What `cemverify repair` makes of one mistake, asked as its user would."""
    row: dict[str, Any] = {
        "base": mistake.base,
        "line": mistake.line,
        "before": mistake.before,
        "after": mistake.after,
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        # beside what the file imports of its own package
        package = folder / Path(mistake.base).parent
        package.mkdir(parents=True, exist_ok=True)
        name = "mistaken"
        (folder / f"{name}.py").write_text(mistake.text)
        words = [sys.executable, "-m", "cemverify", "repair", f"{name}:mine", "--json", "found.json"]
        words += ["--examples", "30", "--workers", str(workers), "--search", "600", "--seconds", "240"]
        started = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT)])}
        families = [f"{family}/*" for family in FAMILIES]
        run = subprocess.run(
            [*words, "--properties", *families], cwd=folder, capture_output=True, text=True, env=environment
        )
        row["seconds_altogether"] = round(time.monotonic() - started, 1)
        if not (folder / "found.json").exists():
            return {**row, "error": run.stderr.strip().splitlines()[-1:]}
        found = json.loads((folder / "found.json").read_text())
        first = run.stdout.strip().splitlines()[0]
        original = normal((ROOT / mistake.base).read_text())
        whole = [repair for repair in found["repairs"] if repair["mends"]]
        texts = [_patched(mistake.text, repair["diff"], folder) for repair in whole]
        rank = next((i for i, text in enumerate(texts, 1) if text is not None and normal(text) == original), None)
        return {
            **row,
            "said": first,
            "refusal": found["refusal"],
            "tried": found["tried"],
            "seconds": found["seconds"],
            "cut_short": found["cut_short"],
            "mended": len(whole),
            "edits": [len(repair["edits"]) for repair in whole],
            "diffs": [repair["diff"] for repair in whole],
            "alike": [repair["others"] for repair in whole],
            "rank": rank,
        }


def normal(text: str) -> str:
    """The program, whatever its layout."""
    return ast.dump(ast.parse(text))


def _patched(text: str, diff: str, folder: Path) -> str | None:
    """The text after a unified diff; None if it does not apply."""
    file = folder / "mistaken.py"
    file.write_text(text)
    done = subprocess.run(["patch", "-p1", "-s"], input=diff, text=True, cwd=folder, capture_output=True)  # noqa: S607
    return file.read_text() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
