"""Whatever can be declared can be reported: each kind of wrong layer goes through everything that tells of a run."""

from __future__ import annotations

import io
import json
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from cemverify.api import Check
from cemverify.conformance.counterexamples.files import load_counterexample, save_all
from cemverify.conformance.judging import engine
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict, violation
from cemverify.conformance.listeners import files, terminal
from cemverify.conformance.listeners.progress import progress
from cemverify.conformance.properties import by_id, select
from cemverify.results.provenance import Maker
from reports.collect import ResultFile
from reports.page.content import page_of, render
from suites.conformance.wrong_layers import LAYERS
from suites.kit.judging import finished

EFFORT = Effort(examples=6)
MAKER = Maker.now("test", {}, 0, "cpu")


SCHEMA = json.loads((resources.files("cemverify.results") / "result.schema.json").read_text())


def judge(name: str) -> RunFinished:
    layer, ids = LAYERS[name]
    with progress(io.StringIO()) as listener:
        events = list(engine.run(layer, f"suites.conformance.wrong_layers:{name}", select(ids), EFFORT))
        for event in events:
            listener(event)
    return finished(events)


def names_of_arrays(name: str) -> set[str]:
    """What the layer is given, by the names of its declaration."""
    layer, _ = LAYERS[name]
    if not hasattr(layer, "state"):
        return {"h"}
    noise = {f"noise.{key}" for key in layer.state} if layer.step.noise else set()
    return {*layer.state, *layer.memories, *noise, *({"mask"} if layer.masked else ())}


@pytest.mark.parametrize("name", LAYERS)
def test_whatever_was_declared_a_violation_is_told_with_all_that_the_layer_was_given(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, (id_,) = LAYERS[name]
    run = judge(name)
    (record,) = run.records
    assert record.verdict == Verdict.VIOLATED, record.reason
    lines = violation(record).splitlines()
    assert names_of_arrays(name) <= {line.split()[0] for line in lines if line.startswith("    ")}
    for width in (None, 40, 80, 200):
        assert "violated" in terminal.report(run, width=width)
    content = json.loads(json.dumps(files.as_json(run, MAKER)))
    jsonschema.validate(content, SCHEMA)
    assert f"VIOLATED {record.id}" in files.as_markdown(run, MAKER)
    assert len(list(ElementTree.fromstring(files.as_junit(run)).iter("failure"))) == 1  # noqa: S314 (our own)
    page = page_of([ResultFile(Path("a.json"), content, "a test")])
    assert names_of_arrays(name) <= {fact for fact, _ in page.violations[0].facts}
    assert record.id in render(page)
    monkeypatch.setattr("cemverify.api.judge_property", lambda *_: record)
    with pytest.raises(pytest.fail.Exception):
        Check(layer, by_id(id_), EFFORT)()
    (path,) = save_all(run, tmp_path, MAKER)
    saved = load_counterexample(path)
    again = engine.judge_again(layer, by_id(saved.property), saved.question, saved.dtype, saved.device)
    assert again.reason == saved.reason
    assert of_the_case(again) == of_the_case(record)


def of_the_case(record: Record) -> list[str]:
    """What a violation says of its case: a replay looks for no part, and has seen one example."""
    lines = violation(record).splitlines()[3:]
    return [line for line in lines if not line.startswith(("  wrong part", "  worst example"))]
