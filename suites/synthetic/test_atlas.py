"""The commands about tasks: `examine` one, and the difficulty `atlas` of all, a page of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from cemverify.results.envelope import Table, read
from synthetic import atlas
from synthetic.__main__ import main
from synthetic.gp import priors, sampling
from synthetic.gp.sampling import factorise, posterior

PAGE = Path(__file__).parent.parent.parent / "docs" / "tasks.md"
Capture = pytest.CaptureFixture[str]
SMALL = ["--train-points", "150", "--test-points", "50"]


@pytest.mark.parametrize("options", [[], ["--features", "300"]])
def test_examine_says_how_hard_a_task_is_and_that_its_oracles_agree(
    options: list[str], tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "task.json"
    assert main(["examine", "rbf + 0.1*linear", *SMALL, *options, "--output", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "agree: mean" in printed
    assert "from the prior" in printed
    assert ("finite rank, 300 random features" if options else "exact") in printed
    content = read(file)
    assert content["task"]["prior"] == "rbf(lengthscale=2) + 0.1*linear"
    assert content["agreement"]["worst"] < 1e-6
    assert content["sampler"]["accepted"]
    assert 0 < content["difficulty"]["floor"] < content["difficulty"]["linear"]


def wrong_posterior(joint: Tensor, targets: list[Tensor], noise: float) -> tuple[list[Tensor], Tensor]:
    means, variance = posterior(joint, targets, noise)
    return means, variance * 1.001


def wrong_factor(matrix: Tensor) -> tuple[Tensor, float]:
    factor, jitter = factorise(matrix)
    return factor.tril(-1) + 1.1 * factor.diagonal().diag(), jitter


@pytest.mark.parametrize(
    ("name", "wrong", "prior", "sentence"),
    [  # priors that are asked nowhere else, so not remembered
        ("posterior", wrong_posterior, "matern32(lengthscale=1.25)", "DISAGREE, by more than 1e-06"),
        ("factorise", wrong_factor, "matern32(lengthscale=1.75)", "NOT FROM THE PRIOR"),
    ],
)
def test_examine_fails_if_oracle_or_sampler_is_wrong(
    name: str, wrong: object, prior: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(sampling, name, wrong)
    assert main(["examine", prior, *SMALL]) == 1
    assert sentence in capsys.readouterr().out


def test_the_atlas_is_the_same_twice_and_writes_its_page(tmp_path: Path, capsys: Capture) -> None:
    pages = []
    for run in ("first", "second"):
        page, file = tmp_path / f"{run}.md", tmp_path / f"{run}.json"
        options = ["--prior", "linear", "matern12", "rbf", "--points", "300", "100", "--output", str(file)]
        assert main(["atlas", *options, "--markdown", str(page)]) == 0
        pages.append(page.read_text())
        verdicts = [entry["verdict"] for entry in read(file)["entries"]]
        assert verdicts == ["nothing beyond linear", "negative control", "good"]
    assert pages[0] == pages[1]
    assert "[3/3] rbf(lengthscale=2): good" in capsys.readouterr().err


def test_the_page_of_the_documentation_is_what_the_command_writes() -> None:
    page = PAGE.read_text()
    text = atlas.page(Table("", ["prior"], [])).partition("###")[0]
    assert page.startswith(text)
    for template, values in atlas.ENTRIES.items():
        for value in values:
            assert f"| {priors.canonical(template.format(value), 10)} " in page
