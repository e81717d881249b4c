"""The house holds: nobody imports upward, and the reference needs torch only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# A room may import itself and what stands here; "torch" and other libraries are not rooms.
ALLOWED = {
    "cemverify.cem": set(),
    "cemverify.devices": set(),
    "cemverify.orphans": set(),
    "cemverify.results": {"cemverify._version"},
    "cemverify.conformance": {"cemverify.cem", "cemverify.devices", "cemverify.orphans", "cemverify.results"},
    "reports": {"cemverify.results"},
    "synthetic.runs": {"synthetic.errors", "cemverify.orphans"},
    "synthetic": {
        "cemverify.cem",
        "cemverify.conformance",
        "cemverify.devices",
        "cemverify.orphans",
        "cemverify.results",
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
                "suites",
                "examples",
            ):
                continue
            assert any(module == b or module.startswith(f"{b}.") for b in below), (
                f"{file.relative_to(ROOT)}: {module}"
            )


def test_the_reference_needs_torch_and_nothing_else_of_ours() -> None:
    code = (
        "import sys, cemverify.cem.models, cemverify.cem.presets, cemverify.cem.printed\n"
        "print(sorted({'hypothesis', 'tabulate', 'gpytorch', 'sklearn', 'cemverify.conformance'} & set(sys.modules)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    assert printed.strip() == "[]"


def test_the_wheel_holds_cemverify_alone() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'include = ["cemverify*"]' in text
