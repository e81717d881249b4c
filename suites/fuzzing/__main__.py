"""Abuses every command: `python -m suites.fuzzing --count 2000 --seed 0`, about ten minutes of a core.

Prints every abuse that broke the rule, as a line that `regressions` could hold; then, as Markdown, how many of each
kind were tried and what is excused.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from cemverify.results.envelope import Cell, Table
from cemverify.results.tables import markdown
from suites.fuzzing import ground
from suites.fuzzing.abuses import NOT_TRIED, as_json, complaints, excuses
from suites.fuzzing.generators import SHARES, draw_all
from suites.fuzzing.zygote import outcomes


def main() -> int:
    """Runs them; 0 if all keep the rule."""
    parser = argparse.ArgumentParser(prog="python -m suites.fuzzing", description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=list(SHARES), default=list(SHARES), help="only these")
    options = parser.parse_args()
    tried: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    excused: Counter[str] = Counter()
    codes: defaultdict[str, Counter[int | None]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as folder:
        ground.make(Path(folder))
        abuses = draw_all(Path(folder), options.count, options.seed, options.kinds)
        for number, (abuse, outcome) in enumerate(outcomes(abuses, Path(folder)), 1):
            tried[abuse.kind] += 1
            codes[abuse.kind][outcome.code] += 1
            excused.update(excuses(abuse, outcome))
            if departures := complaints(abuse, outcome):
                broken[abuse.kind] += 1
                complaint = outcome.stderr.strip().splitlines()[-1:]
                print(json.dumps({"abuse": as_json(abuse), "complaints": departures, "said": complaint,
                                  "code": outcome.code, "seconds": outcome.seconds}), flush=True)  # fmt: skip
            if number % 50 == 0:
                print(
                    f"{number} of {len(abuses)}, {sum(broken.values())} broke the rule", file=sys.stderr, flush=True
                )
    ended = {kind: ", ".join(f"{code}: {n}" for code, n in sorted(codes[kind].items(), key=str)) for kind in tried}
    rows: list[list[Cell]] = [[kind, count, broken[kind], ended[kind]] for kind, count in tried.items()]
    rows += [["all", tried.total(), broken.total(), ""]]
    print(markdown([Table(f"Seed {options.seed}", ("abuses", "tried", "broke the rule", "exit codes"), rows)]))
    print("\n".join(f"* excused in {count}: {reason};" for reason, count in excused.most_common()))
    print("\n".join(f"* not tried: {reason};" for reason in NOT_TRIED))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
