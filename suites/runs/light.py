"""Cells that cost nothing, for tests of the store; without torch, so that processes start quickly."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cemverify.runs import Cell, algorithm


@dataclass(frozen=True)
class Walk:
    """A specification of a random walk: the number of steps, the seed, and how long it should take."""

    seed: int
    steps: int
    scale: float = 1.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Trap:
    """A computation that goes wrong while the file `armed` exists."""

    how: str  # "raise", "nan" or "die"
    armed: str


@algorithm("suites.runs.light:walk", walk=1)
def walk(spec: Walk) -> dict[str, Any]:
    """Computes a cell of this file: the end of a random walk."""
    time.sleep(spec.seconds)
    draws = random.Random(spec.seed)  # noqa: S311
    path = [0.0]
    for _ in range(spec.steps):
        path.append(path[-1] + spec.scale * draws.gauss(0, 1))
    return {"end": path[-1], "path": path}


@algorithm("suites.runs.light:trap", trap=1)
def trap(spec: Trap) -> dict[str, Any]:
    """Raises, ends its process or returns a NaN while the file of the trap exists."""
    if not Path(spec.armed).exists():
        return {"survived": True}
    if spec.how == "die":
        os._exit(9)
    if spec.how == "nan":
        return {"loss": float("nan")}
    raise ArithmeticError("the loss is no longer finite")


def walks(count: int, seconds: float = 0.0) -> list[Cell]:
    """Cells of walks of several lengths."""
    return [
        walk.cell(Walk(seed, 5 + seed % 7, seconds=seconds), cost=1 + seed % 7, label=f"walk {seed}")
        for seed in range(count)
    ]


def contents(store: Path) -> dict[str, bytes]:
    """The bytes of every cell of a store."""
    return {path.name: path.read_bytes() for path in sorted(store.glob("??/*.json"))}


def litter(store: Path) -> Sequence[str]:
    """Files in a store other than its cells and their side files."""
    cells = {path.stem for path in store.glob("??/*.json")}
    return [
        str(path.relative_to(store))
        for path in sorted(store.rglob("*"))
        if path.is_file() and not (path.suffix in (".json", ".made_by") and path.stem in cells)
    ]
