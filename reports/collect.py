"""Result files of the command line: single files, or folders searched for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cemverify.results import envelope
from cemverify.results.envelope import ResultError
from reports.kinds import sheets_of
from synthetic.figures.sheets import Sheet


@dataclass(frozen=True)
class ResultFile:
    """A result and the file it came from."""

    path: Path  # the file
    content: Mapping[str, Any]  # what it holds
    origin: str  # one line on what made it


def collect(paths: Iterable[Path]) -> list[ResultFile]:
    """The results at the paths, in the order given, those of a folder sorted by path; each file once.

    A folder is searched with all its subfolders; JSON files in it that have another schema are ignored. A file named
    directly must be a result.
    """
    results: dict[Path, ResultFile] = {}
    for path in paths:
        files = [file for file in sorted(path.rglob("*.json")) if _is_ours(file)] if path.is_dir() else [path]
        if not files:
            raise ResultError(f"no result file in {path}: none of its *.json has the schema {envelope.SCHEMA!r}")
        for file in files:
            content = envelope.read(file)  # before its path is resolved, which fails for a loop of links
            results.setdefault(file.resolve(), ResultFile(file, content, _origin(content)))
    return list(results.values())


def tables_of(source: ResultFile, fold: bool, narrow: bool = False) -> list[Sheet]:
    """The tables of a result, as `sheets_of` makes them."""
    with complete(source):
        return sheets_of(source.content, fold, narrow)


def complete(source: ResultFile) -> AbstractContextManager[None]:
    """A context for code that reads the content of a result: if the file lacks something, the error is a sentence."""
    return envelope.complete(source.path, source.content)


def _is_ours(file: Path) -> bool:
    """Whether a file should be read as a result. A damaged one should, so that it is reported and not ignored."""
    try:
        content = envelope.read_json(file)
    except ResultError:
        return True
    return isinstance(content, dict) and content.get("schema") == envelope.SCHEMA


def _origin(content: Mapping[str, Any]) -> str:
    made_by = content["made_by"]
    device = made_by["device"]
    threads = device["threads"]
    return (
        f"{content['kind']} by cemverify {content['suite_version']}: {made_by['command']}; "
        f"on {device['type']} ({device['name']}, {threads} {'thread' if threads == 1 else 'threads'}), "
        f"{made_by['created']}, {float(made_by['duration_seconds']):.1f} s, seed {made_by['seed']}"
        f"{f', commit {commit[:12]}' if (commit := made_by.get('commit')) else ''}"
    )
