"""Writes an adapter, its tests and a CI recipe into somebody's folder, and overwrites nothing."""

from __future__ import annotations

import importlib.util
import keyword
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from cemverify.catalogue import versions
from cemverify.console.errors import UsageError
from cemverify.processes.targets import put

Kind = Literal["cem", "energy", "module", "online"]

# The file of this package that each kind starts from.
STEMS: Mapping[Kind, str] = {
    "cem": "cem_layer",
    "energy": "energy_layer",
    "module": "module_layer",
    "online": "online_layer",
}

# The services with a recipe for CI, and where each looks for it. The recipes stand beside this file, with NAME for
# the module of the implementation and CATALOGUE for the version of the catalogue that is enforced.
RECIPES: Mapping[str, str] = {
    "github": ".github/workflows/cemverify.yml",
    "gitlab": ".gitlab-ci.yml",
    "tox": "tox.ini",
}

# Of an adapter: its tests have a longer one.
LONGEST_NAME = 100

TESTS = '''\
"""One test for each property of NAME.py: `pytest test_NAME.py`."""

from cemverify import parametrize_with_properties


@parametrize_with_properties("NAME:mine", catalogue="CATALOGUE")
def test_NAME(check):
    check()
'''


@dataclass(frozen=True)
class FilesPlan:
    """What is to be written."""

    name: str  # of the adapter's module
    files: Mapping[Path, str]  # their text, by path
    # what was to go into a file that exists already, by its path: somebody has to add it by hand
    left: Mapping[Path, str]


def plan(kind: Kind, folder: Path, name: str | None = None, service: str | None = None) -> FilesPlan:
    """Decides what is written, without writing.

    Args:
        kind: what the adapter is for. folder: where it goes. name: of the adapter's module; by kind if None.
        service: a key of RECIPES; None writes no recipe.
    """
    stem = STEMS[kind]
    name = stem if name is None else name
    if len(name) > LONGEST_NAME:
        raise UsageError(f"a name of {len(name)} characters is too long; use at most {LONGEST_NAME}")
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        raise UsageError(f"{name!r} cannot name a Python module; use letters, digits and _, as in --name my_layer")
    files = {
        folder / f"{name}.py": _text_of(f"{stem}.py").replace(f"{stem}:mine", f"{name}:mine"),
        folder / f"test_{name}.py": filled(TESTS, name),
    }
    if there := [path for path in files if os.path.lexists(path)]:
        raise UsageError(f"{there[0]} exists, and nothing is overwritten; choose another name: --name my_layer")
    if name in sys.stdlib_module_names or _is_module(name):
        raise UsageError(
            f"there is a module {name} already, and {name}.py would hide it from all code that runs in {folder};"
            " choose another name: --name my_layer"
        )
    left: dict[Path, str] = {}
    if service is not None:
        path = folder / RECIPES[service]
        (left if os.path.lexists(path) else files)[path] = filled(recipe(service), name)
    return FilesPlan(name, files, left)


def agents(folder: Path, name: str) -> FilesPlan:
    """The rules for coding agents that work on the layer of an adapter: AGENTS.md, or what to add to it."""
    path, text = folder / "AGENTS.md", _text_of("agents.md").replace("NAME", name)
    there = os.path.lexists(path)
    return FilesPlan(name, {} if there else {path: text}, {path: text} if there else {})


def recipe(service: str) -> str:
    """What makes a CI service judge an implementation on every push."""
    return _text_of(f"ci-{service}{Path(RECIPES[service]).suffix}")


def filled(text: str, name: str) -> str:
    """A text for a module of that name, pinned to today's version of the catalogue."""
    return text.replace("NAME", name).replace("CATALOGUE", versions.current())


def _text_of(file: str) -> str:
    return resources.files("cemverify.start").joinpath(file).read_text(encoding="utf-8")


def _is_module(name: str) -> bool:
    """Whether that name can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def write(plan: FilesPlan) -> None:
    """Writes the files, each whole or not at all."""
    for path, text in plan.files.items():
        try:
            put(path, text.encode())
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}); choose another folder") from error
