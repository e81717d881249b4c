"""The how-to page of a study of one's own, followed to the letter: its files are written and its commands are run."""

from __future__ import annotations

from pathlib import Path

from cemverify.results import envelope
from suites.docs.blocks import blocks
from suites.kit.commands import Told
from synthetic.studies.engine.pages import write_page

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "new-study.md"


def test_a_study_of_ones_own_is_the_two_files_that_the_page_shows(here: Path, told: Told) -> None:
    files = [block for block in blocks(PAGE) if block.title]
    assert [block.title for block in files] == ["gains/rows.py", "gains/conclusion.py"]
    for block in files:
        path = here / block.title
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text)
    commands = [block.text.replace("\\\n", " ") for block in blocks(PAGE) if block.language == "bash"]
    estimate, study = (told(command.removeprefix("python -m ")).out for command in commands)
    assert "Cost of gains, mlp, at size tiny" in estimate
    assert "One gain instead of many is " in study
    page = (here / "gains.md").read_text()
    assert page.startswith("# Does the norm need a gain for each channel?\n\n**One gain instead of many is ")
    assert "one gain / a gain for each channel" in page
    assert "--page gains.md`; on a CPU" in page
    assert "--workers" not in page
    readings = envelope.read(here / "gains.json")
    assert (readings["study"], readings["replicates"]) == ("gains-mlp", "2 seeds")
    assert [(r["model"], r["baseline"]) for r in readings["ratios"]] == [("one gain", "a gain for each channel")]
    again = here / "again" / "gains.md"
    write_page(again, envelope.read(here / "out" / "gains-mlp-tiny.json"))
    assert again.read_text() == page  # of the result file alone
