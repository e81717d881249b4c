"""Whether questions around numbers call a right layer wrong: `python -m suites.source.alarms` asks the whole bank.

Only properties that look around numbers are asked, with the layers' code read; of layers that run through a compiler
a fifth of them with each seed, in turn. It goes on where it was stopped, one seed after the other, so that what a
stopped run has asked is of all layers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import catalogue
from cemverify.conformance.workers import isolation
from cemverify.power.bank import BANK, unavailable
from cemverify.power.plan import PARTS
from cemverify.processes.cores import cores
from suites.apart import Row, apart

FILE = Path(__file__).with_name("alarms.jsonl")


def main(arguments: Sequence[str] | None = None) -> int:
    """Asks, and prints what was asked so far; the exit code is 1 if a right layer was called wrong."""
    parser = argparse.ArgumentParser(prog="python -m suites.source.alarms", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="seeds, from 0 (default 20)")
    parser.add_argument("--workers", type=int, default=cores(), metavar="N", help="processes (default: all cores)")
    options = parser.parse_args(arguments)
    # of the others there is no code to read
    layers = [entry for entry in BANK if entry.name.startswith("examples.") and unavailable(entry) is None]
    rows = [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []
    done = {(row["layer"], row["seed"]) for row in rows}
    for seed in range(options.seeds):
        for layer in layers:
            if (layer.name, seed) not in done:
                part = slice(seed % PARTS, None, PARTS) if layer.costly else slice(None)
                outcome = apart(_judged, {}, layer.name, seed, part, options.workers)
                row = {"layer": layer.name, "seed": seed, **outcome}
                rows.append(row)
                with FILE.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), file=sys.stderr, flush=True)
    runs = [row for row in rows if "error" not in row]
    wrong = [row for row in runs if row["violated"]]
    print(f"{len(runs)} runs of {len({row['layer'] for row in runs})} right layers, {len(wrong)} called wrong;")
    print(
        f"{sum(row['around'] > 0 for row in runs)} of them looked around numbers. {len(rows) - len(runs)} were lost."
    )
    return 1 if wrong else 0


def _judged(layer: str, seed: int, part: slice, workers: int) -> Row:
    properties = [property_ for property_ in catalogue() if property_.looks_around][part]
    *_, finished = isolation.run(layer, properties, Effort(seed=seed, seconds=600.0, reads_code=True), workers)
    assert isinstance(finished, RunFinished)
    return {
        "violated": [record.id for record in finished.records if record.verdict == Verdict.VIOLATED],
        "undecided": [record.id for record in finished.records if record.verdict == Verdict.INCONCLUSIVE],
        "properties": sum(record.verdict != Verdict.NOT_OFFERED for record in finished.records),
        "around": 0 if finished.reach is None else finished.reach.looked_around,
    }


if __name__ == "__main__":
    sys.exit(main())
