"""A folder of measurements: one small JSON file each, named by what was measured and by which code.

So a run that was interrupted goes on where it ended, and one with more seeds measures the new ones only. A
measurement is found again only by the same package, versions and implementation: anything else has another name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import cemverify
from cemverify.results import ResultError, versions, write


@lru_cache(maxsize=1)
def source_digest() -> str:
    """A digest of every source file of this package."""
    root = Path(cemverify.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def implementation_digest(name: str) -> str:
    """A digest of the file that an implementation's module is; what that imports is not looked at.

    Args:
        name: module:attribute, or the name of an entry point, which is installed and has its version.
    """
    module, _, attribute = name.partition(":")
    if not attribute:
        return ""
    try:
        found = importlib.util.find_spec(module)
        return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()[:16] if found and found.origin else ""
    except (ImportError, OSError, ValueError):
        return ""


@dataclass(frozen=True)
class Store:
    """Measurements by specification.

    Attributes:
        folder: where they lie; None keeps nothing.
    """

    folder: Path | None

    def get(self, spec: Mapping[str, Any]) -> dict[str, Any] | None:
        """What was measured for that specification, if it was.

        Raises:
            ResultError: the file is there and cannot be read.
        """
        path = self._path(spec)
        if path is None or not path.exists():
            return None
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            found: dict[str, Any] = stored["found"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResultError(f"{path} is no measurement ({error}); delete it to measure again") from error
        return found

    def put(self, spec: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Keeps a measurement.

        Raises:
            ResultError: it cannot be written.
        """
        path = self._path(spec)
        if path is not None:
            write(path, {"spec": spec, "source": source_digest(), "versions": versions(), "found": found})

    def _path(self, spec: Mapping[str, Any]) -> Path | None:
        if self.folder is None:
            return None
        named = json.dumps({"spec": spec, "source": source_digest(), "versions": versions()}, sort_keys=True)
        return self.folder / f"{hashlib.sha256(named.encode()).hexdigest()[:32]}.json"
