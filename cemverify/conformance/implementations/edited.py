"""Modules imported with another text than their file has, so that an edit can be tried without writing it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from sysconfig import get_paths
from types import ModuleType

_OURS = __name__.partition(".")[0]


class EditedSource(MetaPathFinder, Loader):
    """Imports some modules from a text; `__file__` stays that of their file."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as its file has it, but with this loader; None for every module that is not edited."""
        if fullname not in self.texts:
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is None or found.origin is None:
            return None
        return spec_from_file_location(
            fullname, found.origin, loader=self, submodule_search_locations=found.submodule_search_locations
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:  # noqa: ARG002
        """Leaves it to Python to make the empty module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Runs the edited text in the module."""
        code = compile(self.texts[module.__name__], str(module.__file__), "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102


def use(texts: Mapping[str, str]) -> None:
    """From now on these modules, by dotted name, are imported from these texts; what was imported is forgotten."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, EditedSource)]
    if texts:
        sys.meta_path.insert(0, EditedSource(texts))
    for name in texts:
        sys.modules.pop(name, None)


def own_modules(module: str) -> dict[str, Path]:
    """The files of an implementation's own modules that are imported: of its package, or those beside its file.

    What is installed belongs to somebody else, unless the implementation itself is installed; then its package is
    meant.

    Args:
        module: the dotted name of the module that has the implementation; it is imported.
    """
    top = module.partition(".")[0]
    here = getattr(sys.modules.get(module), "__file__", None)
    if here is None:
        return {}
    folder = Path(here).resolve().parent
    found = {}
    for name, loaded in list(sys.modules.items()):
        file = getattr(loaded, "__file__", None)
        if not file or not str(file).endswith(".py") or not Path(file).is_absolute():
            continue
        path = Path(file).resolve()
        package = name.partition(".")[0]
        if package == top or (package != _OURS and path.is_relative_to(folder) and not _is_installed(path)):
            found[name] = path
    return found


def _is_installed(path: Path) -> bool:
    """Whether a file lies where packages are installed, or belongs to Python."""
    return any(path.is_relative_to(Path(folder).resolve()) for folder in set(get_paths().values()) if folder)
