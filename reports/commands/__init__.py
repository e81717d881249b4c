"""The commands, one file each; and the argument that most of them have."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from cemverify.console.parsing import path


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Adds `paths`, the result files that a command reads."""
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", type=path, help="a result file, or a folder of result files"
    )


def beside(paths: Sequence[Path]) -> Path:
    """The folder where a command writes by default: that of the first path."""
    return paths[0] if paths[0].is_dir() else paths[0].parent
