"""The how-to of a new property of the catalogue, followed literally in a copy of the source."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from suites.docs.blocks import blocks

ROOT = Path(__file__).parents[2]
PAGE = {block.title: block.text for block in blocks(ROOT / "docs" / "how-to" / "new-property.md")}
FAMILY = Path("cemverify/conformance/properties/structure.py")
MUTANTS = Path("cemverify/power/mutants/mlp.py")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The source with the page's three blocks where the page says that they stand."""
    leave_out = shutil.ignore_patterns("__pycache__")
    for folder in ("cemverify", "suites/power", "suites/kit"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=leave_out)
    for name in ("suites/__init__.py", "conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    family = tmp_path / FAMILY
    above, start, rest = family.read_text().partition("def properties() -> Iterator[Property]:\n")
    end = re.search(r"\n\n\n(?=\S)", rest)
    assert start
    assert end is not None
    body, below = rest[: end.start()], rest[end.start() :]
    family.write_text(f"{above}{PAGE['check']}\n\n{start}{body}\n{PAGE['record'].rstrip()}{below}")
    mutants = tmp_path / MUTANTS
    mutants.write_text(f"{mutants.read_text()}\n\n{PAGE['mutant']}")
    return tmp_path


# Runs commands as a shell would, but in one process: each import of torch takes seconds.
DRIVER = """
import runpy, shlex, sys
import pytest
from cemverify.cli import main
for line in sys.argv[1:]:
    program, *words = shlex.split(line)
    if program == "python":
        sys.argv = words[1:]
        try:
            runpy.run_module(words[1], run_name="__main__")
        except SystemExit as end:
            code = end.code
    else:
        code = main(words) if program == "cemverify" else pytest.main(["-p", "no:cacheprovider", *words])
    assert not code, (line, code)
"""


@pytest.mark.slow
def test_the_steps_of_the_page_add_a_property_and_a_mutant_that_dies_of_it(copy: Path) -> None:
    listing = copy / "cemverify" / "catalogue" / "listing.jsonl"
    before = listing.read_text().splitlines()
    commands = [*PAGE["list"].splitlines(), *PAGE["try"].splitlines()]
    assert [shlex.split(command)[0] for command in commands] == ["python", "cemverify", "cemverify", "pytest"]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *commands],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    after = listing.read_text().splitlines()
    (added,) = set(after) - set(before)
    assert '"id": "structure/mlp/idle-unit"' in added
    assert set(before) < set(after)
    assert " ".join(done.stdout.split()).count("1 run: 1 hold") == 2
    assert re.search(r"\d+ passed", done.stdout)
