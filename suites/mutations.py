"""Are our own tests any good? `python -m suites.mutations` changes one token at a time and asks them.

Cosmic Ray makes the changes: another operator, another number, a condition turned round, a decorator gone. Each is
made in a copy of the repository, and the tests of that file must fail. A sample with a fixed seed is taken, since all
of them take days. Results are kept in the session file as they come, and the same command goes on where it ended.

Exit code 0 if enough were noticed, 1 if not, 2 if the tests fail without any change.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[1]
ACCEPTED = Path(__file__).with_name("accepted_mutations.toml")
_TESTS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("cemverify/cem", ("suites/cem",)),
    ("cemverify/conformance/oracle", ("suites/conformance/test_budgets.py",)),
    ("cemverify/results/statistics.py", ("suites/synthetic/test_statistics.py",)),
    ("cemverify/runs/store.py", ("suites/runs/test_store.py",)),
    ("synthetic/training/probes.py", ("suites/synthetic/test_language_training.py",)),
    (
        "cemverify/power",
        tuple(f"suites/power/test_{name}.py" for name in ("pages", "injection", "power", "mutants")),
    ),
)
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
_NOT = ("cemverify/power/mutants",)  # wrong on purpose: another wrong line is as good


@dataclass(frozen=True)
class Change:
    """One change of one token.

    Attributes:
        path: of the file. line, column: where, counted from 1 and from 0. operator: Cosmic Ray's name for the change.
        occurrence: which of the places in the file where it can be made.
    """

    path: str
    line: int
    column: int
    operator: str
    occurrence: int

    @property
    def name(self) -> str:
        """A line for people; the source of the line itself names it in the list of what is accepted."""
        return f"{self.path}:{self.line} {self.operator} #{self.occurrence}"

    @property
    def source(self) -> str:
        """The line before the change, without its indentation."""
        return (ROOT / self.path).read_text().splitlines()[self.line - 1].strip()


def files() -> list[str]:
    """What is changed: paths inside the repository."""
    found = [
        path.relative_to(ROOT).as_posix()
        for place, _ in _TESTS
        for path in ([ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py")))
    ]
    return [path for path in found if not path.startswith(_NOT)]


def folders_of(path: str) -> tuple[str, ...]:
    """The folders of the suites in which the tests of a file are."""
    return next(tests for place, tests in _TESTS if path.startswith(place))


def tests_of(path: str) -> str:
    """The command that must fail once the file is changed; tests named for the file come first, as -x ends a run."""
    folders = folders_of(path)
    named = [f"{folder}/test_{Path(path).stem}.py" for folder in folders if not folder.endswith(".py")]
    asked = [test for test in named if (ROOT / test).exists()] + list(folders)
    return shlex.join([*_PYTEST, *asked])


def changes(path: str, operators: Sequence[str] = ()) -> list[Change]:
    """Every change of a file by these operators, or by all, but for those of annotations, which nothing evaluates."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    tree, annotations = get_ast_from_path(ROOT / path), _annotations((ROOT / path).read_text())
    found = []
    for name in operators or operator_names():
        operator = get_operator(name)
        if operator.arguments():  # needs choices of ours
            continue
        starts = [start for node in ast_nodes(tree) for start, _ in operator().mutation_positions(node)]
        found += [Change(path, line, column, name, k) for k, (line, column) in enumerate(starts)]
    return [c for c in found if not any(first <= (c.line, c.column) < last for first, last in annotations)]


