"""Hugging Face datasets, streamed: the paper's SlimPajama with the 32,000-token Llama tokeniser, or any other.

    python -m synthetic language train --dataset DKYoon/SlimPajama-6B --megabytes 500 --tokeniser huggyllama/llama-7b

Only the documents needed are downloaded: the stream ends when there are enough tokens. The text of a document decides
its part, so copies of it are always in the same part. A folder of files in a format of the hub (JSON lines, Parquet)
needs no network; its corpus is identified by the content of the files, not by their location.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cemverify.console.errors import UsageError
from synthetic.corpora.sources import Document, DocumentSource, part_of
from synthetic.corpora.tokenisers import hushed


@dataclass(frozen=True)
class DatasetSpec:
    """Which documents of which dataset."""

    name: str  # on the hub, or a local folder
    configuration: str | None = None  # of the dataset, if it has several
    split: str = "train"  # of it
    column: str = "text"  # which holds the text
    # a commit or tag of the dataset; without one, the newest, and equal keys may mean other text
    revision: str | None = None
    megabytes: float | None = None  # of text, after which the stream ends; None takes all


def dataset(spec: DatasetSpec) -> DocumentSource:
    """The documents of a dataset."""
    try:
        import datasets  # noqa: F401 - whether it is there
    except ModuleNotFoundError as error:
        raise UsageError(
            "--dataset needs the extra 'hub': pip install -c constraints.txt -e '.[bench,hub]'"
        ) from error

    content = _content(spec)

    def stream() -> Iterator[Document]:
        yield from _documents(spec)
        if _content(spec) != content:
            raise UsageError(f"the dataset {spec.name} changed while it was read; give the same command again")

    key = {"kind": "dataset", **asdict(spec), **content}
    return DocumentSource(f"dataset {spec.name}", key, stream)


def _documents(spec: DatasetSpec) -> Iterator[Document]:
    budget = float("inf") if spec.megabytes is None else spec.megabytes * 1e6
    for i, row in enumerate(_rows(spec)):
        if spec.column not in row:
            raise UsageError(
                f"the dataset {spec.name} has no column {spec.column!r}; its columns: {', '.join(map(str, row))}"
            )
        text = row[spec.column]
        if not isinstance(text, str):
            raise UsageError(f"the column {spec.column!r} of {spec.name} holds {type(text).__name__}, not text")
        if not text:
            continue
        content = text.encode("utf-8", errors="replace")
        yield Document(f"{spec.split} {i}", part_of(text), content)
        budget -= len(content)
        if budget <= 0:
            return


def _content(spec: DatasetSpec) -> dict[str, str]:
    """What replaces the name of a local folder in the key: a digest of its files."""
    root = Path(spec.name)
    if not os.path.isdir(root):  # false if the name is too long
        return {}
    hashed = hashlib.sha256()
    # the library recognises splits and formats by name; hidden folders belong to the tools that fetched the data
    for relative, path in sorted((path.relative_to(root), path) for path in root.rglob("*") if path.is_file()):
        if not any(part.startswith(".") for part in relative.parts[:-1]):
            try:
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
            hashed.update(f"{relative.as_posix()!r} {digest}\n".encode())
    return {"name": "folder", "content": hashed.hexdigest()}


def _rows(spec: DatasetSpec) -> Iterator[Mapping[str, Any]]:
    """The rows of the stream. Any error that ends it early becomes one sentence."""
    import datasets

    read = -1
    try:
        with hushed():
            rows = datasets.load_dataset(
                spec.name, spec.configuration, split=spec.split, revision=spec.revision, streaming=True
            )
            read = 0
            for row in rows:
                yield row
                read += 1
    except Exception as error:  # the network, the hub and the file raise many kinds
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300].rstrip('.')}"
        what, do = f"cannot be read on from about row {read:,}", "mend the file, or try again if it is on the hub"
        if read < 0:
            what, do = "is not available", "check its name, file or network"
        shorter = ", or end before that row with --megabytes" if read > 0 else ""
        raise UsageError(f"the dataset {spec.name} {what} ({reason}); {do}{shorter}") from error
