"""A folder with one small file for each finished cell, named by the cell's key.

    STORE/3f/3f9c….json          the cell and its outcome; the same bytes whoever computes it, and whenever
    STORE/3f/3f9c….made_by       the side file: seconds, host, date, library versions
    STORE/aside/                 files being written; renamed into place when they are complete

There are no locks. Two processes that compute the same cell write the same bytes, so the second rename changes
nothing. A killed process leaves at most one file in aside/, which the next run on that machine removes. To
merge two stores, copy one into the other.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

from cemverify.console.errors import UsageError
from cemverify.processes.atomic_files import remove, replacing
from cemverify.processes.inputs import read_text
from cemverify.runs.cells import Cell
from cemverify.runs.plain import digest

FORMAT = "cemverify.cell"

# After this time in aside/, a file from another machine is taken to be left by a killed process.
STALE_SECONDS = 24 * 3600


class CorruptCell(Exception):
    """A file that differs from what was written: truncated, edited, or of another format."""


@dataclass(frozen=True)
class Failure:
    """Why a cell has no payload."""

    cause: str  # one line
    traceback: str = ""  # the worker's; may be empty


@dataclass(frozen=True)
class StoredCell:
    """A cell and its outcome: either a payload or a failure."""

    key: str  # the cell's
    cell: Cell  # as it was specified, without cost and label
    payload: Mapping[str, Any] | None  # what its algorithm returned
    failure: Failure | None  # why it returned nothing
    made_by: Mapping[str, Any]  # the side file (label, seconds, host, created, versions ...); empty if it is lost


class CellStore:
    """A folder of cells, one file for each. Reading changes nothing in it.

    Args:
        folder: need not exist before the first cell is stored.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._aside = folder / "aside"
        self._owner = f"{socket.gethostname()}+{os.getpid()}+"  # host names have no plus

    def require_writable(self) -> None:
        """Creates the folder if it is missing, and refuses one in which no file can be created."""
        try:
            self._aside.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._aside):
                pass  # it has no name, so an interrupt cannot leave it behind
        except OSError as error:
            raise UsageError(
                f"the store {self.folder} cannot be written ({error.strerror or error}); "
                "name another folder with --store"
            ) from error

    def path(self, key: str) -> Path:
        """Where a cell is or would be stored."""
        return self.path_in(self.folder, key)

    @staticmethod
    def path_in(folder: Path, key: str) -> Path:
        """Where a cell is stored in a folder, without opening a store."""
        return folder / key[:2] / f"{key}.json"

    def put(
        self, cell: Cell, outcome: Mapping[str, Any] | Failure, made_by: Mapping[str, Any] | None = None
    ) -> StoredCell:
        """Stores the outcome of a cell. Once this returns, the file survives a power cut.

        Args:
            outcome: the payload, or why there is none. made_by: the side file's content.
        """
        content = content_of(cell, outcome)
        path = self.path(cell.key)
        try:
            self._aside.mkdir(parents=True, exist_ok=True)
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
                _sync(self.folder)
            # the side file first, so that every cell has one
            side = path.with_suffix(".made_by")
            self._replace(side, _written(made_by or {}), durable=False)
            try:
                self._replace(path, _written(content), durable=True)
            except BaseException:  # even an interrupt leaves no side file without its cell
                if not path.exists():
                    side.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise UsageError(
                f"cell {cell.key[:12]} cannot be kept in {self.folder} ({error.strerror or error}); "
                "make room and give the same command again, it goes on from here"
            ) from error
        return self._record(cell.key, content, made_by or {})

    def get(self, key: str) -> StoredCell | None:
        """The stored cell of that key; None if there is none.

        Raises:
            CorruptCell: the file is not what was written.
        """
        path = self.path(key)
        try:
            content = json.loads(read_text(path))
            claimed = content.pop("digest", None) if isinstance(content, dict) else None
            actual = digest(content)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UsageError(f"the store's {path} cannot be read ({error.strerror or error})") from error
        except (ValueError, RecursionError) as error:  # also NaN, lone surrogates, numbers of thousands of digits
            raise CorruptCell(f"{path} is truncated, or was edited") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CorruptCell(f"{path} is not a cell")
        if claimed != actual:
            raise CorruptCell(f"{path} does not match its digest")
        record = self._record(key, content, self._made_by(path))
        if record.cell.key != key:
            raise CorruptCell(f"{path} holds another cell, {record.cell.key[:12]}")
        return record

    def sweep(self) -> None:
        """Removes what killed processes left in aside/."""
        host, now = f"{socket.gethostname()}+", time.time()
        for path in self._aside.iterdir() if self._aside.is_dir() else ():
            try:
                process = path.name.removeprefix(host).split("+")[0] if path.name.startswith(host) else ""
                if (process.isdecimal() and not _alive(int(process))) or now - path.stat().st_mtime > STALE_SECONDS:
                    remove(path)
            except OSError:
                continue  # renamed by its owner, removed by somebody else, or not ours to remove

    def _made_by(self, path: Path) -> Mapping[str, Any]:
        try:
            made_by = json.loads(read_text(path.with_suffix(".made_by")))
        except (OSError, ValueError, RecursionError):
            return {}  # no result depends on the side file
        return made_by if isinstance(made_by, dict) and isinstance(made_by.get("label", ""), str) else {}

    def _record(self, key: str, content: Mapping[str, Any], made_by: Mapping[str, Any]) -> StoredCell:
        try:
            algorithm, versions, spec = content["algorithm"], content["versions"], content["spec"]
            payload = content["failure"] if content["status"] == "failed" else content["payload"]
            if not is_a_cell(content, payload):
                raise CorruptCell(f"{self.path(key)} is not what a cell is made of")
            cell = Cell(algorithm, versions, spec)
            if content["status"] == "failed":
                return StoredCell(key, cell, None, Failure(str(payload["cause"]), str(payload["traceback"])), made_by)
            return StoredCell(key, cell, _Payload(payload, self.path(key)), None, made_by)
        except KeyError as error:
            raise CorruptCell(f"{self.path(key)} lacks {error}") from error

    def _replace(self, path: Path, content: bytes, durable: bool) -> None:
        """Writes aside, then renames; `durable` waits for the disk, first for the content, then for the name."""
        aside = self._aside / f"{self._owner}{uuid4().hex}"
        with replacing(path, aside=aside, durable=durable):
            aside.write_bytes(content)
        if durable:
            _sync(path.parent)


