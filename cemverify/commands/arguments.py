"""Argument types and checks that several commands share."""

from __future__ import annotations

from pathlib import Path

import torch

from cemverify.results.envelope import ResultError, check_writable

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def check_folder(path: Path | None) -> None:
    """Checks before the work that files can be written to a folder.

    Raises:
        ResultError: it is a file, or cannot be made.
    """
    if path is not None:
        if path.exists() and not path.is_dir():
            raise ResultError(f"cannot write into {path}: it is not a folder; name a folder, it is created if needed")
        check_writable(path / "file")
