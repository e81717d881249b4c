"""The house holds: every file is in a room, nobody imports upward, and the page on architecture lists each file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cemverify.cli import COMMANDS

ROOT = Path(__file__).parent.parent
PACKAGES = ("cemverify", "synthetic", "reports", "benchmarks")
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
    "cemverify.source": set(),
    "cemverify.source.reading": verifier("implementations"),
    "cemverify.source.reach": {"cemverify.source.reading"} | verifier("implementations"),
    "cemverify.conformance.questions": {"cemverify.cem", "cemverify.source.reading"},
    "cemverify.conformance.asking": verifier("implementations", "questions"),
    "cemverify.conformance.oracle": {"cemverify.cem"} | verifier("implementations", "questions"),
    "cemverify.conformance.properties": {"cemverify.cem", "cemverify.source.reading"}
    | shared("catalogue", "processes")
    | verifier("implementations", "questions", "asking", "oracle"),
    "cemverify.conformance.judging": {"cemverify.cem", "cemverify.source.reading", "cemverify.source.reach"}
    | shared("catalogue", "processes", "console")
    | verifier("implementations", "questions", "asking", "oracle", "properties"),
    "cemverify.conformance.workers": {"cemverify.source.reading", "cemverify.source.reach"}
    | shared("processes", "console")
    | verifier("implementations", "questions", "asking", "properties", "judging"),
    "cemverify.conformance.trained": {"cemverify.cem"}
    | shared("processes", "console")
    | verifier("implementations", "questions", "asking", "oracle", "properties", "judging"),
    "cemverify.conformance.gate": shared("_version", "catalogue", "processes", "results")
    | verifier("properties", "judging"),
    "cemverify.conformance.counterexamples": shared("results") | verifier("implementations", "questions", "judging"),
    "cemverify.conformance.listeners": {"cemverify.source.reach"}
    | shared("catalogue", "results", "console")
    | verifier("judging", "trained", "gate"),
    "cemverify.claims": {"cemverify.cem"}
    | shared("results")
    | verifier("implementations", "questions", "properties", "judging"),
    "cemverify.power": {"cemverify.cem", "cemverify.runs"}
    | shared("console", "results")
    | verifier("implementations", "asking", "properties", "judging"),
    "cemverify.repair": {"cemverify.cem", "cemverify.source.reading"}
    | shared("processes")
    | verifier("implementations", "questions", "asking", "oracle", "properties", "judging", "workers"),
    "cemverify.api": shared("catalogue", "processes")
    | verifier("implementations", "properties", "judging", "workers", "gate", "listeners"),
    "cemverify": {"cemverify.api"} | verifier("implementations", "properties", "judging", "trained"),
    "cemverify.start": {"cemverify.cem"} | shared("catalogue", "console", "processes") | verifier("implementations"),
    "cemverify.commands": {"cemverify.claims", "cemverify.power", "cemverify.repair", "cemverify.runs"}
    | {"cemverify.start", "cemverify.source.reach"}
    | shared("catalogue", "processes", "console", "results")
    | verifier("implementations", "asking", "properties", "judging", "trained", "workers", "gate")
    | verifier("counterexamples", "listeners"),
    "cemverify.cli": {"cemverify.commands"} | shared("_version", "catalogue", "console"),
    "cemverify.__main__": {"cemverify.cli"},
    "reports": {"cemverify.results"} | shared("console", "processes", "results") | verifier("gate", "judging"),
    "synthetic": set(),
    "synthetic.flops": set(),
    "synthetic.memory": shared("console"),
    "synthetic.gp": {"synthetic.memory"} | shared("console"),
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
        *("cemverify.cem", "cemverify.runs", "reports", "synthetic.flops", "synthetic.gp"),
        "synthetic.studies.engine",
    }
    | shared("processes", "console", "results"),
    "synthetic.studies.paper": {"cemverify.cem", "reports", "synthetic.training", "synthetic.studies.engine"}
    | shared("console", "results"),
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
    "synthetic.__main__": {"cemverify.runs", "synthetic.atlas", "synthetic.examine"}
    | {"synthetic.studies.recursion", "synthetic.language"}
    | shared("console"),
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


@cache
def files_of(package: str) -> list[Path]:
    """The Python files of a package, sorted."""
    return sorted((ROOT / package).rglob("*.py"))


def module_of(file: Path) -> str:
    words = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


@cache
def homes() -> dict[str, str]:
    """The public names of `cemverify`, each with the module that defines it."""
    tree = ast.parse((ROOT / "cemverify" / "__init__.py").read_text())
    return {
        alias.name: str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("cemverify")
        for alias in node.names
    }


def imports(file: Path) -> set[str]:
    """The modules that a file imports; a name that `cemverify` hands on counts as an import of its home."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module, names, level):
                assert level == 0, f"{file.relative_to(ROOT)}:{node.lineno}: a relative import"
                for alias in names:
                    inner = f"{module}.{alias.name}"
                    found.add(inner if is_module(inner) else _home(str(module), alias.name))
            case ast.Call(ast.Name("import_module") | ast.Attribute(attr="import_module"), [ast.Constant(str(name))]):
                found.add(name)
    return {module for module in found if module.split(".")[0] in OURS}


