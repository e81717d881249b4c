"""`python -m benchmarks.rehearsal`: the rehearsal, in a process in which nothing has imported torch yet."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import get_args

from benchmarks.rehearsal.absent_gpu import stand_in


def main(arguments: Sequence[str] | None = None) -> int:
    """Takes every path, prints what is wrong with one, and writes all of it; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rehearsal", description=__doc__)
    parser.add_argument("--areas", nargs="+", metavar="AREA", help="some areas of the paths; all if not given")
    parser.add_argument("--each", type=int, default=1, metavar="N", help="every Nth path of an area (default 1)")
    parser.add_argument("--sizes", nargs="*", metavar="SIZE", help="sizes whose memory is counted; all if not given")
    parser.add_argument("--steps", nargs="+", type=int, default=[1, 2, 4, 8], metavar="T", help="at these T")
    parser.add_argument("--plans", nargs="*", metavar="SIZE", help="sizes trained by eight processes (default 162M)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found, as it is found")
    options = parser.parse_args(arguments)
    stand_in()
    import torch

    from benchmarks.rehearsal import footprint, paths, ranks
    from cemverify.cem.presets import SIZES
    from cemverify.console.streams import note

    torch.set_num_threads(1)
    outcomes: list[paths.Outcome] = []
    weighed: list[footprint.Weighed] = []
    plans: list[ranks.Plan] = []

    def keep() -> None:
        if options.json:
            taken = [
                {"area": o.path.area, "name": o.path.name, "faults": o.faults, "waits": o.waits, "wide": o.wide}
                for o in outcomes
            ]
            memory, planned = [asdict(one) for one in weighed], [asdict(one) for one in plans]
            options.json.write_text(json.dumps({"paths": taken, "memory": memory, "plans": planned}, indent=1))

    for area in options.areas or paths.AREAS:
        for path in list(paths.paths([area]))[:: options.each]:
            outcomes.append(outcome := paths.take(path))
            for fault in outcome.faults:
                note(f"{area}: {path.name}: {fault}")
        keep()
    for name, T in product(list(SIZES) if options.sizes is None else options.sizes, (None, *options.steps)):
        weighed.append(footprint.weigh(name, T))
        note(weighed[-1].line())
        keep()
    shared = ["162M"] if options.plans is None else options.plans
    for name, T, way in product(shared, (None, 2), get_args(ranks.Way)):
        plans.append(ranks.plan(name, T, way))
        note(plans[-1].line())
    keep()
    return int(any(outcome.faults for outcome in outcomes) or any(not one.agrees for one in weighed))


if __name__ == "__main__":
    sys.exit(main())
