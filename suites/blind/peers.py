"""Asks every peer about layers that nobody had seen who wrote it, and makes the page of what was found.

A layer is asked in a fork of this process, until the first test fails: that is what a detection takes. What the
processors spent on it counts, with all descendants; of `cemverify check` that includes its start, and of the others
not the import of torch.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any
from unittest import SkipTest

import torch

import benchmarks.peers
from benchmarks.peers import golden
from cemverify import EnergyLayer, reference
from cemverify.results import envelope
from cemverify.results.envelope import Table
from cemverify.results.provenance import Maker
from cemverify.results.tables import markdown
from cemverify.runs.cells import Cell, algorithm
from cemverify.runs.options import RunOptions
from cemverify.runs.run import run_cells
from cemverify.runs.store import CellStore, StoredCell
from suites.apart import apart
from suites.blind.rounds import answers as stored_answers
from suites.blind.rounds import at_first, load, rounds
from suites.kit.source import ROOT

HERE = Path(benchmarks.peers.__file__).parent
FIRST = "first contact"
BY_HAND = ("golden", "gradients", "by_hand", "drawn")
PEERS = {  # what a table calls it, and what it cannot see
    "golden": ("golden outputs", "options, sizes and gradients, and whatever needs a second call"),
    "gradients": (
        "gradcheck, and a step against autograd of its energy",
        "a wrong function whose derivative is right, where no energy contradicts it; anything in NumPy",
    ),
    "by_hand": ("a suite by hand", "inputs that its author did not think of: places, sizes, combinations"),
    "drawn": ("Hypothesis by hand", "lower precisions, long rows, layouts, and what a call leaves behind"),
    "quick": (
        "`cemverify check --quick --first`",
        "what 1.5 s of the clock leave no time for, more on a busy machine",
    ),
    "check": ("`cemverify check --first`", "what no question reaches, such as a condition on one place or number"),
    FIRST: ("`cemverify check` when it first met them", "the same, and what was mended since"),
}
LIMITS = {"check": (900, 1500)}  # seconds of the processors and of the clock
USUAL_LIMITS = (180, 900)


@dataclass(frozen=True)
class Question:
    """One peer about one layer of a blind round."""

    peer: str
    round: int
    name: str


@algorithm("peer", asking=1)
def ask(question: Question) -> dict[str, Any]:
    """Whether the peer calls the layer wrong, by which test, and the seconds of the processors."""
    row = apart(_answer, {}, question)
    if "error" in row:
        return {"outcome": "found", "by": row["error"], "seconds": None}
    return {name: value for name, value in row.items() if name not in ("cpu", "seconds")} | {"seconds": row["cpu"]}


def _answer(question: Question) -> dict[str, Any]:
    torch.set_num_threads(1)
    work, clock = LIMITS.get(question.peer, USUAL_LIMITS)
    resource.setrlimit(resource.RLIMIT_CPU, (work, work))
    signal.alarm(clock)
    return _tested(question) if question.peer in BY_HAND else _checked(question)


def _tested(question: Question) -> dict[str, Any]:
    layer = load(question.round).implementation(question.name)
    tests = vars(import_module(f"benchmarks.peers.{question.peer}")).items()
    outcome = "unasked"
    for name, test in tests:
        of_energy_layers = name.startswith("test_energy_layer")
        if not name.startswith("test_") or of_energy_layers != isinstance(layer, EnergyLayer):
            continue
        try:
            test(layer)
        except SkipTest:
            continue
        except Exception as error:
            return {"outcome": "found", "by": name, "why": f"{type(error).__name__}: {error}"[:300]}
        outcome = "passed"
    return {"outcome": outcome}


def _checked(question: Question) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        options = ["--first", "--workers", "1", "--json", f"{file}", *(["--quick"] * (question.peer == "quick"))]
        layer = f"suites.blind.faults:{question.name}"
        command = [sys.executable, "-m", "cemverify.cli", "check", layer, *options]
        code = subprocess.run(command, capture_output=True, cwd=ROOT).returncode
        result = json.loads(file.read_text()) if file.exists() else {}
    violated = [row["id"] for row in result.get("properties", ()) if row["verdict"] == "violated"]
    outcome = {0: "passed", 1: "found"}.get(code, "no verdict")
    return {"outcome": outcome, "by": violated[0] if violated else None}


def sample(faults: int, right: int, seed: int = 54) -> list[tuple[int, Any, bool]]:
    """Faults and right layers of the blind rounds in torch and NumPy, mixed: round, layer, whether it is right."""
    chance = random.Random(seed)  # noqa: S311
    wrong = [(r.number, fault, False) for r in rounds() for fault in r.faults if fault.framework != "jax"]
    styles = [(r.number, style, True) for r in rounds() for style in r.styles if style.framework != "jax"]
    drawn = [chance.sample(kind, min(n, len(kind))) for kind, n in ((wrong, faults), (styles, right))]
    placed = [((i + 1) / len(kind), layer) for kind in drawn for i, layer in enumerate(kind)]
    return [layer for _, layer in sorted(placed, key=lambda pair: pair[0])]


def answer_all(
    peers: Sequence[str], layers: Sequence[tuple[int, Any, bool]], store: Path, seconds: float
) -> dict[tuple[str, str], Mapping[str, Any]]:
    """What the peers say of the layers, by peer and name; nothing new is begun after those seconds."""
    ends = time.monotonic() + seconds
    for peer in BY_HAND:  # what is imported at first use is imported once, and not in every fork
        import_module(f"benchmarks.peers.{peer}")
    golden.test_golden_outputs(reference)
    answers = {}
    for peer, cell, name in _cells(peers, layers):
        kept: StoredCell | None = CellStore(store).get(cell.key)
        if kept is None and time.monotonic() < ends:
            (kept,) = run_cells([cell], RunOptions(store, workers=0))
        if kept is not None and kept.payload is not None:
            answers[peer, name] = kept.payload
    return answers


def _cells(peers: Sequence[str], layers: Sequence[tuple[int, Any, bool]]) -> Iterator[tuple[str, Cell, str]]:
    """The cheapest first; then all that one writes by hand about one layer after the other."""
    costly = [peer for peer in peers if peer in BY_HAND[1:]]
    for group in (["golden"] if "golden" in peers else [], costly, *([p] for p in peers if p not in BY_HAND)):
        for number, layer, _ in layers:
            for peer in group:
                yield peer, ask.cell(Question(peer, number, layer.name), label=f"{peer}, {layer.name}"), layer.name


def lines_of(peer: str) -> int:
    """Lines of Python that are not empty, of the test and of what it shares with the others."""
    if peer not in BY_HAND:
        return 3
    files = [HERE / "cases.py", HERE / f"{peer}.py"]
    return sum(bool(line.strip()) for file in files for line in file.read_text().splitlines())


def result(
    peers: Sequence[str],
    layers: Sequence[tuple[int, Any, bool]],
    answers: Mapping[tuple[str, str], Mapping[str, Any]],
    maker: Maker,
) -> dict[str, Any]:
    """The result file, with its tables."""
    stored = {number: stored_answers(number) for number, _, _ in layers}
    answers = dict(answers)
    for number, layer, _ in layers:
        if (old := stored[number].get(layer.name)) is not None:
            answers[FIRST, layer.name] = {"outcome": "found" if at_first(old) else "passed", "seconds": None}
    rows = [{"round": n, "name": one.name, "framework": one.framework, "area": one.area, "fault": one.fault,
             "right": right, "answers": {peer: answers.get((peer, one.name)) for peer in (*peers, FIRST)}}
            for n, one, right in layers]  # fmt: skip
    data = {"peers": {"layers": rows, "lines": {peer: lines_of(peer) for peer in peers}}}
    return envelope.result("benchmarks", maker, _tables(rows), {"benchmarks": data, "load": os.getloadavg()[0]})


def _tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    peers = list(rows[0]["answers"])
    faults, right = ([row for row in rows if row["right"] is so] for so in (False, True))
    whole = [
        (
            PEERS[peer][0],
            _share(peer, faults),
            sum(_outcome(peer, row) in ("unasked", "no verdict") for row in faults),
            _share(peer, right),
            _seconds(peer, faults),
            _seconds(peer, right),
            lines_of(peer),
        )
        for peer in peers
    ]
    headings = ("", "faults found", "could not ask", "false alarms", "CPU s, fault", "CPU s, right", "lines")
    areas = sorted({row["area"] for row in faults})
    by_area = [
        (area, *(_share(peer, [row for row in faults if row["area"] == area]) for peer in peers)) for area in areas
    ]
    signs = {"found": "found", "passed": "–", "unasked": "cannot ask", "no verdict": "no verdict", "": ""}
    each = [
        (row["name"], row["framework"], row["fault"], *(signs[_outcome(peer, row)] for peer in peers))
        for row in (*faults, *right)
    ]
    return [
        Table("What each found", headings, whole),
        Table("What it cannot see", ("", "cannot see"), [PEERS[peer] for peer in peers]),
        Table("Faults by kind, found of those asked", ("", *peers), by_area),
        Table("Each layer; those without a fault at the end", ("layer", "in", "what is wrong", *peers), each),
    ]


def _outcome(peer: str, row: Mapping[str, Any]) -> str:
    answer = row["answers"].get(peer)
    return "" if answer is None else str(answer["outcome"])


def _share(peer: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """ "12 of 40", of the layers that it was asked about."""
    outcomes = [outcome for row in rows if (outcome := _outcome(peer, row))]
    return f"{outcomes.count('found')} of {len(outcomes)}" if outcomes else ""


def _seconds(peer: str, rows: Sequence[Mapping[str, Any]]) -> str:
    taken = [a["seconds"] for row in rows if (a := row["answers"].get(peer)) and a["seconds"] is not None]
    return f"{median(taken):.1f}" if taken else ""


ABOUT = """\
Four tests by hand beside `cemverify check`, for {faults} faults and {right} right but unusual layers in torch and
NumPy, drawn by `random.Random(54)` from those of the [blind rounds](../blind-rounds.md). **{asked}** What the
tables say is said of the layers that were asked: "of" counts them.

