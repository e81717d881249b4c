"""Studies of the second step at several lengths and sizes, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cemverify.results import envelope
from cemverify.results.numbers import shown_ratio
from cemverify.results.statistics import Ratio
from synthetic.__main__ import main
from synthetic.studies.second_step import STUDY
from synthetic.studies.second_step.scale import Point, _change, picture, read_point, sentences

PUBLISHED = Path(__file__).parents[2] / "docs" / "results" / "second-step-attention.json"


def point(tokens: int, verdict: str = "pays", replaced: str = "attention") -> Point:
    """A study of 117,696 parameters."""
    half = Ratio(0.995, 0.99, 1.0)
    return Point(replaced, "tiny", 2, 117_696, tokens, 20.0, "8 seeds", verdict, half, None)


def test_a_point_says_what_its_study_saw() -> None:
    published: Any = read_point(PUBLISHED)
    plan = STUDY.plan(published.replaced, 256, per_parameter=published.per_parameter)
    assert published.tokens == plan.recipe.tokens
    ratios = json.loads(PUBLISHED.read_text())["ratios"]
    printed = {r["baseline"]: r["mean"] for r in ratios if r["model"] == "T = 2, eta 1/2"}
    assert (published.over_one.mean, published.over_longer.mean) == (printed["T = 1"], printed["T = 1, eta 2"])


def test_the_same_studies_give_the_same_picture_which_has_the_papers_sizes() -> None:
    points = [point(667_264), point(2_669_056, "undecided", "mlp")]
    drawn = picture(points)
    assert drawn == picture(points)
    assert "the paper's 86M to 162M" in drawn
    assert all(words in drawn for words in ("CEM attention", "CEM MLPs", "tokens", "parameters"))
    assert drawn != picture(points[:1])


def test_the_page_says_where_a_second_step_pays_and_how_to_make_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "scale.md"
    assert main(["language", "scale", str(PUBLISHED), "--page", str(page)]) == 0
    text = page.read_text()
    assert f"scale {PUBLISHED} --page {page}" in text
    assert "No study decides whether a second step helps" in " ".join(text.split())
    assert (tmp_path / "scale-ratios.svg").exists()
    assert shown_ratio(read_point(PUBLISHED).over_one) in capsys.readouterr().out


def test_studies_that_decide_are_named_and_the_others_counted() -> None:
    text = " ".join(sentences([point(2_669_056), point(1, "undecided", "mlp"), point(2, "undecided")]))
    assert "a second step helps in CEM attention at 117,696 parameters and 2,669,056 tokens." in text
    assert "The other 2 studies leave it open" in text


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.994, 0.996, "0.4% to 0.6% fewer"),
        (0.994, 0.994, "0.6% fewer"),
        (1.01, 1.02, "1.0% to 2.0% more"),
        (0.99, 1.02, "between 1.0% fewer and 2.0% more"),
    ],
)
def test_a_range_of_ratios_is_told_in_one_direction_if_it_has_one(low: float, high: float, words: str) -> None:
    assert _change(low, high) == words


def test_another_file_is_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = PUBLISHED.with_name("recursion.json")
    assert main(["language", "scale", str(other)]) == 2
    assert "holds no readings of `second-step`" in capsys.readouterr().err
    assert main(["language", "scale", str(PUBLISHED), "--page", str(PUBLISHED)]) == 2
    assert "is read, and would be overwritten" in capsys.readouterr().err
    content = json.loads(PUBLISHED.read_text())
    del content["verdict"]
    damaged = tmp_path / "damaged.json"
    envelope.write(damaged, content)
    assert main(["language", "scale", str(damaged), "--page", str(tmp_path / "page.md")]) == 2
    assert "lacks what a result of kind 'readings' has" in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()
