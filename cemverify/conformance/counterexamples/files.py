"""Counterexamples to pass on: the smallest case of a violation as three files in one folder.

    NAME.npz    every array, exactly
    NAME.json   a result of kind "counterexample": the property, the case, both sides, what made it
    NAME.py     the script of `standalone`, which asks the implementation the same without this package

`cemverify replay NAME.json` tests the property itself on that case.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.counterexamples import standalone
from cemverify.conformance.counterexamples.demands import demands_of
from cemverify.conformance.implementations import named_parameters
from cemverify.conformance.implementations.naming import installed
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.questions.saving import Saved, dtype_of, restored
from cemverify.results.envelope import ResultError, Table, read, result, write, write_bytes
from cemverify.results.provenance import Maker


@dataclass(frozen=True)
class Counterexample:
    """A saved case, read back."""

    implementation: str  # the name under which it was found
    property: str  # the property's id
    question: Any  # the property's question
    # dtype, device: those of the arrays
    dtype: torch.dtype
    device: str
    reason: str  # what was found when it was saved
    # if a call did not return, the seconds that it had; otherwise None
    within: float | None = None
    stated_in: str | None = None  # the module that states the property, if it is not in the catalogue
    # values for an energy layer's parameters, by name
    parameters: Mapping[str, Tensor] = field(default_factory=dict)


def save_all(event: RunFinished, folder: Path, maker: Maker) -> list[Path]:
    """Writes every violation that has a case, and returns the files for `replay`.

    A violation without a case is something that an implementation did to its process outside a question.
    """
    violated = [r for r in event.records if r.verdict == Verdict.VIOLATED]
    return [_save(event.implementation, r, r.saved, folder, maker) for r in violated if r.saved is not None]


def files_of(path: Path) -> list[Path]:
    """The three files of a counterexample, given one of them."""
    if not path.name.strip("."):
        raise ResultError(f"{path} is a folder; give the .json file of a counterexample")
    return [path.with_suffix(suffix) for suffix in (".json", ".npz", ".py")]


def check_apart(folder: Path, properties: Iterable[str], paths: Iterable[Path]) -> None:
    """Refuses files whose names a counterexample saved to the folder may have.

    Args:
        properties: ids of those that may be saved.
    """
    names = {_stem(id_) for id_ in properties}
    for path in paths:
        if path.stem in names and path.parent.resolve() == folder.resolve():
            raise ResultError(f"{path} has the name of a counterexample that may be saved there; rename it")


def load_counterexample(path: Path) -> Counterexample:
    """Reads the JSON, given any of the three files, and the arrays beside it."""
    named, path = path, files_of(path)[0]
    if named.exists() and not path.exists():
        words = "is no saved counterexample: {} is not beside it; give the .json that was saved"
        raise ResultError(f"{named} {words.format(path.name)}")
    content = read(path)
    if content["kind"] != "counterexample":
        raise ResultError(f"{path} is a result of kind {content['kind']!r}, not a saved counterexample")
    arrays = _arrays(path.with_name(str(content.get("arrays"))))
    try:
        record, saved = content["property"], content["asked"]
        numbers = saved.get("parameters", {})
        return Counterexample(
            implementation=content["implementation"],
            property=record["id"],
            question=restored(saved["question"], arrays),
            dtype=dtype_of(saved["dtype"]),
            device=saved["device"],
            reason=record["reason"],
            within=saved.get("within"),
            stated_in=record.get("stated_in"),
            parameters={name: torch.from_numpy(arrays[of]).double() for name, of in numbers.items()},
        )
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        raise ResultError(f"{path} cannot be replayed ({error}); save it again with this version") from error


def _save(implementation: str, record: Record, saved: Saved, folder: Path, maker: Maker) -> Path:
    stem = folder / _stem(record.id)
    arrays = stem.with_suffix(".npz")
    content = BytesIO()
    numbers: dict[str, Any] = dict(saved.arrays)
    np.savez(content, **numbers)
    write_bytes(arrays, content.getvalue())
    table = Table(f"Counterexample to {record.id}", ("what", "value"), _rows(implementation, record))
    payload = {
        "implementation": resolved(implementation),
        "property": record.describe(),
        "arrays": arrays.name,
        "asked": {
            "question": saved.question,
            "dtype": saved.dtype,
            "device": saved.device,
            "kind": saved.kind,
            "calls": [
                {**asdict(call), "demands": demands}
                for call, demands in zip(saved.calls, demands_of(record, saved), strict=True)
            ],
            "linear": saved.linear,
            "within": saved.within,
            "parameters": dict(saved.parameters),
        },
    }
    write(stem.with_suffix(".json"), result("counterexample", maker, [table], payload))
    # the source of `standalone`, and of the module that puts weights into modules
    script, loader = map(inspect.getsource, (standalone, named_parameters))
    given = f"NAMED_PARAMETERS = r'''{loader}'''"
    write_bytes(stem.with_suffix(".py"), script.replace('NAMED_PARAMETERS = ""', given, 1).encode())
    return stem.with_suffix(".json")


def _stem(id_: str) -> str:
    return id_.replace("/", "-")


def _rows(implementation: str, record: Record) -> Sequence[Sequence[str]]:
    rows = [("implementation", implementation), ("claim", record.claim), ("source", record.source)]
    rows += [("cause", record.cause or ""), ("reason", record.reason or "")]
    return rows + ([("part", f"{record.part}: {record.because}")] if record.part else [])


def resolved(name: str) -> str:
    """The name as module:attribute, also for an entry point."""
    return name if ":" in name else installed().get(name, name)


def _arrays(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except OSError as error:
        raise ResultError(
            f"cannot read {path}: {error.strerror or error}; it belongs next to the JSON file"
        ) from error
    except Exception as error:  # a damaged archive raises many kinds
        raise ResultError(f"{path} contains no arrays ({error}); is it truncated? Save it again") from error