The four were written from the contract, the mathematics and the reference alone, and committed before their author
had read a fault (`benchmarks/peers`). The properties of `check` were mended after the rounds from which these
faults come. So the row to compare with is "when it first met them": what a run with the default examples found
before that, as the rounds kept it, with the layer's code not read. Each of the four was written until it passed the
reference and the examples in torch and NumPy, so its false alarms there are zero by construction (of
`examples.compiled_reference` the golden outputs alone had been asked). The right layers of the sample had been seen
by neither side.

CPU seconds are medians, with all descendants, until the first failure; of a right layer, of the whole test. Those
of `check` have its start in them, those of the others not the import of torch (about 2 s). Lines are those that are
not empty; for a test by hand they include the options, weights and arrays that the four share."""


def page(result: Mapping[str, Any]) -> str:
    """The page of a result."""
    made_by, layers = result["made_by"], result["benchmarks"]["peers"]["layers"]
    right = sum(row["right"] for row in layers)
    peers = [peer for peer in layers[0]["answers"] if peer != FIRST]
    counts = {peer: sum(row["answers"][peer] is not None for row in layers) for peer in peers}
    asked = ", ".join(f"{peer} {count}" for peer, count in counts.items())
    made = (
        f"Made by `{made_by['command']}` on {made_by['device']['name']}, {made_by['created'][:10]}, torch"
        f" {made_by['versions']['torch']}, at a load of {result['load']:.1f}."
    )
    sentence = f"Layers asked, of {len(layers)}: {asked}."
    about = ABOUT.format(faults=len(layers) - right, right=right, asked=sentence)
    tables = markdown(envelope.tables_of(result))
    return "\n\n".join(("# Beside what one would do otherwise", made, about, tables)) + "\n"
