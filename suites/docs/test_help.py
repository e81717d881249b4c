"""The help of every command fits the terminal."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from cemverify.console.parsing import Help
from docs.making.parsers import PROGRAMS, parsers

ROOT = Path(__file__).parents[2]
EVERY = {words: parser for program in PROGRAMS for words, parser in parsers(program).items()}


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("words", EVERY)
def test_no_line_of_a_help_is_wider_than_the_terminal(
    words: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert max(map(len, EVERY[words].format_help().splitlines())) <= width


@pytest.mark.parametrize("page", ["README.md", "docs/ci.md", "docs/stability.md", "cemverify check --help"])
def test_what_is_said_of_a_green_exit_code_speaks_of_what_was_asked_alone(page: str) -> None:
    text = EVERY["cemverify check"].format_help() if page.endswith("--help") else (ROOT / page).read_text()
    match = re.search(r"0 (?:if )?all (?:enforced )?properties(.{20})|0 if every property", " ".join(text.split()))
    assert match is not None
    assert match[1] == " that were asked hol"


def test_paragraphs_are_wrapped_between_words_and_examples_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = "One sentence that is longer than the\nterminal is wide.\n\nexamples:\n"
    text += "  do this          and why, which is long\n  a b\n"
    parser = argparse.ArgumentParser("p", description=text, formatter_class=Help, add_help=False)
    assert parser.format_help().splitlines()[2:] == [
        "One sentence that is longer than the",
        "terminal is wide.",
        "",
        "examples:",
        "  do this",
        "      and why, which is long",
        "  a b",
    ]
