"""Small results of the real studies, stored beside this file so that no test has to train for them.

`python -m suites.reports.studies` makes them again; a thorough test holds them to what the studies write today.
"""

from __future__ import annotations

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


def made(name: str, folder: Path) -> dict[str, Any]:
    """The result that the study writes today, made in a folder."""
    with chdir(folder):
        store = ("--store", "store") if name != "language" else ()
        assert main([*COMMANDS[name], "--workers", "0", *store, "--output", f"{name}.json"]) in (0, 1)
        return dict(envelope.read(Path(f"{name}.json")))


if __name__ == "__main__":
    for study in COMMANDS:
        with TemporaryDirectory() as scratch:
            envelope.write(FOLDER / f"{study}.json", made(study, Path(scratch)))
