"""Result files: one small versioned JSON schema for the verifier and for the studies.

Every file says what made it. Around the payload of its kind stands the same envelope:

    schema          "cemverify.result"
    schema_version  1
    kind            "check", "counterexample", "claims", "power", "recursion", "language", "examine", "atlas",
                    "benchmarks", "gpu", "readings", "list"
    suite_version   the version of this package
    made_by         {command, configuration, seed, versions, device, commit, created, duration_seconds}
    tables          [{title, columns, rows}], what a person reads; `python -m reports tables` renders them

Files are written aside and renamed, so a reader never meets half of one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from cemverify._version import VERSION
from cemverify.console.errors import Refusal
from cemverify.processes.atomic_files import replacing, sweep
from cemverify.results.provenance import Maker

SCHEMA = "cemverify.result"
SCHEMA_VERSION = 1

# No result is nested deeper; what is comes from somebody else.
DEEPEST = 100
KINDS = (
    "check",
    "counterexample",
    "claims",
    "power",
    "recursion",
    "language",
    "examine",
    "atlas",
    "benchmarks",
    "gpu",
    "readings",
    "list",
)

Cell = str | int | float | bool | None


class ResultError(Refusal):
    """A result file cannot be read or written; the message is one sentence for the user."""


@dataclass(frozen=True)
class Table:
    """A table of a result, for people.

    Attributes:
        title: one line.
        columns: the headings.
        rows: cells are ready to print: text, or numbers that need no further rounding.
        rules: the numbers of the rows above which a line is drawn, to set groups of rows apart.
        notes: footnotes, printed below the table.

    A result file keeps the title, the columns and the rows.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    rules: Sequence[int] = ()
    notes: Sequence[str] = ()


def result(kind: str, maker: Maker, tables: Sequence[Table], payload: Mapping[str, Any]) -> dict[str, Any]:
    """A complete result: the envelope around the payload.

    Raises:
        ValueError: an unknown kind, or a payload key that the envelope uses.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown result kind {kind!r}; choose from {', '.join(KINDS)}")
    envelope = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "suite_version": VERSION,
        "made_by": maker.describe(),
        "tables": [{"title": t.title, "columns": t.columns, "rows": t.rows} for t in tables],
    }
    if clash := envelope.keys() & payload.keys():
        raise ValueError(f"the payload uses reserved keys: {', '.join(sorted(clash))}")
    return {**envelope, **payload}


def check_writable(path: Path) -> None:
    """Says before the work, rather than after it, that a file cannot be written; touches nothing.

    Raises:
        ResultError: the path is a folder, or no file can be made where it would lie.
    """
    if path.is_dir():
        raise ResultError(f"cannot write {path}: it is a folder; give a file name")
    if path.exists() and not path.is_file():
        raise ResultError(f"cannot write {path}: it is not a regular file")
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        TemporaryFile(dir=nearest).close()  # leaves nothing behind; permissions alone do not tell
    except OSError as error:
        reason = error.strerror or error
        raise ResultError(f"cannot write {path}: no file can be created in {nearest} ({reason})") from error


def check_folder(path: Path | None) -> None:
    """Checks before the work that files can be written to a folder, if one is asked for.

    Raises:
        ResultError: it is a file, or cannot be made.
    """
    if path is not None:
        if path.exists() and not path.is_dir():
            raise ResultError(f"cannot write into {path}: it is not a folder; name a folder, it is created if needed")
        check_writable(path / "file")


def check_outputs(*paths: Path | None, page: Path | None = None, read: Iterable[Path] = ()) -> None:
    """Checks before the work that outputs can be written and do not overwrite each other.

    Args:
        paths: of files, None where one is not asked for. page: of a page that has its readings beside it, in a file
            of the same name that ends in .json. read: what the outputs are made of.

    Raises:
        ResultError: a path cannot be written, two are the same, or one is read.
    """
    if page is not None and not page.name:
        raise ResultError(f"cannot write {page}: it is a folder; give a file name")
    given = [path for path in (*paths, page, page and page.with_suffix(".json")) if path is not None]
    for path in given:
        check_writable(path)
    if len({path.absolute() for path in given}) < len(given):
        beside = f" ({given[-1]} is for the readings of {page})" if page is not None else ""
        raise ResultError(f"two outputs have the same path; give each its own{beside}")
    for path in read:
        if path.absolute() in {output.absolute() for output in given}:
            raise ResultError(f"{path} is read, and would be overwritten; give the output another path")


def show(text: str) -> None:
    """Prints what a command found."""
    print(text, flush=True)


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a result as JSON; non-finite numbers become null, as JSON has none.

    Raises:
        ResultError: the file cannot be written.
    """
    write_text(path, json.dumps(finite(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text file; otherwise as `write_bytes`."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file aside and renames it into place, making the folders it needs.

    Raises:
        ResultError: the file cannot be written.
    """
    sweep(path.parent)
    try:
        with replacing(path) as aside:
            aside.write_bytes(content)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}") from error


def read(path: Path) -> dict[str, Any]:
    """Reads a result and checks it against the schema.

    Raises:
        ResultError: it is missing, not JSON, nested more than `DEEPEST` levels deep, not a result, damaged, or of a
            version this package does not know.
    """
    content = read_json(path)
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ResultError(f"{path} is not a result file: its schema is not {SCHEMA!r}")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise ResultError(f"{path} {_about_version(content.get('schema_version'))}")
    missing = [key for key in ("kind", "suite_version", "made_by", "tables") if key not in content]
    if missing:
        raise ResultError(f"{path} lacks {', '.join(missing)}")
    if (found := flaw(content, result_schema())) is not None:
        raise ResultError(f"{path} is damaged{found}; create it again")
    return content


def flaw(content: Any, schema: Mapping[str, Any]) -> str | None:
    """How a value departs from what a JSON schema describes: " at PLACE: what is wrong"; None if it does not."""
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(schema).iter_errors(content):
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        said = error.message if len(error.message) <= 200 else f"{error.message[:200]} ..."
        where = f" at {place.lstrip('.')}" if place else ""
        return f"{where}: {said}"
    return None


def _about_version(given: Any) -> str:
    about = f"has schema version {repr(given)[:60]}; this package reads version {SCHEMA_VERSION}"
    if isinstance(given, int) and given > SCHEMA_VERSION:
        return f"{about}: update cemverify, or read the file with the version that wrote it"
    return f"{about}: create the file again"


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        ResultError: it is missing, not JSON (which has no NaN), or nested more than `DEEPEST` levels deep.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror or error}") from error
    except RecursionError as error:
        raise ResultError(f"{path} is nested more than {DEEPEST} levels deep, which no result is") from error
    except ValueError as error:
        raise ResultError(f"{path} is not JSON ({error}); is it truncated? Create it again") from error
    if _is_deeper(content, DEEPEST):
        raise ResultError(f"{path} is nested more than {DEEPEST} levels deep, which no result is")
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _is_deeper(content: Any, levels: int) -> bool:
    """Whether a value is nested more than so many levels deep."""
    row = [content]
    for _ in range(levels):
        row = [
            inner
            for value in row
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]
        if not row:
            return False
    return True


@cache
def result_schema() -> dict[str, Any]:
    """The JSON schema of result files."""
    text = (resources.files("cemverify.results") / "result.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def tables_of(content: Mapping[str, Any]) -> list[Table]:
    """The tables of a result that was read."""
    return [Table(t["title"], t["columns"], t["rows"]) for t in content["tables"]]


def finite(value: Any) -> Any:
    """The value as JSON can hold it: infinity and NaN become None, wherever they stand."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value
