"""Finished cells in one file, one line of JSON each, so that another machine can continue.

A line is what the store keeps of a cell: specification, versions, payload and digest. Differences between identical
runs (seconds, host, date) are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cemverify.console.errors import UsageError
from cemverify.processes.inputs import read_text
from cemverify.processes.targets import put
from cemverify.runs.cells import Cell
from cemverify.runs.plain import dumps
from cemverify.runs.store import FORMAT, CellStore, CorruptCell, content_of, digest_of, is_a_cell


def bring(path: Path, store: CellStore) -> int:
    """Adds to a store the file's cells that the store lacks; returns their number."""
    brought = 0
    for key, content in cells_of(path):
        with suppress(CorruptCell):  # a damaged cell is replaced, as a failed one is
            stored = store.get(key)
            if stored is not None and stored.payload is not None:
                continue
        store.require_writable()
        cell = Cell(content["algorithm"], content["versions"], content["spec"])
        store.put(cell, content["payload"], {"label": f"brought by {path.name}"})
        brought += 1
    return brought


def hand_on(path: Path, store: CellStore, keys: Iterable[str]) -> int:
    """Adds the finished cells with these keys to the file; returns how many cells it then has."""
    cells: dict[str, Mapping[str, Any]] = dict(cells_of(path)) if path.exists() else {}
    for key in keys:
        stored = store.get(key)
        if stored is not None and stored.payload is not None:
            cells[key] = content_of(stored.cell, stored.payload)
    try:
        put(path, "".join(f"{dumps(cells[key])}\n" for key in sorted(cells)).encode())
    except OSError as error:
        raise UsageError(f"cannot write the cells {path} ({error.strerror or error})") from error
    return len(cells)


def cells_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Key and content of each line."""
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the cells {path} ({why})") from error
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):  # U+2028 ends none
        try:
            content = json.loads(line)
            sound = content["format"] == FORMAT and content["status"] == "done"
            claimed = content["digest"]
            if not sound or claimed != digest_of(content):
                raise ValueError("does not match its digest")
            if not is_a_cell(content, content["payload"]):
                raise ValueError("is not what a cell is made of")
            key = Cell(content["algorithm"], content["versions"], content["spec"]).key
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(
                f"line {number} of {path} is not a cell as it was written ({error}); restore the file, or delete the"
                " line: its cell is then computed again"
            ) from error
        yield key, content
