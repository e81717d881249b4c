"""What the README shows is what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reports.__main__ import main

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "docs" / "results" / "recursion.json"


def test_the_table_in_the_readme_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", str(STUDY), "--format", "markdown"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert "\n".join(rows) in (ROOT / "README.md").read_text()


def test_the_picture_in_the_readme_shows_the_study_of_today(tmp_path: Path) -> None:
    """Its data is compared: matplotlib's next release may draw the same otherwise."""
    assert main(["pictures", str(STUDY), "--output", str(tmp_path)]) == 0
    drawn = tmp_path / "recursion-ratios.csv"
    published = ROOT / "docs" / "pictures" / drawn.name
    assert drawn.read_text() == published.read_text()
    assert re.search(r"!\[[^\]]{40,}\]\(docs/pictures/recursion-ratios\.svg\)", (ROOT / "README.md").read_text())


def test_the_page_on_reports_names_every_command() -> None:
    from reports.__main__ import COMMANDS

    text = (ROOT / "docs" / "reports.md").read_text()
    assert [name for name in COMMANDS if f"| `{name}` |" not in text] == []