def is_a_cell(content: Mapping[str, Any], outcome: Any) -> bool:
    """Whether the content of a file has the types that a cell and its outcome have.

    Raises:
        KeyError: something is missing.
    """
    parts = content["versions"], content["spec"], outcome
    return isinstance(content["algorithm"], str) and all(isinstance(part, Mapping) for part in parts)


class _Payload(dict[str, Any]):
    """A payload that names its file when a missing key is looked up."""

    def __init__(self, content: Mapping[str, Any], path: Path) -> None:
        super().__init__(content)
        self._path = path

    def __missing__(self, name: str) -> NoReturn:
        raise UsageError(f"{self._path} lacks {name!r}; delete it, and the study computes that cell again")


def digest_of(content: Mapping[str, Any]) -> str:
    """The digest that a cell's file must state for this content."""
    return digest({name: value for name, value in content.items() if name != "digest"})


def content_of(cell: Cell, outcome: Mapping[str, Any] | Failure) -> dict[str, Any]:
    """The content of a cell's file, with its digest."""
    content: dict[str, Any] = {"format": FORMAT, **cell.identity}
    if isinstance(outcome, Failure):
        content |= {"status": "failed", "failure": asdict(outcome)}
    else:
        content |= {"status": "done", "payload": outcome}
    return {**content, "digest": digest_of(content)}


def _written(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def _sync(folder: Path) -> None:
    """Waits until the names in a folder are on the disk, if the folder can be opened for that."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _alive(process: int) -> bool:
    if sys.platform == "win32":  # signal 0 would end a process there
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it belongs to somebody else, and is alive
    return True