def _home(module: str, name: str) -> str:
    return homes().get(name, module) if module == "cemverify" else module


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_is_in_a_room(package: str) -> None:
    assert [str(file) for file in files_of(package) if room_of(module_of(file)) is None] == []


def test_every_room_exists() -> None:
    assert [room for room in ROOMS if not is_module(room)] == []


def test_rooms_stand_on_the_rooms_below_them() -> None:
    """So there is no circle: whatever a room may import is named before it."""
    named: set[str] = set()
    for room, below in ROOMS.items():
        assert below <= named, f"{room} may not import {', '.join(sorted(below - named))}, named after it"
        named.add(room)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_below(room: str) -> None:
    for package in PACKAGES:
        for file in files_of(package):
            if room_of(module_of(file)) != room:
                continue
            for module in imports(file):
                assert room_of(module) in {room, *ROOMS[room]}, f"{file.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_from_every_room_that_it_may(room: str) -> None:
    """Or what it may import would say nothing of the house. A module imported by a computed name counts as named."""
    named: set[str | None] = set()
    files = [file for package in PACKAGES for file in files_of(package)]
    for file in files:
        if room_of(module_of(file)) == room:
            named |= {room_of(module) for module in imports(file)} | _by_computed_names(file)
    assert ROOMS[room] - named == set(), f"{room} may import what it does not; take it out of the table"


def _by_computed_names(file: Path) -> set[str]:
    """The rooms that a file with `import_module(...)` may mean: their name, or its last word, is a text in it."""
    tree = ast.parse(file.read_text())
    if not any(isinstance(node, ast.Name) and node.id == "import_module" for node in ast.walk(tree)):
        return set()
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {room for room in ROOMS if words & {room, room.rpartition(".")[2]}}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_page_on_architecture_has_a_row_for_every_file(package: str) -> None:
    """Headings name folders, and the rows below them files in those; a file with only a docstring needs none."""
    rows, folder = set(), ""
    for line in (ROOT / "docs" / "architecture.md").read_text().splitlines():
        if heading := re.match(r"#+ .*", line):
            named = re.search(r"`(.+/)`$", heading[0])
            folder = named[1] if named else ""
        elif row := re.match(r"\| `(.+?)` \|", line):
            rows.add(row[1] if row[1].startswith(PACKAGES) and "/" in row[1] else folder + row[1])
    files = {str(file.relative_to(ROOT)): file for file in files_of(package)}
    missing = [
        name for name, file in files.items() if name not in rows and not _only_explains(ast.parse(file.read_text()))
    ]
    assert missing == [], f"docs/architecture.md has no row for {', '.join(missing)}"
    gone = [row for row in rows if row.startswith(f"{package}/") and row not in files]
    assert gone == [], f"docs/architecture.md has rows for files that are gone: {', '.join(gone)}"


def _only_explains(tree: ast.Module) -> bool:
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in tree.body)


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_module_only_defines(package: str) -> None:
    """No statement calls anything for its effect, edits the environment or another module's settings.

    Except in `preloaded`: a server that forks can be told nothing but what to import.
    """
    for path in files_of(package):
        if path.name == "preloaded.py":
            continue
        for node in _statements(ast.parse(path.read_text()).body):
            match node:
                case ast.Expr(value):
                    defines = isinstance(value, ast.Constant)  # a docstring
                case ast.Assign(targets):
                    defines = all(isinstance(target, ast.Name | ast.Tuple) for target in targets)
                case ast.AnnAssign(target) | ast.AugAssign(target):
                    defines = isinstance(target, ast.Name)
                case _:
                    defines = not isinstance(node, ast.Delete)
            assert defines, f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs when a module is imported: its statements, and those in its branches and loops."""
    for node in body:
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            continue
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _statements([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)])


def test_the_reference_needs_torch_and_nothing_else_of_ours() -> None:
    code = (
        "import sys, cemverify.cem.models, cemverify.cem.presets, cemverify.cem.printed\n"
        "print(sorted({'hypothesis', 'tabulate', 'gpytorch', 'sklearn', 'cemverify.conformance'} & set(sys.modules)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    assert printed.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "word"),
    [
        ("cemverify.cli", "--help"),
        ("cemverify.cli", "--version"),
        *(("cemverify.cli", f"{command} --help") for command in COMMANDS),
        ("cemverify.cli", "list"),
        ("cemverify.cli", "list --features"),
        ("cemverify.cli", "check nosuch:thing"),
        ("synthetic.__main__", "--help"),
        ("reports.__main__", "--help"),
        ("benchmarks.__main__", "--help"),
    ],
)
def test_help_lists_and_slips_of_the_pen_are_answered_at_once(module: str, word: str) -> None:
    """Torch takes more than a second to import, so they come without it."""
    code = (
        f"import sys\nfrom {module} import main\ntry: main({word.split()!r})\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr.splitlines()[-1] == "False", done.stderr


def test_the_script_of_a_counterexample_needs_nothing_of_ours() -> None:
    needed = imports(ROOT / "cemverify" / "conformance" / "counterexamples" / "standalone.py")
    ours = {"cemverify", "synthetic", "reports", "suites", "examples"}
    assert not ours & {module.split(".")[0] for module in needed}


def test_the_wheel_holds_cemverify_alone() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'include = ["cemverify*"]' in text
