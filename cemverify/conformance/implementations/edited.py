"""Modules whose text differs from their files', so that an edit or a fault can be tried without writing it."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any


def edited(text: str, *changes: tuple[str, str]) -> str:
    """The text with the first string of each change replaced by the second, one change after the other.

    Raises:
        ValueError: a string to be replaced does not occur exactly once.
    """
    for old, new in changes:
        if (places := text.count(old)) != 1:
            raise ValueError(f"{places} places read {old!r}, where one should")
        text = text.replace(old, new)
    return text


def module_of(text: str, name: str, names: Mapping[str, Any] | None = None) -> ModuleType:
    """A module of that name and text, imported anew; `names` are there before it runs.

    Tracebacks show its lines, and pickles and dataclasses find it.
    """
    module, file = ModuleType(name), f"<{name}>"
    vars(module).update({**(names or {}), "__name__": name, "__file__": file})
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    sys.modules[name] = module
    _run(text, module)
    return module


class EditedFiles(MetaPathFinder, Loader):
    """Imports some files with another text; `__file__` stays what it is.

    Args:
        texts: by the absolute path of a file.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as its file has it, but with this loader; None for a module whose file is not edited."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or os.path.abspath(spec.origin) not in self.texts:
            return None
        return spec_from_file_location(
            fullname, spec.origin, loader=self, submodule_search_locations=spec.submodule_search_locations
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:  # noqa: ARG002
        """Leaves it to Python to make the empty module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Runs the edited text in the module."""
        _run(self.texts[os.path.abspath(str(module.__file__))], module)


def _run(text: str, module: ModuleType) -> None:
    exec(compile(text, str(module.__file__), "exec", dont_inherit=True), vars(module))  # noqa: S102


def use(texts: Mapping[str, str]) -> None:
    """From now on these files, by absolute path, are imported with these texts; what is imported already stays."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, EditedFiles)]
    if texts:
        sys.meta_path.insert(0, EditedFiles(texts))


def modules_of(files: Mapping[str, str]) -> list[str]:
    """The names under which these files, by absolute path, have been imported."""
    pairs = [(name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items())]
    return [name for name, file in pairs if isinstance(file, str) and os.path.abspath(file) in files]


def forget(modules: Iterable[str]) -> None:
    """Makes the next import of these modules run them anew."""
    for name in modules:
        sys.modules.pop(name, None)
