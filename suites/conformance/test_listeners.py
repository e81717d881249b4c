"""Whatever can be declared can be reported: each kind of wrong layer goes through everything that tells of a run."""

from __future__ import annotations

import io
import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from cemverify.api import Check
from cemverify.conformance.counterexamples.files import load_counterexample, save_all
from cemverify.conformance.judging import engine
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.telling import violation
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.listeners import files, terminal
from cemverify.conformance.listeners.progress import progress
from cemverify.conformance.properties import by_id, select
from cemverify.results.provenance import Maker
from reports.collect import ResultFile
from reports.page.content import page_of, render
from suites.conformance.wrong_layers import LAYERS

EFFORT = Effort(examples=6)
MAKER = Maker.now("test", {}, 0, "cpu")


@cache
def schema() -> Any:
    return json.loads((resources.files("cemverify.results") / "result.schema.json").read_text())


@cache
def finished(name: str) -> RunFinished:
    layer, asked = LAYERS[name]
    with progress(io.StringIO()) as listener:
        for event in engine.run(layer, f"suites.conformance.wrong_layers:{name}", select(asked), EFFORT):
            listener(event)
            if isinstance(event, RunFinished):
                return event
    raise AssertionError("the run did not finish")


def violated(name: str) -> Record:
    (record,) = finished(name).records
    assert record.verdict == Verdict.VIOLATED, record.reason
    return record


def names_of_arrays(name: str) -> set[str]:
    """What the layer is given, by the names of its declaration."""
    layer, _ = LAYERS[name]
    if not hasattr(layer, "state"):
        return {"h"}
    noise = {f"noise.{key}" for key in layer.state} if layer.step.noise else set()
    return {*layer.state, *layer.memories, *noise, *({"mask"} if layer.masked else ())}


every_kind = pytest.mark.parametrize("name", LAYERS)


@every_kind
def test_a_violation_shows_everything_that_the_layer_was_given(name: str) -> None:
    lines = violation(violated(name)).splitlines()
    shown = {line.split()[0] for line in lines if line.startswith("    ")}
    assert names_of_arrays(name) <= shown


@every_kind
def test_the_terminal_tells_of_it_at_every_width(name: str) -> None:
    for width in (None, 40, 80, 200):
        assert "violated" in terminal.report(finished(name), width=width)


@every_kind
def test_json_markdown_and_junit_tell_of_it(name: str) -> None:
    content = files.as_json(finished(name), MAKER)
    jsonschema.validate(json.loads(json.dumps(content)), schema())
    assert f"VIOLATED {violated(name).id}" in files.as_markdown(finished(name), MAKER)
    failures = list(ElementTree.fromstring(files.as_junit(finished(name))).iter("failure"))  # noqa: S314 (our own)
    assert len(failures) == 1


@every_kind
def test_the_page_shows_everything_that_the_layer_was_given(name: str) -> None:
    content: Any = json.loads(json.dumps(files.as_json(finished(name), MAKER)))
    page = page_of([ResultFile(Path("a.json"), content, "a test")])
    assert names_of_arrays(name) <= {fact for fact, _ in page.violations[0].facts}
    assert violated(name).id in render(page)


@every_kind
def test_pytest_fails_with_it(name: str) -> None:
    layer, (asked,) = LAYERS[name]
    with pytest.raises(pytest.fail.Exception):
        Check(layer, by_id(asked), EFFORT)()


@every_kind
def test_it_is_saved_and_judged_again(name: str, tmp_path: Path) -> None:
    (path,) = save_all(finished(name), tmp_path, MAKER)
    saved = load_counterexample(path)
    record = engine.judge_again(LAYERS[name][0], by_id(saved.property), saved.question, saved.dtype, saved.device)
    assert record.reason == saved.reason
    assert _of_the_case(record) == _of_the_case(violated(name))


def _of_the_case(record: Record) -> list[str]:
    """What a violation says of its case: a replay looks for no part, and has seen one example."""
    lines = violation(record).splitlines()[3:]
    return [line for line in lines if not line.startswith(("  wrong part", "  worst example"))]
