"""A saved counterexample repeats the violation: through the property, and through its script."""

from __future__ import annotations

import importlib
import io
import json
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cemverify import implementation
from cemverify.api import Check, UnderTest
from cemverify.cem.layers import MLPConfig, PreconditionerConfig
from cemverify.conformance.counterexamples.files import load_counterexample, save_all
from cemverify.conformance.implementations.edited import edited
from cemverify.conformance.judging import engine
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_again, judge_property
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.run import run as run_here
from cemverify.conformance.judging.verdicts import Record, Verdict, violation
from cemverify.conformance.listeners import files, terminal
from cemverify.conformance.listeners.progress import progress
from cemverify.conformance.properties import by_id, select
from cemverify.conformance.questions.cases import Case, dense_case
from cemverify.conformance.questions.saving import Packing, restored
from cemverify.conformance.questions.shrinking import smaller
from cemverify.conformance.questions.spaces import Space, scattered_case
from cemverify.results import envelope
from cemverify.results.envelope import ResultError
from cemverify.results.provenance import Maker
from reports.collect import ResultFile
from reports.page.content import page_of, render
from suites.conformance.wrong_layers import LAYERS
from suites.kit.commands import Told
from suites.kit.examples import README, README_MISTAKEN, defined
from suites.kit.judging import finished, mutant
from suites.kit.source import ROOT

MODULE = """\
from dataclasses import replace
from cemverify.power.mutants import mutants
(mutant,) = (m for m in mutants() if m.id == {id!r})
wrong = mutant.subject()
"""
QUICK = Effort(examples=20)
MAKER = Maker.now("cemverify check", {}, 0, "cpu")


def leave(folder: Path, mutant_id: str, property_id: str = "") -> tuple[Record, Path]:
    """The record of a mutant's violation and its saved case, with the module `faulty` in the same folder."""
    fault = mutant(mutant_id)
    record = judge_property(fault.subject(), by_id(property_id or fault.property), QUICK)
    (folder / "faulty.py").write_text(MODULE.format(id=mutant_id))
    (saved,) = save_all(RunFinished("faulty:wrong", [record], 0.0), folder, MAKER)
    return record, saved


def script_here(path: Path, *names: str) -> int:
    """The exit code of the script, run in this process because importing torch again would take longest."""
    importlib.invalidate_caches()
    script = path.with_suffix(".py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script.name, *names])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
    return int(str(ended.value.code))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "property_", "right"),
    [
        ("edits-its-input", "contract/mlp/inputs-unchanged", "cemverify:reference"),
        ("validates-nothing", "rejection/mlp/zero-steps", "cemverify:reference"),
        ("layer-reads-the-future", "", "sound:right"),
    ],
)
def test_a_script_fails_while_the_fault_is_there(here: Path, mutant: str, property_: str, right: str) -> None:
    _, saved = leave(here, mutant, property_)
    assert script_here(saved) == 1
    sound = "from cemverify.power.mutants.layer_base import sound_layer\nright = sound_layer()\n"
    (here / "sound.py").write_text(sound)
    assert script_here(saved, right) == 0


ALONE = """\
import runpy, shutil, sys
script, *files = sys.argv[1:]
for file in files:
    for name in [name for name in sys.modules if name == "own" or name.startswith("cemverify")]:
        del sys.modules[name]
    sys.modules["cemverify"] = None  # as where it is not installed
    sys.argv = [script]
    shutil.copy(file, "own.py")
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        print(file, "ended with", end.code or 0)
"""
HOPFIELD = (ROOT / "examples" / "energy_layer.py").read_text()
FUSED = (ROOT / "examples" / "fused_modules.py").read_text()
TWICE_THE_SQUARE = edited(HOPFIELD, ("(x * x).sum(-1) / 2", "(x * x).sum(-1)"))
DOORS = {
    "functions": (README, README_MISTAKEN, "gradient/attention/plain"),
    "modules": (FUSED, edited(FUSED, ("gate, up = self", "up, gate = self")), "gradient/mlp/silu"),
    "energy layer": (HOPFIELD, TWICE_THE_SQUARE, "gradient/layer/energy"),
}


