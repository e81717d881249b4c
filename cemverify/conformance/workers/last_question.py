"""The last question that a worker was asked, in a file that survives the worker.

Each question is written down before it is asked, which takes a tenth of a millisecond. When a call never returns or
kills its process, the parent reads the last question, so that this violation leaves a case behind too. The calls of
that case are recorded from the reference, which is asked in the lost worker's place and gives the right answers.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.contract import load
from cemverify.conformance.judging.recording import save
from cemverify.conformance.properties import Property
from cemverify.conformance.questions.saving import Packing, Saved, Tree, Values, restored

_LENGTH = 8  # bytes that say how many follow


@dataclass(frozen=True)
class Packed:
    """A question that can travel between processes."""

    tree: Tree
    arrays: Mapping[str, Values]

    @classmethod
    def of(cls, question: Any) -> Packed:
        """A question as plain data.

        Raises:
            TypeError: it holds what cannot be saved.
        """
        packing = Packing()
        return cls(packing.tree(question), packing.arrays)

    def unpacked(self) -> Any:
        """The question."""
        return restored(self.tree, self.arrays)


@dataclass(frozen=True)
class LastQuestion:
    """A file that holds the current question."""

    path: Path

    @classmethod
    def empty(cls) -> LastQuestion:
        """A new file, for one worker."""
        file, path = tempfile.mkstemp(prefix="cemverify-asked-")
        os.close(file)
        return cls(Path(path))

    def write(self, question: Any) -> None:
        """Replaces the question; one that cannot be saved leaves the file empty."""
        try:
            content = pickle.dumps(Packed.of(question))
        except TypeError:
            content = b""
        # a full disk costs the question, and nothing else
        with contextlib.suppress(OSError), self.path.open("r+b") as file:
            file.write(len(content).to_bytes(_LENGTH, "little") + content)

    def read(self) -> Any | None:
        """The question; None if there is none, or if the worker died while writing it."""
        try:
            content = self.path.read_bytes()
            length = int.from_bytes(content[:_LENGTH], "little")
            # trusted no more than what comes through the pipe from the same process, and that is pickled too
            packed = pickle.loads(content[_LENGTH : _LENGTH + length]) if length else None  # noqa: S301
            return packed.unpacked() if isinstance(packed, Packed) else None
        except Exception:  # the implementation could write there, too
            return None

    def remove(self) -> None:
        """Removes the file. Calling it again does nothing."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def case_of(
    property_: Property, question: Any, dtype: torch.dtype, device: str, arrays: str, within: float
) -> Saved | None:
    """The question as a case to save, with the calls recorded from the reference.

    Args:
        arrays: the implementation's kind. within: seconds in which each call should have returned.
    """
    try:
        if property_.door != "cem":  # there is no reference to ask
            packed = Packed.of(question)
            word = str(dtype).removeprefix("torch.")
            return Saved(packed.tree, word, device, arrays, packed.arrays, [], within=within)
        saved = save(Caller(load("reference"), dtype, device), property_.check, question)
    except Exception:  # the verdict stands all the same
        return None
    return None if saved is None else replace(saved, kind=arrays, within=within)
