"""The architecture holds: every file is in a room, and no room imports upward, as docs/architecture.md says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from cemverify.cli import COMMANDS
from suites.kit.source import PACKAGES, ROOT, files_of, is_module, module_of, name, source

OURS = {*PACKAGES, "suites", "examples"}


# It has a table of rooms, lowest first, with the rooms that each may import. A room is a file, or a folder with its
# content; a folder that contains rooms stands only for its `__init__.py`. Libraries are not rooms.
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def rooms() -> dict[str, set[str]]:
    """The table, whose last column omits package prefixes; an ambiguous word is refused."""
    rows: list[tuple[str, str]] = re.findall(r"^\| `(\S+)` \| .+ \| (.*) \|$", PAGE, re.MULTILINE)

    def is_meant(room: str, word: str) -> bool:
        return word == re.sub(r"^(cemverify\.(conformance\.)?|synthetic\.)(?=.)", "", room)

    def whole(word: str) -> str:
        (room,) = (room for room, _ in rows if is_meant(room, word))
        return room

    return {room: {whole(word) for word in below.split(", ") if word} for room, below in rows}


ROOMS = rooms()


@cache
def room_of(module: str) -> str | None:
    """The room that a module is in; None if it is in none."""
    around = [room for room in ROOMS if module == room or module.startswith(f"{room}.")]
    if not around:
        return None
    nearest = max(around, key=len)
    has_rooms = any(room.startswith(f"{nearest}.") for room in ROOMS)
    return nearest if module == nearest or not has_rooms else None


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


def files_by_room() -> Iterator[tuple[str | None, Path]]:
    """Every file of the packages with its room."""
    for package in PACKAGES:
        yield from ((room_of(module_of(file)), file) for file in files_of(package))


def test_every_file_is_in_a_room_every_room_exists_and_stands_on_rooms_below_it() -> None:
    assert [name(file) for room, file in files_by_room() if room is None] == []
    assert [room for room in ROOMS if not is_module(room)] == []
    # there is no cycle, because a room may import only rooms above it in the table
    above: set[str] = set()
    for room, below in ROOMS.items():
        assert below <= above, f"{room} may not import {', '.join(sorted(below - above))}, named after it"
        above.add(room)


def test_no_files_and_no_folders_of_the_verifier_import_each_other() -> None:
    """Not even inside a function, or under TYPE_CHECKING."""
    files = {module_of(file): file for package in PACKAGES for file in files_of(package)}
    modules = {module: (set(source(file).imports) & files.keys()) - {module} for module, file in files.items()}
    TopologicalSorter(modules).prepare()
    packages: dict[str, set[str]] = {}
    for module, imported in modules.items():
        if module.startswith("cemverify."):
            packages.setdefault(folder_of(module), set()).update(map(folder_of, imported))
    TopologicalSorter({folder: below - {folder} for folder, below in packages.items()}).prepare()


def folder_of(module: str) -> str:
    """The folder of `cemverify` that contains a module, or its file if it is in none."""
    return ".".join(module.split(".")[:2])


def test_a_room_imports_only_from_below_and_from_every_room_that_it_may() -> None:
    """Otherwise the table would allow too much. A module that is imported by a computed name counts as imported."""
    named: dict[str, set[str | None]] = {room: set() for room in ROOMS}
    for room, file in files_by_room():
        assert room is not None
        rooms = {module: room_of(module) for module in source(file).imports if is_ours(module)}
        wrong = [module for module, other in rooms.items() if other not in {room, *ROOMS[room]}]
        assert wrong == [], f"{name(file)} may not import {', '.join(wrong)}"
        # a computed name, or at least its last word, is a text in the file
        named[room] |= {*rooms.values()} | {r for r in ROOMS if source(file).words & {r, r.rpartition(".")[2]}}
    unused = {room: below - named[room] for room, below in ROOMS.items() if below - named[room]}
    assert unused == {}, "these rooms may import what they do not; take it out of the page"


def test_every_path_on_the_page_on_architecture_exists() -> None:
    paths = re.findall(r"`(\w+/[\w/.]+)`", PAGE)
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_module_only_defines(package: str) -> None:
    """No statement calls anything for its effect, edits the environment or another module's settings.

    Except in `server_start` and `server_imports`: the only instruction that a fork server takes is what to import.
    """
    files = [file for file in files_of(package) if file.name not in ("server_start.py", "server_imports.py")]
    assert [f"{name(file)}:{effect}" for file in files for effect in source(file).effects] == []


@pytest.mark.parametrize("package", ["cemverify", "synthetic", "reports"])
def test_nothing_reads_a_docstring(package: str) -> None:
    """Python strips them under -OO."""
    assert [f"{name(file)}:{line}" for file in files_of(package) for line in source(file).docstrings] == []


def test_the_reference_needs_torch_and_nothing_else_of_ours_and_the_script_of_a_counterexample_nothing() -> None:
    modules, left = set[str](), {f"cemverify.cem.{word}" for word in ("models", "presets", "printed")}
    while left:
        modules |= left
        files = [file for file in files_of("cemverify") if module_of(file) in left]
        left = {module for file in files for module in source(file).imports} - modules
    assert {room_of(module) for module in modules if is_ours(module)} == {"cemverify.cem"}
    assert not modules & {"hypothesis", "tabulate", "gpytorch", "sklearn"}
    script = source(ROOT / "cemverify" / "conformance" / "counterexamples" / "standalone.py")
    assert not any(map(is_ours, script.imports))


# Importing torch takes more than a second, so these must work without it.
AT_ONCE = {
    "cemverify.cli": ("--help", "--version", *(f"{command} --help" for command in COMMANDS), "list",
                      "list --features", "check nosuch:thing"),
    "synthetic.__main__": ("--help",),
    "reports.__main__": ("--help",),
    "benchmarks.__main__": ("--help",),
}  # fmt: skip
ANSWER = """\
import contextlib, importlib, io, sys
for module, lines in {lines!r}.items():
    for line in lines:
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module(module).main(line.split())
        assert "torch" not in sys.modules, f"{{module}} {{line}}"
"""


def test_help_lists_and_slips_of_the_pen_are_answered_at_once() -> None:
    code = ANSWER.format(lines=AT_ONCE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_wheel_holds_cemverify_alone() -> None:
    assert 'include = ["cemverify*"]' in (ROOT / "pyproject.toml").read_text()
