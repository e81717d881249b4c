"""Result files: one small versioned JSON schema for the verifier and for the studies.

Every file says what made it. Every kind has its own payload, in the same envelope:

    schema          "cemverify.result"
    schema_version  1
    kind            "check", "counterexample", "claims", "power", "recursion", "language", "examine", "atlas",
                    "benchmarks", "gpu", "readings", "list", "repair"
    suite_version   the version of this package
    made_by         {command, configuration, seed, versions, device, commit, created, duration_seconds}
    tables          [{title, columns, rows}], for people; `python -m reports tables` renders them

Files are written aside and renamed, so a reader never sees half of one.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from cemverify._version import VERSION
from cemverify.console.errors import Refusal
from cemverify.console.escaping import visible
from cemverify.processes.atomic_files import sweep
from cemverify.processes.inputs import read_text
from cemverify.processes.targets import Target, put, target_of
from cemverify.results.provenance import Maker

SCHEMA = "cemverify.result"
SCHEMA_VERSION = 1

KINDS = (
    "check", "counterexample", "claims", "power", "recursion", "language", "examine", "atlas", "benchmarks", "gpu",
    "readings", "list", "repair",
)  # fmt: skip

Cell = str | int | float | bool | None


class ResultError(Refusal):
    """A result file cannot be read or written; the message is one sentence for the user."""


@dataclass(frozen=True)
class Table:
    """A table of a result, for people.

    A result file keeps the title, the columns and the rows.
    """

    title: str  # one line
    columns: Sequence[str]  # the headings
    rows: Sequence[Sequence[Cell]]  # cells are ready to print: text, or numbers that need no further rounding
    rules: Sequence[int] = ()  # the numbers of the rows above which a line is drawn, to set groups of rows apart
    notes: Sequence[str] = ()  # footnotes, printed below the table
    label: str = ""  # what LaTeX refers to it by


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


def check_outputs(
    *paths: Path | None,
    page: Path | None = None,
    pictured: Path | None = None,
    updated: Path | None = None,
    folders: Iterable[Path | None] = (),
    stores: Iterable[Path] = (),
    read: Iterable[Path | None] = (),
) -> None:
    """Checks, before the work, that outputs can be written and overwrite neither each other nor what is read.

    Paths are compared by what they lead to, through links and however they are written. An output may be a stream
    (`cemverify.processes.targets`); if it is stdout, whatever a command prints goes to stderr from now on. No file is
    changed.

    Args:
        paths: of files; None for one that was not requested.
        page: of a page with its readings beside it, in a file of the same name that ends in .json, and pictures.
        pictured: of a page with pictures beside it. updated: of a file that is read first.
        folders: into which files are written. stores: folders that need not be writable if they are complete.
        read: what the outputs are made of; a folder stands for the Python files below it.
    """
    if page is not None and not page.name:
        raise ResultError(f"cannot write {page}: it is a folder; give a file name")
    readings = page and page.with_suffix(".json")
    outputs = [path for path in (*paths, updated, pictured, page, readings) if path is not None]
    targets = [(path, _writable(path)) for path in outputs]
    for path, why in ((page, "has files beside it"), (pictured, "has files beside it"), (updated, "is read first")):
        if path is not None and _writable(path).stream:
            raise ResultError(f"cannot write {path}: it {why}, so it has to be a regular file")
        if path is not None and path != updated:
            _writable(path.with_name(f"{path.stem}-and-what-a-picture-shows.svg"))  # such a name may be too long
    files = [(path, target.place) for path, target in targets if not target.stream]
    if len({place for _, place in files}) < len(files):
        if readings is not None and readings != page:
            raise ResultError(f"--page writes {readings} too; give --output another name")
        raise ResultError("two outputs have the same path; give each its own")
    within = list(files)
    for folder in filter(None, folders):
        if folder.exists() and not folder.is_dir():
            raise ResultError(
                f"cannot write into {folder}: it is not a folder; name a folder, it is created if needed"
            )
        within.append((folder, _writable(folder / "file").place))
    for store in stores:
        place = Path(os.path.realpath(store))
        if (there := next((above for above in (place, *place.parents) if above.exists()), place)).is_file():
            raise ResultError(f"{store} cannot be written: {there} is a file; name a folder")
        within.append((store, place / "file"))
    for path, place in files:
        if inside := [other for other, below in within if place in below.parents]:
            raise ResultError(f"{path} cannot be a file, and a folder for {inside[0]}; give it another path")
        if any(_is_read(place, source) for source in read if source is not None):
            raise ResultError(f"{path} is read, and would be overwritten; give the output another path")
    if any(target.descriptor == 1 for _, target in targets):
        sys.stdout = sys.stderr


def _writable(path: Path) -> Target:
    """What a path that can be written leads to."""
    try:
        target = target_of(path)
        if not target.stream:
            nearest = next(parent for parent in target.place.parents if parent.exists())
            try:
                TemporaryFile(dir=nearest).close()  # leaves nothing behind; permissions alone do not decide
            except OSError as error:
                raise OSError(f"no file can be created in {nearest} ({error.strerror or error})") from error
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}") from error
    return target


def _is_read(place: Path, source: Path) -> bool:
    """Whether an output would overwrite an input, or a module of a package that is one."""
    try:
        if source.is_dir():
            return place.suffix == ".py" and place.exists() and source.resolve() in place.parents
        return place == Path(os.path.realpath(source)) or place.samefile(source)
    except OSError:
        return False  # one of them does not exist; reading it would report that


def show(text: str) -> None:
    """Prints what a command found; text from files in it cannot control the terminal."""
    print(visible(text), flush=True)


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a result as JSON; non-finite numbers become null, as JSON has none."""
    write_text(path, json.dumps(finite(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text file; otherwise as `write_bytes`."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, making the folders it needs, or writes to the stream that the path names."""
    sweep(path.parent)
    try:
        put(path, content)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}") from error


def read(path: Path) -> dict[str, Any]:
    """Reads a result and checks it against the schema."""
    content = read_json(path)
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ResultError(f"{path} is not a result file: its schema is not {SCHEMA!r}")
    if (version := content.get("schema_version")) != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        mend = (
            "update cemverify, or read the file with the version that wrote it" if newer else "create the file again"
        )
        about = f"has schema version {repr(version)[:60]}; this package reads version {SCHEMA_VERSION}"
        raise ResultError(f"{path} {about}: {mend}")
    missing = [key for key in ("kind", "suite_version", "made_by", "tables") if key not in content]
    if missing:
        raise ResultError(f"{path} lacks {', '.join(missing)}")
    if (fault := flaw(content, result_schema())) is not None:
        version = content["suite_version"]
        about = "is damaged" if version == VERSION else f"was written by cemverify {version!s:.20} and cannot be read"
        raise ResultError(f"{path} {about}{fault}; create it again")
    for table in content["tables"]:
        if any(len(row) != len(table["columns"]) for row in table["rows"]):
            raise ResultError(
                f"{path} is damaged: table {table['title']!r} has rows of unequal length; create it again"
            )
    return content


@contextmanager
def complete(path: Path, content: Mapping[str, Any]) -> Iterator[None]:
    """A context for reading a result's payload, of which the schema knows little: what is missing becomes a sentence.

    Args:
        content: of the file, as `read` returned it.
    """
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        StopIteration,
        TypeError,
        ValueError,
    ) as error:
        raise ResultError(
            f"{path} lacks what a result of kind {content['kind']!r} has ({error!r}); "
            f"cemverify {content['suite_version']} wrote it: create it again with this version"
        ) from error


def flaw(content: Any, schema: Mapping[str, Any]) -> str | None:
    """How a value violates a JSON schema: " at PLACE: what is wrong"; None if it does not."""
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(schema).iter_errors(content):
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        text = error.message if len(error.message) <= 200 else f"{error.message[:200]} ..."
        where = f" at {place.lstrip('.')}" if place else ""
        return f"{where}: {text}"
    return None


def read_json(path: Path) -> Any:
    """The content of a JSON file, without NaN, infinity, and numbers that a float cannot hold."""

    def number(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"no float can hold {digits if len(digits) < 20 else f'{digits[:20]}...'}")
        return int(digits) if digits.lstrip("-").isdecimal() else value

    try:
        return json.loads(read_text(path), parse_constant=number, parse_int=number, parse_float=number)
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror or error}") from error
    except RecursionError as error:
        raise ResultError(f"{path} is nested deeper than any result") from error
    except ValueError as error:
        raise ResultError(f"{path} cannot be read as JSON ({error}); is it truncated? Create it again") from error


@cache
def result_schema() -> dict[str, Any]:
    """The JSON schema of result files."""
    text = (resources.files("cemverify.results") / "result.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def tables_of(content: Mapping[str, Any]) -> list[Table]:
    """The tables of a result that was read."""
    return [Table(t["title"], t["columns"], t["rows"]) for t in content["tables"]]


def finite(value: Any) -> Any:
    """The value as JSON can hold it: infinity and NaN become None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value
