"""What is asked follows from the seed, and from nothing that happens to be imported."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import hypothesis
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st

from cemverify.conformance.questions.hypothesis_draws import from_the_seed_alone

REMARKABLE = 4711


def drawn() -> list[int]:
    """Numbers that Hypothesis draws from a fixed seed."""
    numbers: list[int] = []

    @hypothesis.seed(0)
    @settings(max_examples=300, database=None, deadline=None, phases=[Phase.generate])
    @hypothesis.given(st.integers(REMARKABLE - 99, REMARKABLE + 99))
    def test(n: int) -> None:
        numbers.append(n)

    test()
    return numbers


@pytest.fixture
def constant_in_a_local_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "somebody.py"
    path.write_text(f"REMARKABLE = {REMARKABLE}\n")
    spec = importlib.util.spec_from_file_location("somebody", path)
    assert spec is not None
    monkeypatch.setitem(sys.modules, "somebody", importlib.util.module_from_spec(spec))


@pytest.mark.usefixtures("constant_in_a_local_module")
def test_hypothesis_itself_draws_the_constants_of_local_modules() -> None:
    assert REMARKABLE in drawn(), (
        "if this fails, cemverify.conformance.questions.hypothesis_draws is no longer needed"
    )


def test_the_draws_are_the_same_whatever_is_imported(request: pytest.FixtureRequest) -> None:
    with from_the_seed_alone():
        before = drawn()
        request.getfixturevalue("constant_in_a_local_module")
        after = drawn()
    assert before == after
