"""The house holds: every file is in a room, nobody imports upward, and the page on architecture says so."""

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


def verifier(*rooms: str) -> set[str]:
    """Rooms of `cemverify.conformance`."""
    return {f"cemverify.conformance.{room}" for room in rooms}


def shared(*rooms: str) -> set[str]:
    """Rooms on the ground floor of `cemverify`."""
    return {f"cemverify.{room}" for room in rooms}


# Every room with the rooms that it may import, ground floor first. A room is a file, or a folder with all that is in
# it; a folder that has rooms of its own stands here for its `__init__.py` alone. Libraries are not rooms.
ROOMS: dict[str, set[str]] = {
    "cemverify._version": set(),
    "cemverify.console": set(),
    "cemverify.processes": shared("console"),
    "cemverify.results": shared("_version", "console", "processes"),
    "cemverify.catalogue": shared("console"),
    "cemverify.cem": set(),
    "cemverify.runs": shared("console", "processes", "results"),
    "cemverify.conformance": set(),
    "cemverify.conformance.implementations": {"cemverify.cem"} | shared("processes", "console"),
    "cemverify.conformance.source": set(),
    "cemverify.conformance.source.reading": verifier("implementations"),
    "cemverify.conformance.source.reach": verifier("source.reading", "implementations"),
    "cemverify.conformance.questions": {"cemverify.cem"} | verifier("source.reading"),
    "cemverify.conformance.asking": {"cemverify.cem"} | verifier("implementations", "questions"),
    "cemverify.conformance.oracle": {"cemverify.cem"} | verifier("implementations", "questions"),
    "cemverify.conformance.properties": {"cemverify.cem"}
    | shared("catalogue", "processes")
    | verifier("source.reading", "implementations", "questions", "asking", "oracle"),
    "cemverify.conformance.judging": {"cemverify.cem"}
    | shared("catalogue", "processes", "console")
    | verifier("source.reading", "source.reach", "implementations", "questions", "asking", "oracle", "properties"),
    "cemverify.conformance.workers": shared("processes", "console")
    | verifier("source.reading", "source.reach", "implementations", "questions", "asking", "properties", "judging"),
    "cemverify.conformance.trained": {"cemverify.cem"}
    | shared("console")
    | verifier("implementations", "questions", "asking", "oracle", "properties", "judging"),
    "cemverify.conformance.gate": shared("_version", "catalogue", "processes", "results")
    | verifier("properties", "judging"),
    "cemverify.conformance.counterexamples": shared("results") | verifier("implementations", "questions", "judging"),
    "cemverify.conformance.listeners": shared("catalogue", "results", "console")
    | verifier("source.reach", "judging", "trained", "gate"),
    "cemverify.claims": {"cemverify.cem"}
    | shared("results")
    | verifier("implementations", "questions", "properties", "judging"),
    "cemverify.power": {"cemverify.cem", "cemverify.runs"}
    | shared("console", "results")
    | verifier("implementations", "asking", "properties", "judging"),
    "cemverify.repair": {"cemverify.cem"}
    | shared("processes")
    | verifier(
        "source.reading", "implementations", "questions", "asking", "oracle", "properties", "judging", "workers"
    ),
    "cemverify.api": shared("catalogue", "processes")
    | verifier("implementations", "properties", "judging", "workers", "gate", "listeners"),
    "cemverify": {"cemverify.api"} | verifier("implementations", "properties", "judging", "trained"),
    "cemverify.start": {"cemverify.cem"} | shared("catalogue", "console", "processes") | verifier("implementations"),
    "cemverify.commands": {"cemverify.claims", "cemverify.power", "cemverify.repair", "cemverify.runs"}
    | shared("start", "catalogue", "processes", "console", "results")
    | verifier("source.reach", "implementations", "asking", "properties", "judging", "trained", "workers", "gate")
    | verifier("counterexamples", "listeners"),
    "cemverify.cli": {"cemverify.commands"} | shared("_version", "catalogue", "console"),
    "cemverify.__main__": {"cemverify.cli"},
    "synthetic": set(),
    "reports": shared("console", "processes", "results") | verifier("gate", "judging"),
    "synthetic.flops": {"cemverify.cem"},
    "synthetic.memory": shared("console"),
    "synthetic.gp": {"cemverify.cem", "synthetic.memory"} | shared("console"),
    "synthetic.corpora": shared("console", "processes"),
    "synthetic.atlas": {"synthetic.gp"} | shared("console", "results"),
    "synthetic.examine": {"synthetic.gp"} | shared("console", "results"),
    "synthetic.training": {"cemverify.cem", "synthetic.corpora", "synthetic.flops"}
    | shared("processes", "console", "results"),
    "synthetic.side_by_side": {
        "cemverify.cem",
        "cemverify.runs",
        "reports",
        "synthetic.corpora",
        "synthetic.training",
    }
    | shared("processes", "console", "results"),
    "synthetic.studies": set(),
    "synthetic.studies.engine": {
        *("cemverify.cem", "cemverify.runs", "reports", "synthetic.corpora", "synthetic.training"),
    }
    | shared("console", "results"),
    "synthetic.studies.recursion": {
        *(
            "cemverify.cem",
            "cemverify.runs",
            "reports",
            "synthetic.flops",
            "synthetic.gp",
            "synthetic.studies.engine",
        ),
    }
    | shared("console", "results"),
    "synthetic.recursion": {"cemverify.runs", "reports", "synthetic.gp", "synthetic.studies.engine"}
    | {"synthetic.studies.recursion"}
    | shared("processes", "console", "results"),
    "synthetic.studies.paper": {"cemverify.cem", "reports", "synthetic.training", "synthetic.studies.engine"}
    | shared("results"),
    "synthetic.studies.second_step": {
        "cemverify.cem",
        "cemverify.runs",
        "reports",
        "synthetic.training",
        "synthetic.studies.engine",
    }
    | shared("console", "results"),
    "synthetic.studies.fixed_memory": {"synthetic.studies.engine"} | shared("results"),
    "synthetic.studies.depth_dial": {"reports", "synthetic.studies.engine"} | shared("results"),
    "synthetic.language": {
        *("cemverify.cem", "cemverify.runs", "synthetic.memory", "synthetic.corpora", "synthetic.training"),
        *("synthetic.side_by_side", "synthetic.studies.engine", "synthetic.studies.paper"),
        *("synthetic.studies.second_step", "synthetic.studies.fixed_memory", "synthetic.studies.depth_dial"),
    }
    | shared("processes", "console", "results")
    | verifier("implementations"),
    "synthetic.__main__": {"cemverify.runs"} | shared("console"),
    "benchmarks": {
        "cemverify.cem",
        *(f"cemverify.conformance.{room}" for room in ("implementations", "questions")),
        "reports",
        *(f"synthetic.{room}" for room in ("flops", "gp", "training", "studies.recursion")),
        "cemverify.results",
    }
    | shared("processes", "console", "results"),
}


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


