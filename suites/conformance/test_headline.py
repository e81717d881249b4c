"""The headline of every report is the most fundamental violation, in the order of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

from cemverify import energy_layer
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging import engine
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import violations
from cemverify.conformance.listeners import files, terminal
from cemverify.conformance.properties import catalogue, select
from cemverify.results.provenance import Maker

pytest_plugins = ["pytester"]

ASKED = ("contract/attention/one-array", "descent/attention/along-steps", "gradient/attention/plain")
HEADLINE = "gradient/attention/plain"


def twice_too_large(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The layer with twice the update that is due."""
    return lambda x, h, weights, config: x + 2.0 * (attention(x, h, weights, config) - x)


doubled = Implementation({"attention": twice_too_large(reference.functions["attention"])})


@pytest.fixture(scope="module")
def finished() -> RunFinished:
    for event in engine.run(doubled, "doubled", select(ASKED), Effort(examples=12)):
        if isinstance(event, RunFinished):
            return event
    raise RuntimeError("the run did not finish")


def test_two_properties_are_violated_by_an_update_that_is_twice_too_large(finished: RunFinished) -> None:
    assert {HEADLINE, "contract/attention/one-array"} <= {r.id for r in finished.records if r.verdict == "violated"}


def test_the_terminal_shows_it_first(finished: RunFinished) -> None:
    assert re.findall(r"^VIOLATED (\S+)", terminal.report(finished, verbose=True), re.MULTILINE)[0] == HEADLINE
    assert f"smallest case found, of {HEADLINE}:" in terminal.report(finished)


def test_the_markdown_page_shows_it_first(finished: RunFinished) -> None:
    page = files.as_markdown(finished, Maker.now("test", {}, 0, "cpu"))
    assert re.findall(r"^VIOLATED (\S+)", page, re.MULTILINE)[0] == HEADLINE
    assert re.findall(r"^\| (\S+) +\| violated", page, re.MULTILINE)[0] == HEADLINE


def test_the_result_file_names_it(finished: RunFinished) -> None:
    content = files.as_json(finished, Maker.now("test", {}, 0, "cpu"))
    assert content["headline"] == HEADLINE
    assert content["properties"][0]["id"] == HEADLINE


def test_junit_lists_it_first(finished: RunFinished) -> None:
    cases = ElementTree.fromstring(files.as_junit(finished)).iter("testcase")  # noqa: S314 (our own)
    failed = [case for case in cases if case.find("failure") is not None]
    assert f"{failed[0].get('classname')}/{failed[0].get('name')}" == f"cemverify.{HEADLINE}"


def test_pytest_reports_it_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        from cemverify import implementation, parametrize_with_properties
        from cemverify.conformance.implementations import reference

        doubled = implementation(attention=lambda x, h, w, c: 2.0 * reference.attention(x, h, w, c) - x)

        @parametrize_with_properties(doubled, properties={ASKED!r}, examples=12)
        def test_attention(check): check()
        """
    )
    printed = str(pytester.runpytest("-p", "no:cacheprovider").stdout)
    assert re.findall(r"^FAILED \S+\[(\S+)\]", printed, re.MULTILINE)[0] == HEADLINE


def test_an_answer_that_differs_from_call_to_call_comes_before_all_that_follows_from_it() -> None:
    dropout = torch.nn.Dropout(0.5)  # in training mode

    def update(x: Tensor, m: Tensor) -> Tensor:
        dropped: Tensor = dropout(m - x)
        return dropped

    def refusing(x: Tensor, m: Tensor) -> Tensor:
        raise ValueError("no answer at all")

    def first(update: Callable[[Tensor, Tensor], Tensor]) -> str:
        layer = energy_layer(update=update, energy=lambda x, m: ((x - m) ** 2).sum(-1) / 2, dim=2)
        asked = select(["gradient/layer/energy", "structure/layer/determinism"])
        return violations([engine.judge_property(layer, p, Effort(examples=12)) for p in asked])[0].id

    assert first(update) == "structure/layer/determinism"
    assert first(refusing) == "gradient/layer/energy"


def test_an_accepted_violation_is_no_headline(finished: RunFinished) -> None:
    first, *rest = finished.records
    accepted = RunFinished("doubled", [replace(first, known="a ticket"), *rest], 0.0)
    assert files.as_json(accepted, Maker.now("test", {}, 0, "cpu"))["headline"] != HEADLINE


def test_the_catalogue_begins_with_what_a_layer_is_and_ends_with_how_it_fails() -> None:
    families = list(dict.fromkeys(p.family for p in catalogue()))
    assert families[0] == "gradient"
    assert families.index("gradient") < families.index("descent") < families.index("structure")
    assert families.index("structure") < families.index("rejection")
