"""Small results of the real studies, stored beside this file so that no test has to train for them.

`python -m suites.reports.studies` makes them again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cemverify.results import envelope
from synthetic.__main__ import main

FOLDER = Path(__file__).parent / "stored"
_CHAIN = ("--corpus", "hidden", "--symbols", "8", "--states", "4", "--length", "20000", "--corpora", "corpora")
_TINY = ("--dim", "8", "--heads", "2", "--layers", "1", "--batch", "4", "--context", "8", "--device", "cpu")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "recursion": (
        *("recursion", "--preset", "smoke", "--models", "cem", "--steps", "2", "4", "--seeds", "6"),
        *("--train-points", "256"),
    ),
    "language": ("language", "train", "--models", "llama-alibi", "cem-t1", "--steps", "6", *_CHAIN, *_TINY),
    "learning-rate": ("language", "study", "learning-rate", "--seeds", "2", "--steps", "4", *_CHAIN, *_TINY),
}


def stored(name: str) -> dict[str, Any]:
    """The stored result of a study."""
    return dict(envelope.read(FOLDER / f"{name}.json"))


if __name__ == "__main__":
    for study, command in COMMANDS.items():
        with TemporaryDirectory() as scratch, chdir(scratch):
            store = ("--store", "store") if study != "language" else ()
            assert main([*command, "--workers", "0", *store, "--output", f"{study}.json"]) in (0, 1)
            shutil.copy(f"{study}.json", FOLDER)
