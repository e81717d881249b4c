"""The code that a measurement depends on, as digests and versions: part of every cell, and so of its key.

A stored measurement is reused only with the same package, libraries and implementation.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cemverify.console.errors import UsageError
from cemverify.results.provenance import versions


@dataclass(frozen=True)
class Code:
    """What a measurement depends on besides the question."""

    package: str  # digest of every source file that a measurement may import
    libraries: tuple[str, ...]  # their versions, "torch 2.13.0"
    # digest of the implementation's file, but not of what that file imports. Empty for the mutants as they are, and
    # for entry points, whose packages have their own versions
    implementation: str = ""

    @classmethod
    def here(cls, implementation: str | None) -> Code:
        """The code on this machine.

        Args:
            implementation: module:attribute, or the name of an entry point; None for the mutants as they are.
        """
        return cls(_package(), _libraries(), "" if implementation is None else _implementation(implementation))

    def check(self, implementation: str | None) -> None:
        """Refuses to measure if this machine has other code."""
        here = Code.here(implementation)
        if here != self:
            differ = [
                name for name in ("package", "libraries", "implementation") if vars(here)[name] != vars(self)[name]
            ]
            raise UsageError(
                f"a worker runs different code than the one that was asked for ({', '.join(differ)}); "
                "do not edit it during a run, and install the same everywhere"
            )


# What a measurement may import. Edits of commands, claims or the page do not invalidate measurements.
_PAGE = Path("power", "pages.py")
ROOMS = ("catalogue", "cem", "conformance", "console", "power", "processes", "results", "runs")


@lru_cache(maxsize=1)
def _package() -> str:
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted({path for room in ROOMS for path in (root / room).rglob("*.py")} - {root / _PAGE}):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=1)
def _libraries() -> tuple[str, ...]:
    return tuple(f"{name} {version}" for name, version in versions().items())


def _implementation(name: str) -> str:
    module, _, attribute = name.partition(":")
    if not attribute:
        return ""
    try:
        spec = importlib.util.find_spec(module)
        return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:16] if spec and spec.origin else ""
    except (ImportError, OSError, ValueError):
        return ""
