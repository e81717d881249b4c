"""What was asked of a worker that is lost: the question stands in a file, which survives the worker.

Each question is written down before it is asked, in a tenth of a millisecond. When a call never comes back or takes
its process along, the parent reads what the last question was, so that this violation too leaves a case behind. The
calls that the case makes are those that the reference is asked in its place, with its answers as the right ones.
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
class Notebook:
    """A file of one page: the question under way."""

    path: Path

    @classmethod
    def fresh(cls) -> Notebook:
        """An empty one, for one worker."""
        file, path = tempfile.mkstemp(prefix="cemverify-asked-")
        os.close(file)
        return cls(Path(path))

    def note(self, question: Any) -> None:
        """Overwrites the page; what cannot be written down leaves it empty."""
        try:
            content = pickle.dumps(Packed.of(question))
        except TypeError:
            content = b""
        # a full disk costs the page, and nothing else
        with contextlib.suppress(OSError), self.path.open("r+b") as page:
            page.write(len(content).to_bytes(_LENGTH, "little") + content)

    def read(self) -> Any | None:
        """The question; None if there is none, or the worker died while it wrote."""
        try:
            content = self.path.read_bytes()
            length = int.from_bytes(content[:_LENGTH], "little")
            # no more trusted than what comes through the pipe from the same process, and that is pickled too
            packed = pickle.loads(content[_LENGTH : _LENGTH + length]) if length else None  # noqa: S301
            return packed.unpacked() if isinstance(packed, Packed) else None
        except Exception:  # the implementation could write there, too
            return None

    def burn(self) -> None:
        """Removes the file; a second time does nothing."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def case_of(
    property_: Property, question: Any, dtype: torch.dtype, device: str, arrays: str, within: float
) -> Saved | None:
    """The question as a case to save, with the calls that the reference gets in its place.

    Args:
        arrays: the implementation's kind. within: seconds in which each call ought to have returned.
    """
    try:
        if property_.door != "cem":  # where there is no reference to ask
            packed = Packed.of(question)
            word = str(dtype).removeprefix("torch.")
            return Saved(packed.tree, word, device, arrays, packed.arrays, [], within=within)
        saved = save(Caller(load("reference"), dtype, device), property_.check, question)
    except Exception:  # the verdict stands all the same
        return None
    return None if saved is None else replace(saved, kind=arrays, within=within)
