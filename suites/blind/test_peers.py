"""Tests by hand call right layers right and wrong ones wrong, and the page says what their answers are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import by_hand, drawn, golden, gradients
from cemverify.results import envelope
from cemverify.start.energy_layer import mine as energy_layer
from examples.attention_numpy import attention, mine
from suites.blind import peers as asking
from suites.blind.__main__ import main
from suites.kit.source import ROOT

PAGE = ROOT / "docs" / "results" / "peers.md"


@pytest.mark.parametrize(
    "test",
    [
        *(golden.test_golden_outputs, by_hand.test_descent),
        pytest.param(drawn.test_hundred_examples_of_every_function, marks=pytest.mark.thorough),
    ],
    ids=lambda test: test.__name__,
)
def test_a_step_up_the_energy_is_called_wrong_and_one_down_is_not(test: Any) -> None:
    test(mine)
    with pytest.raises(AssertionError):
        test(replace(mine, functions={"attention": lambda x, *more: 2 * x - attention(x, *more)}))


def test_a_step_that_is_half_as_long_as_declared_is_called_wrong() -> None:
    half = replace(energy_layer, update=lambda *arguments: energy_layer.update(*arguments) / 2)
    gradients.test_energy_layer_step_is_the_gradient_of_its_energy(energy_layer)
    with pytest.raises(AssertionError):
        gradients.test_energy_layer_step_is_the_gradient_of_its_energy(half)


def test_answers_are_kept_and_nothing_is_begun_when_time_is_up(tmp_path: Path) -> None:
    layers = asking.sample(2, 1)
    assert [right for *_, right in layers].count(True) == 1
    assert asking.answer_all(["golden"], layers, tmp_path, seconds=0) == {}
    answers = asking.answer_all(["golden"], layers[:1], tmp_path, seconds=600)
    assert {answer["outcome"] for answer in answers.values()} <= {"found", "passed", "unasked"}
    assert asking.answer_all(["golden"], layers, tmp_path, seconds=0) == answers


def test_the_page_is_made_again_of_its_result_file() -> None:
    assert asking.page(envelope.read(PAGE.with_suffix(".json"))) == PAGE.read_text()


def test_the_readme_says_what_the_page_counts() -> None:
    table = envelope.tables_of(envelope.read(PAGE.with_suffix(".json")))[0]
    (_, gradients, by_hand, drawn, _, _, first) = (str(row[1]).partition(" of ")[0] for row in table.rows)
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert "Of 40 faults that others had put into layers, `cemverify check` [found " in readme
    assert (
        f"[found {first}](docs/results/peers.md) when it first met them; a careful suite by hand finds {by_hand},"
        in readme
    )
    assert f"Hypothesis by hand {drawn} and `torch.autograd.gradcheck` {gradients}." in readme


def test_an_unknown_peer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["peers", "--only", "nobody"])
    assert end.value.code == 2
    assert "choose from golden" in capsys.readouterr().err
