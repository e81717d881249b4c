"""The folder in which commands are abused: sound files of every kind, and files that no command can read."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks import harvest
from cemverify.cem.layers import MLPConfig
from cemverify.cem.models import LanguageModel
from cemverify.conformance.counterexamples.files import save_all
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.questions.cases import dense_case
from cemverify.conformance.questions.saving import Packing, Saved
from cemverify.results.envelope import Table, result, write
from cemverify.results.provenance import Maker
from cemverify.runs import CellStore
from suites.kit.examples import known
from suites.kit.source import ROOT
from suites.reports.examples import a_check, a_power
from suites.runs.light import walks
from synthetic.corpora import sources
from synthetic.corpora.corpus import tokenised
from synthetic.corpora.tokenisers import Symbols
from synthetic.studies.side_by_side.rows import contenders
from synthetic.training import checkpoints
from synthetic.training.recipe import Recipe
from synthetic.training.training import adamw

RESULTS = ROOT / "docs" / "results"
PROPERTIES = ("gradient/mlp/silu", "gradient/attention/plain")
FACTS = {"vocabulary": 4, "steps": 2}  # of the checkpoint
MAKER = Maker.now("make", {}, 0, "cpu")

IMPLEMENTATION = "from cemverify import reference\n\nmine = reference\n"
OWN = """\
from cemverify import layer_property


@layer_property(claim="It is itself.", source="us", of="mlp", options={}, name="itself")
def itself(layer, question):
    return layer.update(question), layer.update(question), layer.roundoff(question)
"""
MODEL = "import torch\n\n\ndef build():\n    return torch.nn.Sequential(torch.nn.Linear(2, 3))\n"


def records() -> list[Record]:
    """Made-up verdicts of a run: one property holds, one is violated."""
    violated = Record(PROPERTIES[1], "", "", Verdict.VIOLATED, margin=7.0, cause="update = -eta P grad", reason="r")
    return [Record(PROPERTIES[0], "", "", Verdict.HOLDS, margin=0.1), violated]


def a_model() -> tuple[LanguageModel, torch.optim.Optimizer]:
    """The model of the checkpoint, before training."""
    small = contenders(vocabulary=4, dim=4, layers=1, heads=1, depths=(1,))[0]
    model = LanguageModel(small.model, torch.Generator().manual_seed(0))
    return model, adamw(model, Recipe(steps=2, batch=1, context=4))


def open_corpus(folder: Path) -> None:
    """Opens the corpus of one.txt, or creates it."""
    tokenised(sources.text_files([folder / "one.txt"]), Symbols(), folder / "corpora")


def make(folder: Path) -> None:
    """Fills an empty folder with files that commands read: layers, results, corpora, a store."""
    for name, text in {
        "right.py": IMPLEMENTATION,
        "package/layer.py": IMPLEMENTATION,
        "package/__init__.py": "",
        "model.py": MODEL,
        "own.py": OWN,
        "leaving.py": "raise SystemExit(0)\n",
        "one.txt": "words of a corpus, one after another\n" * 9,
        "known.toml": "# a comment\n".join(known(id_, "update*", "cemverify:reference") for id_ in PROPERTIES),
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for name in ("found", "results", "gpu"):
        (folder / name).mkdir()
    open_corpus(folder)
    _results(folder)
    _counterexample(folder / "found")
    store, cell = CellStore(folder / "store"), walks(1)[0]
    store.put(cell, {"end": 1.0}, {"label": "walk", "created": "today", "host": "h", "machine": "m", "seconds": 1.0})
    _checkpoint(folder / "checkpoint.safetensors")
    save_file({"weight": torch.ones(3, 2), "bias": torch.zeros(3)}, folder / "w.safetensors")
    np.save(folder / "tokens.npy", np.arange(6).reshape(2, 3))


def _results(folder: Path) -> None:
    tables = [Table("t", ["a", "b"], [["x", 1.5], [None, True]])]
    write(folder / "r.json", result("atlas", MAKER, tables, {"payload": {"deep": [1, 2]}}))
    write(folder / "check.json", a_check("right:mine", records()))
    for name in ("benchmarks", "recursion", "second-step-mlp", "dial-mlp"):
        shutil.copy(RESULTS / f"{name}.json", folder)
    shutil.copy(RESULTS / "second-step-mlp.json", folder / "results")
    write(folder / "power.json", a_power())
    lines = (RESULTS / "second-step-mlp-small.cells.jsonl").read_text().splitlines(keepends=True)
    (folder / "some.cells.jsonl").write_text("".join(lines[:3]))
    name, device = harvest.STAGES[0].name, {"type": "cpu", "name": "n", "system": "s", "threads": 1}
    stage = {"stage": name, "finished": True, "device": device, "versions": {"python": "3", "torch": "2"}}
    stage |= {"created": "today", "seconds": 1.5, "skipped": None, "data": {}}
    stage |= {"tables": [{"title": "t", "columns": ["a"], "rows": [["1"]]}]}
    write(folder / "gpu" / f"stage-{name}.json", stage)


def _counterexample(folder: Path) -> None:
    packing = Packing()
    packed = packing.tree(dense_case(MLPConfig(2, 3), batch=1, tokens=2, seed=0))
    saved = Saved(packed, "float64", "cpu", "torch", packing.arrays, [], within=5.0)
    record = replace(records()[1], id=PROPERTIES[0], saved=saved)
    save_all(RunFinished("cemverify:reference", [record], 0.0), folder, MAKER)


def _checkpoint(path: Path) -> None:
    model, optimiser = a_model()
    for parameter in model.parameters():
        zeros = torch.zeros_like(parameter)
        optimiser.state[parameter] = {"step": torch.tensor(1.0), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
    checkpoints.save(path, model, optimiser, checkpoints.TrainingState(1, (2.0,), "digest"), FACTS)


LINKS = {
    "loop.json": "loop.json",
    "loop": "loop",
    "dangling": "nowhere",
    "found/to-right.py": "../right.py",
    "to-null": "/dev/null",
    "to-stdout": "/proc/self/fd/1",
    "zeros": "/dev/zero",
}


def spoil(folder: Path) -> None:
    """Adds files that no command can read."""
    published = json.loads((RESULTS / "second-step-attention.json").read_text())
    sound = json.loads((folder / "r.json").read_text())
    for name, content in {
        "list": [1, 2],
        "undecided": {name: value for name, value in published.items() if name != "verdict"},
        "nan": sound | {"payload": float("nan")},
        "huge": sound | {"payload": 10**400},
        "escaping": sound | {"kind": "../../x"},
        "ragged": sound | {"tables": [{"title": "t", "columns": ["a"], "rows": [["1", "2"]]}]},
        "timeless": sound | {"made_by": {**sound["made_by"], "duration_seconds": None}},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "text.json").write_text("neither JSON nor TOML")
    (folder / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    (folder / "binary.json").write_bytes(b"\xff\xfe\x00{")
    (folder / "folder.json").mkdir()
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "fifo")
    os.mknod(folder / "socket", stat.S_IFSOCK | 0o644)
    for name in ("sparse.py", "sparse"):
        with (folder / name).open("wb") as file:
            file.truncate(2**38)
