"""Our own modules as `python -OO` compiles them, without docstrings and asserts.

Under -OO itself every library is compiled, too, which takes longer than all the rest where nothing is cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import Any


class _Stripped(SourceFileLoader):
    """Compiles without docstrings and asserts, and leaves compiled files alone."""

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        raise OSError("no compiled file belongs to this")

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:  # type: ignore[override]
        return super().source_to_code(data, path, _optimize=2)


class Stripping:
    """Finds our own modules, to be stripped."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Where one of our own modules is, to be loaded without its docstrings; None for all others."""
        if name.partition(".")[0] not in ("cemverify", "synthetic", "reports"):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Stripped(spec.loader.name, spec.loader.path)
        return spec
