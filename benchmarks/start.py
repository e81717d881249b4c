"""How long the verifier takes to start, and to judge the reference: wall time of whole processes."""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from cemverify.results.envelope import Table

COMMANDS: Sequence[tuple[str, Sequence[str]]] = (
    ("python -c pass", ("-c", "pass")),
    ("import torch", ("-c", "import torch")),
    ("cemverify --help", ("-m", "cemverify", "--help")),
    ("cemverify list", ("-m", "cemverify", "list")),
    ("cemverify check --help", ("-m", "cemverify", "check", "--help")),
)

# a whole check of the same energy layer in two libraries
LAYERS: Sequence[tuple[str, str]] = (
    ("cemverify check, a layer in torch", "benchmarks.twins:hopfield"),
    ("cemverify check, the same layer in JAX", "examples.energy_layers.hopfield_jax:mine"),
)


def verifier(rounds: int, *, whole: bool) -> tuple[Table, Any]:
    """Seconds of each command, the median of several taken in turn; whole checks once.

    Args:
        whole: whether to run those too: of the reference, and of one energy layer in torch and in JAX.
    """
    taken: dict[str, list[float]] = {name: [] for name, _ in COMMANDS}
    for _ in range(rounds):
        for name, arguments in COMMANDS:
            taken[name].append(_seconds(arguments))
    if whole:
        checks = [("cemverify check reference", "cemverify:reference")]
        if importlib.util.find_spec("jax") is not None:
            checks += LAYERS
        taken |= {name: [_seconds(("-m", "cemverify", "check", layer))] for name, layer in checks}
    rows = [[name, f"{statistics.median(times):.2f}", f"{min(times):.2f}"] for name, times in taken.items()]
    return Table("The verifier, seconds of wall time", ("command", "median", "least"), rows), taken


def _seconds(arguments: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)  # noqa: S603 -- our own modules
    return time.perf_counter() - started
