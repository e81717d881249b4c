"""The demonstration finds the mistake that it explains, and passes the fixed layer."""

from __future__ import annotations

import pytest

from cemverify.cli import main


def test_the_demonstration_finds_the_mistake_by_the_case_that_its_words_explain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    assert "VIOLATED gradient/attention/plain" in printed
    assert "wrong part: output projection" in printed
    assert "W_Q     [[[0.0]]]" in printed, "the words below the case say that W_Q is zero"
    assert printed.count("\n-") == printed.count("\n+") == 1, "the fix is one line"
    assert "fixed: 3 properties, 3 run: 3 hold" in printed
