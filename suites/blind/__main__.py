"""`python -m suites.blind ask 1` tests the faults of a round; `python -m suites.blind page` writes what was found."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from cemverify.processes.atomic_files import replacing
from cemverify.processes.cores import cores
from cemverify.runs import add_run_arguments, run_options
from suites.blind import matrix
from suites.blind.asking import Answer, apart, context
from suites.blind.page import page
from suites.blind.rounds import answers, answers_file, load, rounds
from suites.kit.source import ROOT

PAGE = ROOT / "docs" / "blind-rounds.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(prog="python -m suites.blind", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument("round", type=int)
    chosen.add_argument("--names", nargs="+", metavar="NAME", help="these implementations only")
    chosen.add_argument("--workers", type=int, default=cores(), metavar="N", help="processes (default: all cores)")
    words = "test the faults of a round, and its correct implementations"
    ask = commands.add_parser("ask", parents=[chosen], help=words)
    ask.add_argument("--when", metavar="WORDS", help="a row of the table for what is asked first now: when that was")
    more = ask.add_mutually_exclusive_group()
    more.add_argument("--again", action="store_true", help="once more what was misjudged, with today's properties")
    more.add_argument("--killed", action="store_true", help="once more what was killed, what killed it first")
    ask.set_defaults(run=_ask)
    words = "write matrix.jsonl, which properties find the faults that are found, and when; an hour or two, resumable"
    found = commands.add_parser("matrix", help=words)
    add_run_arguments(found)
    found.set_defaults(run=lambda options: matrix.measure(run_options(options)))
    written = commands.add_parser("page", help="write docs/blind-rounds.md from the answers")
    written.set_defaults(run=lambda _: _write(PAGE, page()))
    options = parser.parse_args(arguments)
    if (number := getattr(options, "round", None)) is not None:
        if number not in (numbers := [r.number for r in rounds()]):
            parser.error(f"no round {number}; choose from {', '.join(map(str, numbers))}")
        if unknown := [name for name in options.names or () if name not in load(number).names]:
            parser.error(f"round {number} has no implementation {unknown[0]!r}; its faults.json names them")
    options.run(options)
    return 0


def _ask(options: argparse.Namespace) -> None:
    round_ = load(options.round)
    results = answers(options.round)
    names = [
        name
        for name in options.names or round_.names
        if name not in results
        or "error" in results[name]
        or (options.again and results[name]["violated"] == round_.is_right(name))
        or (options.killed and results[name]["violated"])
    ]
    random.Random(0).shuffle(names)  # noqa: S311 -- so that what a stopped run has asked is a fair sample
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"
    processes = context()
    with ThreadPoolExecutor(options.workers) as threads:
        killers = {name: str(results.get(name, {}).get("by", "")) for name in names}
        waiting = {threads.submit(apart, processes, round_.folder, *killer): killer[0] for killer in killers.items()}
        for i, future in enumerate(as_completed(waiting), 1):
            name, answer = waiting[future], future.result()
            before = results.get(name)
            results[name] = {**answer, "commit": commit}
            if before is not None and "error" not in before:
                results[name]["first"] = before.get("first", {key: before[key] for key in ("violated", "commit")})
                results[name] |= {key: before[key] for key in ("read", "when", "afterwards") if key in before}
            elif options.when:
                results[name]["when"] = options.when
            rows = (f"{json.dumps(asked)}: {json.dumps(found)}" for asked, found in sorted(results.items()))
            _write(answers_file(options.round), "{{\n{}\n}}\n".format(",\n".join(rows)))
            print(f"{i} of {len(names)}: {name}: {_sentence(answer)}", file=sys.stderr, flush=True)


def _write(path: Path, text: str) -> None:
    with replacing(path) as aside:
        aside.write_text(text)


def _sentence(answer: Answer) -> str:
    if "error" in answer:
        return f"no answer ({answer['error']})"
    return f"violates {answer['by']}" if answer["violated"] else "nothing seen"


if __name__ == "__main__":
    sys.exit(main())
