"""`cemverify init` writes correct files, ready to use, and overwrites nothing; `cemverify demo` works."""

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
from cemverify.conformance.implementations.contract import kind_of, load
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.offered import applicable
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import select
from cemverify.start.writing import RECIPES, STEMS, Kind, recipe
from docs.making.parsers import parsers
from suites.kit.commands import Told

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
def test_three_files_are_written_that_name_each_other(kind: str, service: str, here: Path, told: Told) -> None:
    printed = told(f"cemverify init --kind {kind} --name my_layer --ci {service} --no-check").out
    assert "cemverify check my_layer:mine" in printed
    place = RECIPES[service]
    written = {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()}
    assert written == {"my_layer.py", "test_my_layer.py", place}
    assert "`cemverify check my_layer:mine`" in (here / "my_layer.py").read_text()
    assert f"cemverify check my_layer:mine --catalogue {current()}" in (here / place).read_text()
    assert f'catalogue="{current()}"' in (here / "test_my_layer.py").read_text()


def test_nothing_is_overwritten_and_a_recipe_whose_file_exists_is_printed_instead(tmp_path: Path, told: Told) -> None:
    (tmp_path / "test_cem_layer.py").write_text("mine")
    refusal = told(f"cemverify init --folder {tmp_path} --no-check", 2).err
    assert "test_cem_layer.py exists, and nothing is overwritten; choose another name" in refusal
    assert [p.name for p in tmp_path.iterdir()] == ["test_cem_layer.py"]
    (tmp_path / "test_cem_layer.py").unlink()
    (tmp_path / "tox.ini").write_text("[tox]\n")
    printed = told(f"cemverify init --folder {tmp_path} --ci tox --no-check").out
    assert "tox.ini exists and is left as it is; this is what to add:" in printed
    assert f"    commands = cemverify check cem_layer:mine --catalogue {current()} {{posargs}}" in printed
    assert (tmp_path / "tox.ini").read_text() == "[tox]\n"


def test_an_adapter_that_is_there_is_kept_and_gets_tests_and_a_recipe(here: Path, told: Told) -> None:
    (here / "my_adapter.py").write_text("layer = 1\n")
    printed = told("cemverify init --name my_adapter:layer --ci tox --no-check").out
    assert "my_adapter.py exists and is kept as it is" in printed
    assert (here / "my_adapter.py").read_text() == "layer = 1\n"
    assert 'parametrize_with_properties("my_adapter:layer"' in (here / "test_my_adapter.py").read_text()
    assert "cemverify check my_adapter:layer --catalogue" in (here / "tox.ini").read_text()


def test_the_rules_for_agents_name_commands_that_there_are(tmp_path: Path, told: Told) -> None:
    command = f"cemverify init --agents --name my_layer --folder {tmp_path}"
    told(command)
    text = (tmp_path / "AGENTS.md").read_text()
    assert "NAME" not in text
    assert len({line.index("  # ") for line in text.splitlines() if "  # " in line}) == 1, "comments in one column"
    assert len(text.splitlines()) <= 60
    commands = parsers("cemverify")
    for line in re.findall(r"^    cemverify (.*?)(?:  #.*)?$", text, re.MULTILINE):
        commands[f"cemverify {line.split()[0]}"].parse_args(shlex.split(line)[1:])
    assert "AGENTS.md exists and is left as it is" in told(command).out
    told(f"cemverify init --agents --name package.layer:mine --folder {tmp_path / 'fresh'}")
    assert "cemverify check package.layer:mine" in (tmp_path / "fresh" / "AGENTS.md").read_text()


def test_a_layer_in_a_package_is_told_how_to_get_its_tests(here: Path, told: Told) -> None:
    refused = told("cemverify init --name package.layer:mine", 2).err
    assert "package.layer is in a package" in refused
    assert "--folder package --name layer:mine" in refused


def test_the_recipes_are_what_their_services_read() -> None:
    tox = configparser.ConfigParser()
    tox.read_string(recipe("tox"))
    lines = [
        yaml.safe_load(recipe("github"))["jobs"]["check"]["steps"][-1]["run"],
        yaml.safe_load(recipe("gitlab"))["cemverify"]["script"][-1],
        tox["testenv:cemverify"]["commands"],
    ]
    assert [line for line in lines if not line.startswith("cemverify check NAME:mine")] == []


@pytest.mark.slow
def test_what_is_written_runs_where_it_was_written(pytester: pytest.Pytester, told: Told) -> None:
    told(f"cemverify init --kind energy --name my_energy --ci none --no-check --folder {pytester.path}")
    assert importlib.util.find_spec("my_energy") is None, "this process is left as it was"
    ended = pytester.runpytest("-p", "no:cacheprovider", "test_my_energy.py", "-k", "structure/layer/dtype")
    assert ended.parseoutcomes()["passed"] == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kind", get_args(Kind))
def test_init_ends_green(kind: str, told: Told) -> None:
    assert ", 0 violated, 0 inconclusive" in told(f"cemverify init --kind {kind}").out


def test_the_demonstration_finds_the_mistake_by_the_case_that_its_words_explain(told: Told) -> None:
    printed = told("cemverify demo").out
    assert "VIOLATED gradient/attention/plain" in printed
    assert "wrong part: output projection" in printed
    assert "W_Q     [[[0.0]]]" in printed, "the words below the case say that W_Q is zero"
    assert printed.count("\n-") == printed.count("\n+") == 1, "the fix is one line"
    assert "fixed: 3 properties, 3 run: 3 hold" in printed