@pytest.mark.parametrize(("right", "wrong", "property_"), DOORS.values(), ids=DOORS)
def test_a_script_needs_no_cemverify_as_its_layer_does(here: Path, right: str, wrong: str, property_: str) -> None:
    record = judge_property(defined(wrong), by_id(property_), QUICK)
    (saved,) = save_all(RunFinished("own:mine", [record], 0.0), here, MAKER)
    (here / "alone.py").write_text(ALONE)
    texts = {"wrong": wrong, "right": right, "beyond": f"{right}\nfrom cemverify import reference\n"}
    for name, text in texts.items():
        (here / name).write_text(text)
    command = [sys.executable, "-B", "alone.py", str(saved.with_suffix(".py")), *texts]
    done = subprocess.run(command, capture_output=True, text=True)
    told = re.split(r"^\w+ ended with (\d)$", done.stdout, flags=re.MULTILINE)
    assert told[1::2] == ["1", "0", "2"], done.stdout + done.stderr
    for words, printed in zip((record.claim, "the fault is gone", "install cemverify"), told[::2], strict=False):
        assert words in printed


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_script_without_layer_or_data_says_so(suffix: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, saved = leave(here, "mlp-ascent")
    assert script_here(saved, "nowhere:nothing") == 2
    assert "cannot be loaded" in "".join(capsys.readouterr())
    saved.with_suffix(suffix).write_text("{}")
    for words in ("is damaged", f"{suffix}: No such file"):
        assert script_here(saved) == 2
        (sentence,) = "".join(capsys.readouterr()).splitlines()
        assert words in sentence
        saved.with_suffix(suffix).unlink(missing_ok=True)


def test_replay_judges_the_saved_case_again(here: Path, told: Told) -> None:
    record, saved = leave(here, "mlp-ascent")
    assert str(record.reason) in told(f"cemverify replay {saved} --json r.json", 1).out
    assert envelope.read(Path("r.json"))["diagnosis"]["again"] == f"cemverify replay {saved} --json r.json"
    told(f"cemverify replay {saved} --implementation reference")
    told(f"cemverify replay {saved} --implementation nowhere:nothing", 2)


def test_a_saved_case_that_was_edited_blames_neither_the_implementation_nor_the_suite() -> None:
    case = scattered_case(Space("attention"), 3)
    wrong, property_ = implementation(attention=lambda x, h, w, c: x), by_id("gradient/attention/plain")
    assert judge_again(wrong, property_, case, torch.float64, "cpu").verdict == Verdict.VIOLATED
    for other in ({"x": case.x[..., :-1]}, {"h": torch.cat((case.h, case.h), 1)}, {"config": MLPConfig(4, 8)}):
        record = judge_again(wrong, property_, replace(case, **other), torch.float64, "cpu")
        assert record.verdict == Verdict.INCONCLUSIVE, (other, record)
        assert "no question of this property" in str(record.reason)


def test_no_class_but_ours_is_made_and_another_file_than_a_saved_one_is_named_itself(tmp_path: Path) -> None:
    _, saved = leave(tmp_path, "mlp-ascent")
    content = json.loads(saved.read_text())
    content["asked"]["question"] = {"dataclass": "os:PathLike", "fields": {}}
    saved.write_text(json.dumps(content))
    with pytest.raises(ResultError):
        load_counterexample(saved)
    (tmp_path / "mylayer.py").touch()
    with pytest.raises(ResultError, match=r"mylayer\.py is no saved counterexample: mylayer\.json is not beside it"):
        load_counterexample(tmp_path / "mylayer.py")


@given(seed=st.integers(0, 1000), strided=st.booleans(), shared=st.booleans())
def test_a_question_survives_packing(seed: int, strided: bool, shared: bool) -> None:
    case = dense_case(MLPConfig(3, 2, preconditioner=PreconditionerConfig("low-rank", rank=2)), 2, 3, seed)
    x = case.x.movedim(0, -1).contiguous().movedim(-1, 0) if strided else case.x
    case = Case(case.config, x, x if shared else case.h, case.weights)
    packing = Packing()
    back = restored(json.loads(json.dumps(packing.tree(case))), packing.arrays)
    assert back.config == case.config
    assert torch.equal(back.x, case.x)
    assert back.x.stride() == case.x.stride()
    assert (back.x is back.h) == shared
    assert all(torch.equal(back.weights[name], w) for name, w in case.weights.items())


def test_numbers_shrink_to_fewer_digits_as_long_as_that_fails() -> None:
    case = dense_case(MLPConfig(1, 1), 1, 1, 0)
    space = Space("mlp")

    def fails(smaller_case: Case) -> bool:
        return float(smaller_case.weights["V"]) > 0.6 and float(smaller_case.x) > 0.04

    case = Case(case.config, torch.full((1, 1, 1), 0.04567), case.h, {**case.weights, "V": torch.tensor([[0.7312]])})
    while (failing := next((c for c in smaller(case, space) if fails(c)), None)) is not None:
        case = failing
    assert float(case.weights["V"]) == 1.0
    assert float(case.x) == 1.0 or np.isclose(float(case.x), 0.05)
    assert float(case.h) == float(case.weights["W"]) == 0.0


def test_the_worst_example_stands_beside_the_smallest() -> None:
    fault = mutant("tanh-for-erf")
    record = judge_property(fault.subject(), by_id(fault.property), QUICK)
    assert (record.worst or {})["margin"] >= (record.margin or 0)


EFFORT = Effort(examples=6)


@pytest.mark.parametrize("name", LAYERS)
def test_a_violation_is_told_with_all_that_the_layer_was_given(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, id_, given = LAYERS[name]
    with progress(io.StringIO()) as listener:
        events = list(run_here(layer, f"suites.conformance.wrong_layers:{name}", select([id_]), EFFORT))
        for event in events:
            listener(event)
    run = finished(events)
    (record,) = run.records
    assert record.verdict == Verdict.VIOLATED, record.reason
    lines = violation(record).splitlines()
    assert given <= {line.split()[0] for line in lines if line.startswith("    ")}
    for width in (None, 40, 80, 200):
        assert "violated" in terminal.report(run, width=width)
    envelope.write(tmp_path / "result.json", files.as_json(run, MAKER))
    content = envelope.read(tmp_path / "result.json")
    assert f"VIOLATED {record.id}" in files.as_markdown(run, MAKER)
    assert len(list(ElementTree.fromstring(files.as_junit(run)).iter("failure"))) == 1  # noqa: S314 (our own)
    page = page_of([ResultFile(Path("a.json"), content, "a test")])
    assert given <= {fact for fact, _ in page["groups"][0]["members"][0]["facts"]}
    assert record.id in render(page)
    monkeypatch.setattr("cemverify.api.judge_property", lambda *_: record)
    with pytest.raises(pytest.fail.Exception):
        Check(by_id(id_), UnderTest(layer, EFFORT))()
    (path,) = save_all(run, tmp_path, MAKER)
    saved = load_counterexample(path)
    again = engine.judge_again(layer, by_id(saved.property), saved.question, saved.dtype, saved.device)
    assert again.reason == saved.reason
    assert of_the_case(again) == of_the_case(record)


def of_the_case(record: Record) -> list[str]:
    """A violation reduced to its case: a replay locates no part, and tests one example."""
    lines = violation(record).splitlines()[3:]
    return [line for line in lines if not line.startswith(("  wrong part", "  worst example"))]
