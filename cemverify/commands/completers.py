"""Completions for a shell, by argcomplete: commands and options from the parsers, and the words below.

    cemverify check ./my<TAB>          modules here, what they define, and installed implementations
    cemverify list grad<TAB>           gradient/, then gradient/attention/, then gradient/attention/plain

It answers without torch, in about a tenth of a second: the ids of properties are read from a file.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cemverify.catalogue import versions as catalogue
from cemverify.catalogue.index import listed
from cemverify.console import parsing

Completer = Callable[..., Iterable[str]]


def complete_with(action: argparse.Action, completer: Completer) -> None:
    """Completes an option's values with a function of `prefix`."""
    action.completer = completer  # type: ignore[attr-defined]


def property_ids(prefix: str, **_: object) -> list[str]:
    """Ids with that beginning, one level at a time, as a shell completes folders."""
    ids: dict[str, None] = {}
    for id_ in (property_.id for property_ in listed() if property_.id.startswith(prefix)):
        slash = id_.find("/", len(prefix))
        ids[id_ if slash < 0 else id_[: slash + 1]] = None
    if len(ids) == 1 and (only := next(iter(ids))).endswith("/"):
        return property_ids(only)  # the only continuation: continue with it
    return list(ids)


def versions(**_: object) -> list[str]:
    """The versions of the catalogue, to offer after an option."""
    return list(catalogue.versions())


def devices(**_: object) -> list[str]:
    """Kinds of devices; only torch could say which exist."""
    return ["cpu", "cuda"]


def implementations(prefix: str, **_: object) -> list[str]:
    """Installed implementations and modules of this folder; after the colon, the names that the module defines."""
    module, colon, _rest = prefix.partition(":")
    if colon:
        return [f"{module}:{name}" for name in _defined(Path(*module.split(".")).with_suffix(".py"))]
    from importlib.metadata import entry_points

    installed = (point.name for point in entry_points(group="cemverify.implementations"))
    return [*installed, *(f"{path.stem}:" for path in sorted(Path().glob("*.py")) if path.stem.isidentifier())]


def _defined(path: Path) -> Iterator[str]:
    """The names that a file defines at top level, read without running it."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def complete(parser: argparse.ArgumentParser) -> None:
    """Answers a shell that asks for completions, and ends the process; does nothing otherwise."""
    import argcomplete
    from argcomplete.completers import FilesCompleter, SuppressCompleter

    for action in _actions(parser):
        if action.type is parsing.path and not hasattr(action, "completer"):
            complete_with(action, FilesCompleter())
    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=SuppressCompleter())


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
