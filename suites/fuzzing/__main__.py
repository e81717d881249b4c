"""Abuses every command: `python -m suites.fuzzing --count 2000 --seed 0`, about ten minutes of a core.

Prints a table of the kinds, and every abuse that broke the rule, as a line that `regressions` could hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from suites.fuzzing import ground
from suites.fuzzing.abuses import as_json, complaints
from suites.fuzzing.generators import draw_all
from suites.fuzzing.zygote import outcomes


def main() -> int:
    """Runs them; 0 if all keep the rule."""
    parser = argparse.ArgumentParser(prog="python -m suites.fuzzing", description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", help="only these")
    options = parser.parse_args()
    tried: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    codes: defaultdict[str, Counter[int | None]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as folder:
        ground.make(Path(folder))
        abuses = draw_all(Path(folder), options.count, options.seed)
        if options.kinds:
            abuses = [abuse for abuse in abuses if abuse.kind in options.kinds]
        for number, (abuse, outcome) in enumerate(outcomes(abuses, Path(folder)), 1):
            tried[abuse.kind] += 1
            codes[abuse.kind][outcome.code] += 1
            if found := complaints(abuse, outcome):
                broken[abuse.kind] += 1
                said = outcome.stderr.strip().splitlines()[-1:]
                print(json.dumps({"abuse": as_json(abuse), "complaints": found, "said": said, "code": outcome.code,
                                  "seconds": outcome.seconds}), flush=True)  # fmt: skip
            if number % 50 == 0:
                print(
                    f"{number} of {len(abuses)}, {sum(broken.values())} broke the rule", file=sys.stderr, flush=True
                )
    for kind, count in tried.items():
        shown = ", ".join(f"{code}: {number}" for code, number in sorted(codes[kind].items(), key=str))
        print(f"{kind:<15} {count:>5} tried {broken[kind]:>4} broke the rule   exit codes {shown}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
