"""Where documents come from: the running Python's standard library, or files and folders.

Nothing is downloaded, because every Python installation contains its source. No text is in both parts: they are split
by file, duplicate files are left out, and a single file is split into two blocks.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cemverify.console.errors import UsageError

PartName = Literal["train", "validation"]
VALIDATION_SHARE = 26 / 256  # about a tenth

# encodings: about a hundred tables generated from one another; split by file, they would leak into validation.
SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings"}
)
SKIPPED_PREFIX = "_sysconfigdata"  # build settings, which differ between machines with the same version


@dataclass(frozen=True)
class Document:
    """One text of one part."""

    name: str  # where it is from, for people
    part: PartName  # which part it belongs to
    content: bytes  # its bytes, UTF-8 if text


@dataclass(frozen=True)
class DocumentSource:
    """A stream of documents."""

    name: str  # in tables; it must read well after "the"
    key: Mapping[str, Any]  # JSON that determines the content: equal keys mean equal documents
    documents: Callable[[], Iterable[Document]] = field(repr=False)  # starts the stream again
    unit: Literal["byte", "symbol"] = "byte"  # what a byte of it is called


def standard_library() -> DocumentSource:
    """The source text of the running Python's standard library, without its tests."""
    return python_source(Path(sysconfig.get_path("stdlib")), "standard library")


def python_source(root: Path, name: str) -> DocumentSource:
    """All *.py files below a folder except tests and installed packages, split by file."""
    paths = ((path, path.relative_to(root)) for path in root.rglob("*.py") if path.is_file())
    files = [
        (relative.as_posix(), path)
        for path, relative in paths
        if not SKIPPED_FOLDERS & set(relative.parts[:-1]) and not relative.name.startswith(SKIPPED_PREFIX)
    ]
    documents = _read(sorted(files))
    if len(documents) < 2:
        raise UsageError(f"no Python source to learn from below {root}: give a text with --text")
    return _split(name, documents)


def text_files(paths: Sequence[Path]) -> DocumentSource:
    """Files, and all files below folders except hidden and binary ones, split by file; a single file is split by
    block.
    """
    files: list[tuple[str, Path]] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"no file or folder {path} to read text from")
        if path.is_dir():
            below = ((p.relative_to(path), p) for p in sorted(path.rglob("*")) if p.is_file())
            files += [
                ((Path(path.name) / relative).as_posix(), p)
                for relative, p in below
                if not any(part.startswith(".") for part in relative.parts)
            ]
        elif not path.is_file():
            raise UsageError(f"{path} is neither a file nor a folder: a device or a pipe may never end; give a file")
        else:
            files.append((path.name, path))
    documents = [(name, content) for name, content in _read(files) if b"\0" not in content]
    names = ", ".join(map(str, paths))
    if not documents:
        raise UsageError(f"no text in {names}: every file there is empty, binary or hidden")
    title = f"text of {names}"
    if len(documents) == 1:
        return _split_block(title, *documents[0])
    return _split(title, documents)


def part_of(name: str) -> PartName:
    """ "validation" for about a tenth of all names, "train" for the rest; depends on the name alone."""
    return "validation" if _lot(name) < VALIDATION_SHARE else "train"


def _lot(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32


def _read(files: Iterable[tuple[str, Path]]) -> list[tuple[str, bytes]]:
    """Names and contents, without empty files and duplicates."""
    seen = set()
    documents = []
    for name, path in files:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
        fingerprint = hashlib.sha256(content).digest()
        if content and fingerprint not in seen:
            seen.add(fingerprint)
            documents.append((name, content))
    return documents


def _split(title: str, documents: Sequence[tuple[str, bytes]]) -> DocumentSource:
    """Splits by file. If chance leaves a part empty, the file nearest to the border changes sides."""
    parts: dict[str, PartName] = {name: part_of(name) for name, _ in documents}
    by_lot = sorted(parts, key=_lot)
    parts[by_lot[0]] = "validation"
    parts[by_lot[-1]] = "train"
    return _source(title, [Document(name, parts[name], content) for name, content in documents], "by file")


def _split_block(title: str, name: str, content: bytes) -> DocumentSource:
    """Puts the last tenth of a single file into validation; cuts at the end of a line if one is near."""
    cut = len(content) - max(1, round(len(content) * VALIDATION_SHARE))
    line = content.rfind(b"\n", 0, cut) + 1
    cut = line if line > cut / 2 else cut
    if cut < 1:
        raise UsageError(f"the {title} has {len(content)} bytes, too few for a training and a validation part")
    return _source(
        title, [Document(name, "train", content[:cut]), Document(name, "validation", content[cut:])], "by block"
    )


def _source(title: str, documents: Sequence[Document], split: str) -> DocumentSource:
    hashed = hashlib.sha256()
    for document in documents:
        hashed.update(f"{document.part} {document.name} {len(document.content)}\n".encode())
        hashed.update(document.content)
    key = {"kind": "files", "split": split, "documents": len(documents), "content": hashed.hexdigest()}
    return DocumentSource(title, key, lambda: documents)
