"""The action and the recipes of docs/ci.md, run as they are on an implementation with one known fault."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cemverify.conformance.gate.known_violations import parse_known
from cemverify.results import envelope
from suites.kit.commands import Told
from suites.kit.examples import UNTIED, known
from suites.kit.source import ROOT

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: dict[str, dict[str, Any]] = {
    step["name"].split()[0]: step for step in ACTION["runs"]["steps"] if "run" in step
}
GUIDE = (ROOT / "docs" / "ci.md").read_text()

pytest_plugins = ["pytester"]

# of the untied layer the first holds, the second is violated
PROPERTIES = "contract/attention/shape-and-dtype gradient/attention/plain"
# comes before the real python on the PATH: records calls of pip, and passes all else to the real one
PYTHON = f"""#!/bin/bash
if [ "$1 $2" = "-m pip" ]; then shift 2; printf '%s|' "$@" >> "$PIP_LOG"; echo >> "$PIP_LOG"; exit 0; fi
exec {shlex.quote(sys.executable)} "$@"
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a checkout in `work`, where the test runs and from which it imports."""
    package = tmp_path / "work" / "mypkg"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "cem.py").write_text(UNTIED)
    (tmp_path / "work" / "known.toml").write_text(known("gradient/attention/plain", "update = *"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(PYTHON)
    (tmp_path / "bin" / "python").chmod(0o755)
    (tmp_path / "runner").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.syspath_prepend(tmp_path / "work")
    return tmp_path


def bash(script: str, workplace: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a script as a CI runner would."""
    there = {
        **os.environ,
        "PATH": f"{workplace / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PIP_LOG": str(workplace / "pip"),
        "GITHUB_ACTION_PATH": "/the/action",
        "GITHUB_OUTPUT": str(workplace / "output"),
        "GITHUB_STEP_SUMMARY": str(workplace / "summary"),
        "RUNNER_TEMP": str(workplace / "runner"),
        **environment,
    }
    command = ["/bin/bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=workplace / "work", env=there, capture_output=True, text=True)


def inputs(**values: str) -> dict[str, str]:
    """The environment of the checking step: the action's defaults, updated with what is given."""
    filled = {name: spec.get("default", "") for name, spec in ACTION["inputs"].items()} | values
    names = {key: re.fullmatch(r"\$\{\{ inputs\.(\S+) \}\}", text) for key, text in STEPS["Check"]["env"].items()}
    return {key: filled[match[1]] for key, match in names.items() if match}


def test_the_action_uses_every_input_and_offers_what_its_steps_put_out() -> None:
    assert set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text())) == set(ACTION["inputs"])
    assert ACTION["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" for step in STEPS.values())
    assert [name for name, spec in ACTION["inputs"].items() if spec.get("required")] == ["implementation"]
    for name, spec in ACTION["outputs"].items():
        assert spec["value"] == f"${{{{ steps.{STEPS['Check']['id']}.outputs.{name} }}}}"
        assert f"{name}=" in STEPS["Check"]["run"]
    assert set(inputs(implementation="i")) == set(STEPS["Check"]["env"])
    assert all("${{" not in step["run"] for step in STEPS.values()), "no input is pasted into a script"


@pytest.mark.parametrize(
    ("install", "installed"),
    [("", ["install|/the/action|"]), (". 'a b>=1'", ["install|/the/action|", "install|.|a b>=1|"])],
)
def test_the_action_installs_itself_and_what_is_asked(workplace: Path, install: str, installed: list[str]) -> None:
    done = bash(STEPS["Install"]["run"], workplace, INSTALL=install)
    assert done.returncode == 0, done.stderr
    assert (workplace / "pip").read_text().splitlines() == installed


@pytest.mark.slow
def test_the_action_passes_on_known_violations_and_says_so_everywhere(workplace: Path, told: Told) -> None:
    told(f"cemverify check mypkg.cem:mine {FEW} --json before.json", 1)  # without the known violations it is new
    given = {"implementation": "mypkg.cem:mine", "properties": PROPERTIES.replace(" ", "\n"), "examples": "6"}
    given |= {"known": "known.toml", "baseline": "before.json", "on-regression": "fail"}
    given |= {"extra-args": "--workers 1 --timeout '30'"}
    done = bash(STEPS["Check"]["run"], workplace, **inputs(**given))
    assert done.returncode == 0, done.stderr
    assert "nothing got worse" in done.stdout
    put_out = dict(line.split("=", 1) for line in (workplace / "output").read_text().splitlines())
    assert [put_out[key] for key in ("violated", "known", "regressions")] == ["1", "1", "0"]
    assert envelope.read(Path(put_out["result"]))["made_by"]["configuration"]["timeout"] == 30
    assert "## Known violations" in (workplace / "summary").read_text()
    assert Path(put_out["result"]).with_suffix(".xml").is_file()


def test_the_action_fails_without_a_result_where_nothing_could_be_judged(workplace: Path) -> None:
    (workplace / "bin" / "python").write_text("#!/bin/bash\nexit 2\n")  # like `check` in that case
    done = bash(STEPS["Check"]["run"], workplace, **inputs(implementation="mypkg.cem:mine", properties="nosuch"))
    assert done.returncode == 2
    assert not (workplace / "output").exists()


def recipe(heading: str) -> str:
    """The code block under a heading of the guide."""
    section = GUIDE.split(f"\n## {heading}\n", 1)[1].split("\n## ")[0]
    block = re.search(r"```\w+\n(.*?)```", section, re.DOTALL)
    assert block, heading
    return block[1]


FEW = f"--properties {PROPERTIES} --examples 6 --workers 1"


def test_the_github_recipe_gives_inputs_that_the_action_has_and_the_example_is_a_file_of_known_violations() -> None:
    steps = yaml.safe_load(recipe("GitHub"))["jobs"]["cem"]["steps"]
    (ours,) = (step for step in steps if "cemverify" in step["uses"])
    assert set(ours["with"]) <= set(ACTION["inputs"])
    assert set(re.findall(r"outputs\.(\w+)", recipe("GitHub"))) <= set(ACTION["outputs"])
    assert [e.implementation for e in parse_known(recipe("Known violations"), "docs/ci.md")] == ["mypkg.cem:mine"]


@pytest.mark.slow
@pytest.mark.usefixtures("workplace")
def test_the_commands_of_gitlab_and_tox_pass_and_write_what_is_collected(told: Told) -> None:
    job = yaml.safe_load(recipe("GitLab"))["cem"]
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(recipe("tox"))
    command = parser["testenv:cem"]["commands"].replace("{posargs}", "").replace("{env_tmp_dir}", ".")
    for line in (job["script"][-1], command):
        told(f"{line.strip().removeprefix('python -m ')} {FEW}")
    for file in (*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]):
        assert Path(file).is_file()
    assert "1 violated (1 known)" in Path("cem.md").read_text()


@pytest.mark.slow
def test_the_pytest_recipe_runs(pytester: pytest.Pytester, workplace: Path) -> None:
    narrowed = recipe("pytest").replace("examples=60", f"examples=6, properties={PROPERTIES.split()}")
    (workplace / "work" / "test_cem.py").write_text(narrowed)
    done = pytester.runpytest("-q", "-rx", "-p", "no:cacheprovider", "--rootdir", ".", "test_cem.py")
    done.stdout.fnmatch_lines(["*known violation, accepted: because*", "*1 passed, 1 xfailed*"])
