"""The house holds: nobody imports upward, and the reference needs torch only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

VERIFIER = "cemverify.conformance."
LANGUAGE = "synthetic.language."
# Floors from the ground. A room may import itself and the rooms named behind it; libraries are not rooms.
ALLOWED: dict[str, set[str]] = {
    "cemverify._version": set(),
    "cemverify.cem": set(),
    "cemverify.errors": set(),
    "cemverify.devices": set(),
    "cemverify.orphans": set(),
    "cemverify.files": set(),
    "cemverify.cores": set(),
    "cemverify.parsing": {"cemverify.errors"},
    "cemverify.results": {"cemverify._version", "cemverify.files"},
    "cemverify.tables": {"cemverify.results"},
    "cemverify.runs": {"cemverify.cores", "cemverify.errors", "cemverify.files", "cemverify.orphans"},
    f"{VERIFIER}implementations": {"cemverify.cem"},
    f"{VERIFIER}questions": {"cemverify.cem"},
    f"{VERIFIER}asking": {f"{VERIFIER}implementations", f"{VERIFIER}questions"},
    f"{VERIFIER}oracle": {"cemverify.cem", f"{VERIFIER}implementations", f"{VERIFIER}questions"},
    f"{VERIFIER}properties": {
        "cemverify.cem",
        *(VERIFIER + room for room in ("implementations", "questions", "asking", "oracle")),
    },
    f"{VERIFIER}judging": {
        "cemverify.cem",
        "cemverify.devices",
        *(VERIFIER + room for room in ("implementations", "questions", "asking", "oracle", "properties")),
    },
    f"{VERIFIER}workers": {
        "cemverify.orphans",
        *(VERIFIER + room for room in ("implementations", "questions", "asking", "properties", "judging")),
    },
    f"{VERIFIER}gate": {"cemverify.results", f"{VERIFIER}properties", f"{VERIFIER}judging"},
    f"{VERIFIER}counterexamples": {
        "cemverify.results",
        *(VERIFIER + room for room in ("implementations", "questions", "judging")),
    },
    f"{VERIFIER}listeners": {
        "cemverify.results",
        "cemverify.tables",
        *(VERIFIER + room for room in ("implementations", "judging", "gate")),
    },
    "cemverify.claims": {
        "cemverify.cem",
        "cemverify.results",
        "cemverify.tables",
        *(VERIFIER + room for room in ("implementations", "properties", "judging")),
    },
    "cemverify.power": {
        "cemverify.cem",
        "cemverify.errors",
        "cemverify.results",
        "cemverify.runs",
        *(VERIFIER + room for room in ("implementations", "questions", "asking", "properties", "judging")),
    },
    "cemverify.commands": {
        "cemverify._version",
        "cemverify.cores",
        "cemverify.results",
        "cemverify.tables",
        "cemverify.claims",
        "cemverify.power",
        "cemverify.conformance",
        "cemverify.errors",
        "cemverify.runs",
    },
    "cemverify.cli": {
        "cemverify.errors",
        "cemverify._version",
        "cemverify.results",
        "cemverify.conformance",
        "cemverify.commands",
    },
    "cemverify.api": {"cemverify.cores", "cemverify.conformance"},
    "cemverify.__init__": {"cemverify.api", "cemverify.conformance"},
    "cemverify.__main__": {"cemverify.cli"},
    "reports": {"cemverify.errors", "cemverify.parsing", "cemverify.results", "cemverify.tables"},
    "synthetic.statistics": {"cemverify.errors"},
    "synthetic.gp": {"cemverify.errors", "synthetic.statistics"},
    "benchmarks": {"cemverify", "reports", "synthetic"},
    "synthetic.flops": set(),
    "synthetic.statements": set(),
    "synthetic.corpora": {"cemverify.errors", "cemverify.files"},
    f"{LANGUAGE}training": {
        "cemverify.cem",
        "cemverify.devices",
        "cemverify.errors",
        "cemverify.files",
        "cemverify.results",
        "synthetic.flops",
        "synthetic.corpora",
    },
    f"{LANGUAGE}contenders": {
        "cemverify.cem",
        "cemverify.cores",
        "cemverify.errors",
        "cemverify.results",
        "cemverify.runs",
        "synthetic.corpora",
        f"{LANGUAGE}training",
    },
    f"{LANGUAGE}losses": {
        "cemverify.cem",
        "cemverify.errors",
        "cemverify.results",
        "cemverify.tables",
        f"{VERIFIER}implementations",
        "synthetic.corpora",
        f"{LANGUAGE}training",
        f"{LANGUAGE}contenders",
    },
    f"{LANGUAGE}paper": {
        "cemverify.cem",
        "cemverify.errors",
        "cemverify.results",
        "cemverify.runs",
        "cemverify.tables",
        "reports.plots",
        "synthetic.statements",
        "synthetic.statistics",
        "synthetic.corpora",
        f"{LANGUAGE}training",
    },
    "synthetic": {
        "cemverify.cem",
        "cemverify.conformance",
        "cemverify.cores",
        "cemverify.devices",
        "cemverify.errors",
        "cemverify.files",
        "cemverify.orphans",
        "cemverify.parsing",
        "cemverify.results",
        "cemverify.runs",
        "cemverify.tables",
        "reports",
    },
}


def imports(path: Path) -> set[str]:
    """The modules that a file imports, absolute."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "cemverify"}
    return found


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_from_below(room: str) -> None:
    folder = ROOT / room.replace(".", "/")
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    assert files
    below = {room, *ALLOWED[room]}
    for file in files:
        for module in imports(file):
            if module == "cemverify" or module.split(".")[0] not in (
                "cemverify",
                "synthetic",
                "reports",
                "benchmarks",
                "suites",
                "examples",
            ):
                continue
            assert any(module == b or module.startswith(f"{b}.") for b in below), (
                f"{file.relative_to(ROOT)}: {module}"
            )


@pytest.mark.parametrize("package", ["cemverify", "synthetic", "reports", "benchmarks"])
def test_importing_a_module_only_defines(package: str) -> None:
    """No statement calls anything for its effect, edits the environment or another module's settings."""
    for path in sorted((ROOT / package).rglob("*.py")):
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


def test_the_script_of_a_counterexample_needs_nothing_of_ours() -> None:
    needed = imports(ROOT / "cemverify" / "conformance" / "counterexamples" / "standalone.py")
    ours = {"cemverify", "synthetic", "reports", "suites", "examples"}
    assert not ours & {module.split(".")[0] for module in needed}


def test_the_wheel_holds_cemverify_alone() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'include = ["cemverify*"]' in text
