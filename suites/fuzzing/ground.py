"""The folder in which commands are abused: one sound file of each kind that is read, and what stands beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

from cemverify.results.envelope import write
from suites.entry.test_damaged_files import READERS
from suites.reports.examples import a_power

RESULTS = Path(__file__).parents[2] / "docs" / "results"

IMPLEMENTATION = "from cemverify import reference\n\nmine = reference\n"
OWN = """\
from cemverify import layer_property


@layer_property(claim="It is itself.", source="us", of="mlp", options={}, name="itself")
def itself(layer, question):
    return layer.update(question), layer.update(question), layer.roundoff(question)
"""
MODEL = "import torch\n\n\ndef build():\n    return torch.nn.Sequential(torch.nn.Linear(2, 3))\n"


def make(folder: Path) -> None:
    """Fills an empty folder with what commands read: layers, results, corpora, a store."""
    (folder / "right.py").write_text(IMPLEMENTATION)
    (folder / "model.py").write_text(MODEL)
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "layer.py").write_text(IMPLEMENTATION)
    (folder / "found").mkdir()
    (folder / "results").mkdir()
    (folder / "gpu").mkdir()
    (folder / "own.py").write_text(OWN)
    for name, into in (
        ("result", ""),  # r.json
        ("baseline", ""),  # check.json
        ("known violations", ""),  # known.toml
        ("counterexample", "found"),  # gradient-mlp-silu.*
        ("cell", "store"),
        ("corpus", ""),  # one.txt, corpora/
        ("weights of a trained model", ""),  # w.safetensors
        ("tokens for a trained model", ""),  # tokens.npy
        ("checkpoint", ""),
        ("metrics", ""),
        ("stage of a benchmark", "gpu"),
    ):
        READERS[name].make(folder / into)
    for name in ("benchmarks.json", "recursion.json", "second-step-mlp.json"):
        shutil.copy(RESULTS / name, folder)
    shutil.copy(RESULTS / "second-step-mlp.json", folder / "results")
    write(folder / "power.json", a_power())
    lines = (RESULTS / "second-step-mlp-small.cells.jsonl").read_text().splitlines(keepends=True)
    (folder / "some.cells.jsonl").write_text("".join(lines[:3]))
