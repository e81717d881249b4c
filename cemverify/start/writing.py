"""Writes an adapter, its tests and a CI recipe into a folder, and overwrites nothing."""

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

# The file of this package from which each kind starts.
STEMS: Mapping[Kind, str] = {
    "cem": "cem_layer",
    "energy": "energy_layer",
    "module": "module_layer",
    "online": "online_layer",
}

# The services with a recipe for CI, and where each looks for it. The recipes are beside this file, with NAME for
# the module of the implementation, NAME:mine for the implementation, and CATALOGUE for the catalogue's version.
RECIPES: Mapping[str, str] = {
    "github": ".github/workflows/cemverify.yml",
    "gitlab": ".gitlab-ci.yml",
    "tox": "tox.ini",
}

# For an adapter: the name of its tests is longer.
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
    """The files to write."""

    target: str  # the adapter's module and the name of the implementation in it, "cem_layer:mine"
    files: Mapping[Path, str]  # their texts, by path
    # what belongs in files that already exist, by path: the user has to add it by hand
    left: Mapping[Path, str]
    kept: Path | None = None  # the adapter, if it already exists

    @property
    def name(self) -> str:
        """The name of the adapter's module."""
        return self.target.partition(":")[0]


def plan(kind: Kind, folder: Path, target: str | None = None, service: str | None = None) -> FilesPlan:
    """Decides what to write, without writing. An adapter that already exists gets tests and a recipe.

    Args:
        kind: what the adapter is for. folder: where it goes. target: the adapter's module, or "module:attribute"; by
            default the kind's own. service: a key of RECIPES; None writes no recipe.
    """
    stem = STEMS[kind]
    target = _whole(stem if target is None else target)
    name, _, attribute = target.partition(":")
    package, _, module = name.rpartition(".")
    if package:
        where = f"--folder {folder / package.replace('.', '/')} --name {module}:{attribute}"
        raise UsageError(f"{name} is in a package, but an adapter and its tests are written into one folder: {where}")
    adapter, tests = folder / f"{name}.py", folder / f"test_{name}.py"
    if os.path.lexists(tests):
        raise UsageError(f"{tests} exists, and nothing is overwritten; choose another name: --name my_layer")
    files, kept = {tests: filled(TESTS, target)}, adapter if adapter.exists() else None
    if kept is None:
        if name in sys.stdlib_module_names or _is_module(name):
            raise UsageError(
                f"there is a module {name} already, and {name}.py would hide it from all code that runs in {folder};"
                " choose another name: --name my_layer"
            )
        text = _text_of(f"{stem}.py").replace(f"{stem}:mine", target).replace("\nmine =", f"\n{attribute} =")
        files = {adapter: text, **files}
    left: dict[Path, str] = {}
    if service is not None:
        path = folder / RECIPES[service]
        (left if os.path.lexists(path) else files)[path] = filled(recipe(service), target)
    return FilesPlan(target, files, left, kept)


def _whole(target: str) -> str:
    """The target with its attribute, which defaults to `mine`."""
    name, _, attribute = target.partition(":")
    if len(name) > LONGEST_NAME:
        raise UsageError(f"a name of {len(name)} characters is too long; use at most {LONGEST_NAME}")
    for word in (*name.split("."), attribute or "mine"):
        is_word = keyword.iskeyword(word)
        if is_word or not (word.isascii() and word.isidentifier()):
            what = "a keyword of Python; use another" if is_word else "no name in Python; use letters, digits and _"
            raise UsageError(f"{word!r} is {what}, as in --name my_layer:mine")
    return f"{name}:{attribute or 'mine'}"


def agents(folder: Path, target: str) -> FilesPlan:
    """The rules for coding agents that work on the layer of an adapter: AGENTS.md, or what to add to it."""
    path, target = folder / "AGENTS.md", _whole(target)
    halves = [line.partition("#") for line in filled(_text_of("agents.md"), target).splitlines()]
    wide = max(len(command.rstrip()) for command, _, _ in halves if command.startswith("    cemverify"))
    lines = [
        f"{a.rstrip():<{wide}}   #{b}" if b and a.startswith("    cemverify") else a + h + b for a, h, b in halves
    ]
    text = "\n".join(lines) + "\n"
    there = os.path.lexists(path)
    return FilesPlan(target, {} if there else {path: text}, {path: text} if there else {})


def recipe(service: str) -> str:
    """A configuration with which a CI service judges an implementation at every push."""
    return _text_of(f"ci-{service}{Path(RECIPES[service]).suffix}")


def filled(text: str, target: str) -> str:
    """A text for the implementation of that module and name, pinned to the current version of the catalogue."""
    text = text.replace("NAME:mine", target).replace("NAME", target.partition(":")[0])
    return text.replace("CATALOGUE", versions.current())


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
