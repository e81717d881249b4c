"""`cemverify init` writes correct files that can be used at once, and overwrites nothing."""

from __future__ import annotations

import configparser
import importlib
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
import yaml

from cemverify.catalogue.versions import current
from cemverify.cli import main
from cemverify.conformance.implementations.contract import kind_of, load
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.offered import applicable
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import select
from cemverify.start.writing import RECIPES, STEMS, Kind, recipe
from docs.making.parsers import parsers

pytest_plugins = ["pytester"]

FAST = (
    *("gradient/attention/plain", "gradient/mlp/plain", "gradient/layer/energy"),
    *("structure/layer/reference", "structure/attention/causality"),
)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_each_adapter_is_correct_as_it_is_written(kind: Kind) -> None:
    subject = load(f"cemverify.start.{STEMS[kind]}:mine")
    fast = [p for p in applicable(kind_of(subject), select([])) if p.id in FAST]
    properties = [p for p in fast if not p.needs & subject.not_offered.keys()]
    assert properties
    for p in properties:
        assert judge_property(subject, p, Effort(examples=20)).verdict == Verdict.HOLDS, p.id


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("service", RECIPES)
def test_three_files_are_written_that_name_each_other(
    kind: str, service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--folder", str(tmp_path), "--name", "my_layer", "--ci", service]
    assert main(["init", "--kind", kind, *where, "--no-check"]) == 0
    place = RECIPES[service]
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == sorted(
        ["my_layer.py", "test_my_layer.py", place]
    )
    assert "`cemverify check my_layer:mine`" in (tmp_path / "my_layer.py").read_text()
    assert f"cemverify check my_layer:mine --catalogue {current()}" in (tmp_path / place).read_text()
    assert f'catalogue="{current()}"' in (tmp_path / "test_my_layer.py").read_text()
    assert "cemverify check my_layer:mine" in capsys.readouterr().out


def test_nothing_is_overwritten_and_nothing_is_written_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_cem_layer.py").write_text("mine")
    assert main(["init", "--folder", str(tmp_path), "--no-check"]) == 2
    assert "test_cem_layer.py exists, and nothing is overwritten; choose another name" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["test_cem_layer.py"]


def test_a_recipe_whose_file_exists_is_printed_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tox.ini").write_text("[tox]\n")
    assert main(["init", "--folder", str(tmp_path), "--ci", "tox", "--no-check"]) == 0
    printed = capsys.readouterr().out
    assert "tox.ini exists and is left as it is; this is what to add:" in printed
    assert f"    commands = cemverify check cem_layer:mine --catalogue {current()} {{posargs}}" in printed
    assert (tmp_path / "tox.ini").read_text() == "[tox]\n"


def test_the_rules_for_agents_name_commands_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["init", "--agents", "--name", "my_layer", "--folder", str(tmp_path)]
    assert main(command) == 0
    text = (tmp_path / "AGENTS.md").read_text()
    assert "NAME" not in text
    assert len(text.splitlines()) <= 60
    commands = parsers("cemverify")
    for line in re.findall(r"^    cemverify (.*?)(?:  #.*)?$", text, re.MULTILINE):
        commands[f"cemverify {line.split()[0]}"].parse_args(shlex.split(line)[1:])
    capsys.readouterr()
    assert main(command) == 0
    assert "AGENTS.md exists and is left as it is" in capsys.readouterr().out


def test_the_recipes_are_what_their_services_read() -> None:
    github = yaml.safe_load(recipe("github"))
    assert [step.get("run") for step in github["jobs"]["check"]["steps"]][-1].startswith("cemverify check NAME:mine")
    gitlab = yaml.safe_load(recipe("gitlab"))
    assert gitlab["cemverify"]["script"][-1].startswith("cemverify check NAME:mine")
    tox = configparser.ConfigParser()
    tox.read_string(recipe("tox"))
    assert tox["testenv:cemverify"]["commands"].startswith("cemverify check NAME:mine")


@pytest.mark.slow
def test_what_is_written_runs_where_it_was_written(pytester: pytest.Pytester) -> None:
    words = ["--kind", "energy", "--name", "my_energy", "--ci", "none", "--no-check"]
    assert main(["init", *words, "--folder", str(pytester.path)]) == 0
    assert importlib.util.find_spec("my_energy") is None, "this process is left as it was"
    ended = pytester.runpytest("-p", "no:cacheprovider", "test_my_energy.py", "-k", "structure/layer/dtype")
    assert ended.parseoutcomes()["passed"] == 1


@pytest.mark.thorough
@pytest.mark.parametrize("kind", get_args(Kind))
def test_init_ends_green(kind: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--kind", kind]) == 0
    assert ", 0 violated, 0 inconclusive" in capsys.readouterr().out
