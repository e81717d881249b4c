"""Explains how a stored cell was computed: from what, by which versions, where and when; and whether it repeats."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cemverify.console.errors import UsageError
from cemverify.console.escaping import brief
from cemverify.console.parsing import path
from cemverify.console.streams import note
from cemverify.results.envelope import show
from cemverify.runs.cells import Cell, algorithm_of
from cemverify.runs.executors import compute_all, processes
from cemverify.runs.plain import dumps
from cemverify.runs.progress import duration
from cemverify.runs.run import commit
from cemverify.runs.store import CellStore, CorruptCell, Failure, StoredCell

# Every algorithm of this project, and the module that declares it. A name that a store gives is looked up here and
# nowhere else: a store may come from a stranger, and to import a module is to run it.
HOMES = {
    "cemverify.power.cells:introduce": "cemverify.power.cells",
    "cemverify.power.cells:measure": "cemverify.power.cells",
    "synthetic.language.tuned.cells:compute_trial": "synthetic.studies.engine.trials",
    "synthetic.recursion.cells:compute_model": "synthetic.studies.recursion.cells",
    "synthetic.recursion.cells:compute_task": "synthetic.studies.recursion.cells",
}

# In a specification, "module:object" or "folder/file.py:object" stands for code that is not part of this project.
_MODULE = re.compile(r"([\w./-]+):[A-Za-z_]")
_OURS = ("cemverify", "synthetic")

DESCRIPTION = """\
Every number of a study comes from cells: stored results named by the hash of everything that determines them. This
command shows how a cell was computed. With --rerun it computes the cell again and compares the bytes.
"""

EPILOG = """\
examples:
  python -m synthetic explain 3f9c                      a unique prefix of the key is enough
  python -m synthetic explain 3f9c --rerun              exit code 0: the same bytes; 1: others
  python -m synthetic explain 3f9c --store out/other
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m synthetic explain`."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("key", metavar="KEY", help="key of a cell, or its first digits")
    parser.add_argument(
        "--store", type=path, metavar="DIR", default=Path("out/store"), help="the store (default: %(default)s)"
    )
    parser.add_argument("--rerun", action="store_true", help="compute the cell again and compare; changes nothing")
    parser.add_argument(
        "--imports", action="store_true", help="import modules that the cell names, of a store that you trust"
    )


def run(options: argparse.Namespace) -> int:
    """Explains, and computes again if asked; returns the exit code.

    Raises:
        UsageError: no such cell, or its code is not here.
    """
    if not options.store.is_dir():
        raise UsageError(f"there is no store {options.store}; give the study's store with --store")
    store = CellStore(options.store)
    key = store.find(options.key)
    try:
        record = store.get(key)
    except CorruptCell as error:
        raise UsageError(f"{error}; the study computes it again when it next runs") from error
    if record is None:
        raise UsageError(f"cell {key} has just been removed from {options.store}")
    show("\n".join(explain(record, options.store)))
    if not options.rerun:
        return 0
    if (named := sorted(set(modules_of(record.cell.spec)))) and not options.imports:
        raise UsageError(
            f"the cell was computed with {', '.join(named)}, which --rerun would import and so run; if you trust the"
            " store, add --imports"
        )
    return _rerun(store, record)


def explain(record: StoredCell, folder: Path) -> list[str]:
    """Lines that say how a record was made."""
    made = record.made_by
    lines = [f"cell {record.key}"]
    if label := made.get("label"):
        lines.append(f"  {label}")
    lines += ["", f"computed by {record.cell.algorithm}"]
    lines += [f"  {component} version {version}" for component, version in record.cell.versions.items()]
    lines += ["", "from the specification", *_indented(record.cell.spec, "  ")]
    if seeds := sorted(set(_seeds(record.cell.spec))):
        lines += ["", "with every random stream derived from", *(f"  {seed}" for seed in seeds)]
    lines += ["", *_status(record)]
    lines += ["", *_made(made)]
    again = shlex.join(["python", "-m", "synthetic", "explain", record.key[:12], "--store", str(folder), "--rerun"])
    return [*lines, "", "to make it again and compare", f"  {again}"]


def _status(record: StoredCell) -> list[str]:
    if record.failure is not None:
        return [f"failed: {record.failure.cause}", *(f"  {line}" for line in record.failure.traceback.splitlines())]
    payload = record.payload or {}
    return [f"done: {len(dumps(payload)):,} bytes of payload: {', '.join(payload)}"]


def _made(made: Mapping[str, Any]) -> list[str]:
    if "created" in made:
        seconds = made["seconds"]
        took = f"{seconds:g} s" if seconds < 10 else duration(seconds)
        lines = [f"made {made['created']} on {made['host']} ({made['machine']}), in {took}"]
    else:
        lines = ["when and where is unknown"]  # the side file is lost, or the worker did not live to tell
    if "versions" in made:
        lines.append("  with " + ", ".join(f"{name} {version}" for name, version in made["versions"].items()))
    if made.get("commit"):
        lines.append(f"  at commit {made['commit']}")
    return lines


def modules_of(spec: Mapping[str, Any]) -> Iterator[str]:
    """The modules of somebody else that a specification names: of kernels in a prior, and of an implementation."""
    for name, value in spec.items():
        if name in ("prior", "implementation") and isinstance(value, str):
            yield from (found for found in _MODULE.findall(value) if found.partition(".")[0] not in _OURS)
        elif isinstance(value, Mapping):
            yield from modules_of(value)
        elif isinstance(value, list):
            yield from modules_of({f"{name}[{i}]": item for i, item in enumerate(value)})


def at_home(cell: Cell) -> Cell:
    """A cell that was read from a store, with the module that declares its algorithm.

    Raises:
        UsageError: it is none of this project's algorithms.
    """
    if (home := HOMES.get(cell.algorithm)) is None:
        raise UsageError(f"{cell.algorithm!r} is not an algorithm of this project; known are {', '.join(HOMES)}")
    return replace(cell, home=home)


def _rerun(store: CellStore, record: StoredCell) -> int:
    """Computes the cell again and compares."""
    cell = at_home(record.cell)
    here = algorithm_of(cell)
    if dict(here.versions) != dict(record.cell.versions):
        raise UsageError(
            f"the code here has versions {dict(here.versions)}, the cell was computed by "
            f"{dict(record.cell.versions)}; "
            f"check out commit {record.made_by.get('commit') or 'of that time'} to make it again"
        )
    note("computing it again ...")
    found = _perform_apart(cell)
    if isinstance(found, Failure):
        same = record.failure is not None and record.failure.cause == found.cause
        show(f"\n{'it fails again in the same way' if same else 'now it fails'}: {found.cause}")
        return 0 if same else 1
    if store.contents(record.cell, found) == store.path(record.key).read_bytes():
        show("\nthe same, byte for byte")
        return 0
    show("\nNOT the same:")
    differences = list(_differences(record.payload or {}, found, "payload"))
    for line in differences[:10]:
        show(f"  {line}")
    if len(differences) > 10:
        show(f"  and {len(differences) - 10} more")
    if (now := commit()) != record.made_by.get("commit"):
        show(f"it was made at commit {record.made_by.get('commit')}, and here is {now}")
    return 1


def _perform_apart(cell: Cell) -> Mapping[str, Any] | Failure:
    """Computes a cell as a study does, in a separate process, which it may crash."""
    found: list[Mapping[str, Any] | Failure] = []
    compute_all([cell], processes(1), lambda _, outcome: found.append(outcome.found), lambda _: None)
    return found[0]


def _differences(then: Any, now: Any, where: str) -> Iterator[str]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for name in sorted(then.keys() | now.keys()):
            yield from _differences(then.get(name), now.get(name), f"{where}.{name}")
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for i, (a, b) in enumerate(zip(then, now, strict=True)):
            yield from _differences(a, b, f"{where}[{i}]")
    elif dumps(then) != dumps(now):
        yield f"{where}: {brief(dumps(then), 60)} then, {brief(dumps(now), 60)} now"


def _indented(value: Any, indent: str) -> Iterator[str]:
    """A specification as lines; short parts stay on one line."""
    for name, item in value.items():
        if name == "is":
            continue
        flat = dumps(item)
        if isinstance(item, Mapping):
            yield f"{indent}{name}: {item.get('is', '')}".rstrip()
            yield from _indented(item, indent + "  ")
        elif isinstance(item, list) and len(flat) > 100 and all(isinstance(part, Mapping) for part in item):
            for i, part in enumerate(item):
                yield f"{indent}{name}[{i}]: {part.get('is', '')}".rstrip()
                yield from _indented(part, indent + "  ")
        else:
            yield f"{indent}{name}: {flat}"


def _seeds(value: Any) -> Iterator[str]:
    """The parts of a specification that determine its random streams."""
    if isinstance(value, Mapping):
        own = {name: item for name, item in value.items() if name in ("root", "seed") and isinstance(item, int)}
        if own:
            yield ", ".join(f"{name} {item}" for name, item in own.items())
        for item in value.values():
            yield from _seeds(item)
    elif isinstance(value, list):
        for item in value:
            yield from _seeds(item)