def test_every_file_is_in_a_room_and_every_room_exists() -> None:
    assert [name(file) for room, file in files_by_room() if room is None] == []
    assert [room for room in ROOMS if not is_module(room)] == []


def test_rooms_stand_on_the_rooms_below_them() -> None:
    """So there is no circle: whatever a room may import is named before it."""
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
    """The folder of `cemverify` that it is in, or the file beside those."""
    return ".".join(module.split(".")[:2])


def test_a_room_imports_only_from_below_and_from_every_room_that_it_may() -> None:
    """Or what it may import would say nothing of the house. A module imported by a computed name counts as named."""
    named: dict[str, set[str | None]] = {room: set() for room in ROOMS}
    for room, file in files_by_room():
        assert room is not None
        rooms = {module: room_of(module) for module in source(file).imports if is_ours(module)}
        wrong = [module for module, other in rooms.items() if other not in {room, *ROOMS[room]}]
        assert wrong == [], f"{name(file)} may not import {', '.join(wrong)}"
        # of a name that is computed, the whole or its last word is a text in the file
        named[room] |= {*rooms.values()} | {r for r in ROOMS if source(file).words & {r, r.rpartition(".")[2]}}
    unused = {room: below - named[room] for room, below in ROOMS.items() if below - named[room]}
    assert unused == {}, "these rooms may import what they do not; take it out of the table"


def test_the_page_on_architecture_has_the_table_of_rooms() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\S+)` \| .+ \| (.*) \|$", page, re.MULTILINE)
    words = {room: re.sub(r"^(cemverify\.(conformance\.)?|synthetic\.)(?=.)", "", room) for room in ROOMS}
    assert rows == [(room, ", ".join(words[other] for other in ROOMS if other in ROOMS[room])) for room in ROOMS]


def test_every_path_on_the_page_on_architecture_exists() -> None:
    paths = re.findall(r"`(\w+/[\w/.]+)`", (ROOT / "docs" / "architecture.md").read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_module_only_defines(package: str) -> None:
    """No statement calls anything for its effect, edits the environment or another module's settings.

    Except in `server_start` and `server_imports`: a server that forks can be told nothing but what to import.
    """
    files = [file for file in files_of(package) if file.name not in ("server_start.py", "server_imports.py")]
    assert [f"{name(file)}:{effect}" for file in files for effect in source(file).effects] == []


@pytest.mark.parametrize("package", ["cemverify", "synthetic", "reports"])
def test_nothing_reads_a_docstring(package: str) -> None:
    """Python strips them under -OO."""
    assert [f"{name(file)}:{line}" for file in files_of(package) for line in source(file).docstrings] == []


def test_the_reference_needs_torch_and_nothing_else_of_ours() -> None:
    modules, left = set[str](), {f"cemverify.cem.{word}" for word in ("models", "presets", "printed")}
    while left:
        modules |= left
        files = [file for file in files_of("cemverify") if module_of(file) in left]
        left = {module for file in files for module in source(file).imports} - modules
    assert {room_of(module) for module in modules if is_ours(module)} == {"cemverify.cem"}
    assert not modules & {"hypothesis", "tabulate", "gpytorch", "sklearn"}


# Torch takes more than a second to import, so these are answered without it.
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


def test_the_script_of_a_counterexample_needs_nothing_of_ours() -> None:
    script = source(ROOT / "cemverify" / "conformance" / "counterexamples" / "standalone.py")
    assert not any(map(is_ours, script.imports))


def test_the_wheel_holds_cemverify_alone() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'include = ["cemverify*"]' in text
