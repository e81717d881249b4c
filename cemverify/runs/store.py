"""A folder with one small file for each finished cell, named by the cell's key.

    STORE/3f/3f9c….json          what was asked and what came of it; the same bytes whoever computes it, and whenever
    STORE/3f/3f9c….made_by       the side file: seconds, host, date, library versions
    STORE/aside/                 files being written; renamed into place when they are complete

There are no locks. Two processes that compute the same cell write the same bytes, so the second rename changes
nothing. A process that is killed leaves at most one file in aside/, which the next run on that machine removes. To
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

# A file from another machine that has lain in aside/ for longer than this was left by a process that is gone.
STALE_SECONDS = 24 * 3600


class CorruptCell(Exception):
    """A file that is not what was written: truncated, edited, or of another format."""


@dataclass(frozen=True)
class Failure:
    """Why a cell has no payload."""

    cause: str  # one line
    traceback: str = ""  # of the worker, may be empty


@dataclass(frozen=True)
class StoredCell:
    """A cell and what came of it: either a payload or a failure."""

    key: str  # of the cell
    cell: Cell  # as it was asked, without cost and label
    payload: Mapping[str, Any] | None  # what its algorithm returned
    failure: Failure | None  # why it returned nothing
    made_by: Mapping[str, Any]  # the side file (label, seconds, host, created, versions ...); empty if it is lost


class CellStore:
    """A folder of cells, one file for each. Reading changes nothing in it.

    Args:
        folder: need not exist before something is put.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._aside = folder / "aside"
        self._owner = f"{socket.gethostname()}+{os.getpid()}+"  # no host name has a plus

    def require_writable(self) -> None:
        """Makes the folder where it is missing, and refuses one in which no file can be made."""
        try:
            self._aside.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._aside):
                pass  # it has no name that an interrupt could leave behind
        except OSError as error:
            raise UsageError(
                f"the store {self.folder} cannot be written ({error.strerror or error}); "
                "name another folder with --store"
            ) from error

    def path(self, key: str) -> Path:
        """Where a cell lies, or would lie."""
        return self.path_in(self.folder, key)

    @staticmethod
    def path_in(folder: Path, key: str) -> Path:
        """Where a cell lies in a store, without opening it."""
        return folder / key[:2] / f"{key}.json"

    def put(
        self, cell: Cell, outcome: Mapping[str, Any] | Failure, made_by: Mapping[str, Any] | None = None
    ) -> StoredCell:
        """Stores what came of a cell. Once this has returned, the file survives a power cut.

        Args:
            outcome: the payload, or why there is none. made_by: what the side file says.
        """
        content = content_of(cell, outcome)
        path = self.path(cell.key)
        try:
            self._aside.mkdir(parents=True, exist_ok=True)
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
                _sync(self.folder)
            # the side file first: where a cell is, its side file is
            side = path.with_suffix(".made_by")
            self._replace(side, _written(made_by or {}), durable=False)
            try:
                self._replace(path, _written(content), durable=True)
            except BaseException:  # an interrupt, too, leaves no side file alone
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
            CorruptCell: what lies there is not what was written.
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
        """Removes what killed processes left aside."""
        host, now = f"{socket.gethostname()}+", time.time()
        for path in self._aside.iterdir() if self._aside.is_dir() else ():
            try:
                process = path.name.removeprefix(host).split("+")[0] if path.name.startswith(host) else ""
                if (process.isdecimal() and not _alive(int(process))) or now - path.stat().st_mtime > STALE_SECONDS:
                    remove(path)
            except OSError:
                continue  # renamed by its owner, or removed by somebody else, or not ours to remove

    def _made_by(self, path: Path) -> Mapping[str, Any]:
        try:
            made_by = json.loads(read_text(path.with_suffix(".made_by")))
        except (OSError, ValueError, RecursionError):
            return {}  # no result depends on it
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
        """Writes aside, then renames; durable waits for the disk, for the content first and then for the name."""
        aside = self._aside / f"{self._owner}{uuid4().hex}"
        with replacing(path, aside=aside, durable=durable):
            aside.write_bytes(content)
        if durable:
            _sync(path.parent)


def is_a_cell(content: Mapping[str, Any], outcome: Any) -> bool:
    """Whether what stands in a file is of the types that a cell and its outcome have.

    Raises:
        KeyError: something is missing.
    """
    parts = content["versions"], content["spec"], outcome
    return isinstance(content["algorithm"], str) and all(isinstance(part, Mapping) for part in parts)


class _Payload(dict[str, Any]):
    """A payload that names its file to whoever looks for something that it lacks."""

    def __init__(self, content: Mapping[str, Any], path: Path) -> None:
        super().__init__(content)
        self._path = path

    def __missing__(self, name: str) -> NoReturn:
        raise UsageError(f"{self._path} lacks {name!r}; delete it, and the study computes that cell again")


def digest_of(content: Mapping[str, Any]) -> str:
    """The digest that the content of a cell's file is to claim."""
    return digest({name: value for name, value in content.items() if name != "digest"})


def content_of(cell: Cell, outcome: Mapping[str, Any] | Failure) -> dict[str, Any]:
    """What the file of a cell holds, with its digest."""
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
    """Waits until the names in a folder are on the disk, where a folder can be opened for that."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _alive(process: int) -> bool:
    if sys.platform == "win32":  # where to send a process signal 0 is to end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, and alive
    return True