def _annotations(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where the annotations of a file begin and end."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(annotation, ast.expr):
                end = annotation.end_lineno or annotation.lineno, annotation.end_col_offset or annotation.col_offset
                found.append(((annotation.lineno, annotation.col_offset), end))
    return found


def sampled(everything: Sequence[Change], number: int, seed: int) -> list[Change]:
    """So many places, each with one of its changes: a product has eleven of them, and counts no more for it."""
    rng = random.Random(seed)  # noqa: S311  (no secrets here)
    places: dict[tuple[str, int, int], list[Change]] = {}
    for change in everything:
        places.setdefault((change.path, change.line, change.column), []).append(change)
    chosen = rng.sample(sorted(places), min(number, len(places)))
    return [rng.choice(places[place]) for place in chosen]


def survives(change: Change, copy: str, seconds: float) -> bool:
    """Whether the tests of the file still pass with the change made in a copy of the repository."""
    from cosmic_ray.mutating import mutate_and_test
    from cosmic_ray.work_item import MutationSpec, TestOutcome

    os.chdir(copy)
    os.environ["PYTHONPATH"] = copy
    here = (change.line, change.column)
    spec = MutationSpec(change.path, change.operator, change.occurrence, here, (change.line, change.column + 1))
    result = mutate_and_test([spec], tests_of(change.path), seconds)
    if result.test_outcome is None or result.test_outcome == TestOutcome.INCOMPETENT:
        raise RuntimeError(f"{change.name} could not be made: {result.output}")
    return bool(result.test_outcome == TestOutcome.SURVIVED)


def _copied(folder: str) -> str:
    """A copy of what git knows of, and of what it would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return folder


_COPY: list[str] = []


def _settle() -> None:
    """A worker makes a copy of its own, in which it alone changes files."""
    _COPY.append(_copied(tempfile.mkdtemp(prefix="mutations-")))


def _ask(change: Change, seconds: float) -> tuple[Change, bool]:
    return change, survives(change, _COPY[0], seconds)


def accepted() -> dict[tuple[str, str, str], str]:
    """Changes that need not be noticed, by path, source line and operator, and why."""
    listed = tomllib.loads(ACCEPTED.read_text())["change"]
    return {(one["path"], one["line"], one["operator"]): one["reason"] for one in listed}


def main(arguments: Sequence[str] | None = None) -> int:
    """Takes a sample, asks, and reports."""
    parser = argparse.ArgumentParser(
        prog="python -m suites.mutations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=200, help="how many places (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument("--least", type=float, default=0.92, help="the share to be noticed (default: 0.92)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time (default: one per core)")
    parser.add_argument("--seconds", type=float, default=900, help="after which tests that go on have noticed")
    parser.add_argument("--only", default="", help="files whose path begins so")
    parser.add_argument("--session", type=Path, default=Path("out/mutations.jsonl"), help="where results are kept")
    asked = parser.parse_args(arguments)
    chosen = sampled(
        [change for path in files() if path.startswith(asked.only) for change in changes(path)],
        asked.sample,
        asked.seed,
    )
    if not chosen:
        parser.error(f"no file to change begins with {asked.only!r}")
    outcomes = _outcomes(chosen, asked.session, asked.jobs, asked.seconds)
    if outcomes is None:
        return 2
    survivors = [change for change in chosen if outcomes[change.name]]
    reasons = accepted()
    for change in survivors:
        reason = reasons.get((change.path, change.source, change.operator))
        print(f"survived: {change.name}\n    {change.source}\n    {reason or 'no reason on file'}")
    noticed = 1 - len(survivors) / len(chosen)
    unexplained = sum((c.path, c.source, c.operator) not in reasons for c in survivors)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} changes were noticed, {noticed:.1%}", end="; ")
    print(f"{unexplained} of the {len(survivors)} survivors have no reason on file")
    return 0 if noticed >= asked.least else 1


def _outcomes(chosen: Sequence[Change], session: Path, jobs: int, seconds: float) -> dict[str, bool] | None:
    """Whether each survived, by name; None if the tests fail as things are."""
    session.parent.mkdir(parents=True, exist_ok=True)
    state = _state()
    known = [json.loads(line) for line in session.read_text().splitlines()] if session.exists() else []
    outcomes = {one["name"]: one["survived"] for one in known if one["code"] == state}
    owed = [change for change in chosen if change.name not in outcomes]
    for folders in sorted({folders_of(change.path) for change in owed}):
        command = [*_PYTEST, *folders]
        if subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode:
            print(f"the tests fail without any change: {shlex.join(command)}", file=sys.stderr)
            return None
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_settle) as pool, session.open("a") as kept:
        for done in as_completed([pool.submit(_ask, change, seconds) for change in owed]):
            change, survived = done.result()
            outcomes[change.name] = survived
            print(json.dumps({"code": state, "name": change.name, "survived": survived}), file=kept, flush=True)
            left = sum(c.name not in outcomes for c in owed)
            print(f"{'SURVIVED' if survived else 'noticed'} {change.name}, {left} to go", file=sys.stderr, flush=True)
    return outcomes


def _state() -> str:
    """A digest of the files that are changed and of the suites: results of others do not count."""
    digest = hashlib.sha256()
    for path in [*files(), *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "suites").rglob("*.py"))]:
        digest.update(path.encode() + b"\0" + (ROOT / path).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
