"""Questions depend on the seed, and not on what happens to be imported."""

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


def test_the_draws_are_the_same_whatever_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with from_the_seed_alone():
        before = drawn()
        path = tmp_path / "somebody.py"
        path.write_text(f"REMARKABLE = {REMARKABLE}\n")
        spec = importlib.util.spec_from_file_location("somebody", path)
        assert spec is not None
        monkeypatch.setitem(sys.modules, "somebody", importlib.util.module_from_spec(spec))
        assert drawn() == before
    assert REMARKABLE in drawn(), "Hypothesis draws no constants of local modules: hypothesis_draws is not needed"
