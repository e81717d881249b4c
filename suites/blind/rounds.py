"""The rounds on disk, and the implementations that they describe."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

from cemverify.conformance.implementations.contract import Subject
from cemverify.conformance.implementations.edited import edited, module_of

DATA = Path(__file__).with_name("data")
FUNCTIONS = ("attention", "mlp", "block", "decode", "attention_energy", "mlp_energy")
_DECLARED = "\nmine = "  # where a base declares itself


@dataclass(frozen=True)
class Fault:
    """A base with one mistake; or, as a style, a base that is written differently and still correct."""

    name: str  # of the implementation
    framework: str  # torch, numpy or jax
    base: str  # the name of what is patched
    area: str  # where the mistake is, in its author's word
    fault: str  # what is wrong
    shown_by: str  # inputs on which it shows
    subtle: bool  # whether its author expected it to show seldom
    # pairs of old lines of the base and new lines; without old lines, the new ones are added after the base's
    # functions and so replace those with the same names
    patches: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Round:
    """One author's work."""

    folder: Path  # `round_1`, ...
    written: str  # the date
    instructions: str  # what the author was told and had read
    not_offered: Mapping[str, tuple[str, ...]]  # the features that its bases lack, by framework
    faults: tuple[Fault, ...]
    bases: Mapping[str, str]  # names of its bases, with their framework
    styles: tuple[Fault, ...]  # correct implementations that look unusual

    @property
    def number(self) -> int:
        """1, 2, ..."""
        return int(self.folder.name.removeprefix("round_"))

    def source(self, name: str) -> str:
        """The source of a base, a fault or a style.

        Raises:
            ValueError: a patch fits nowhere in the base, or in several places.
        """
        if name not in self._by_name:
            text, first = self._base(name), f"base_{self.bases.get(name)}"
            return text if name == first or _DECLARED in text else f"{self._base(first)}\n\n{text}"
        fault = self._by_name[name]
        source = edited(self.source(fault.base), *(patch for patch in fault.patches if patch[0]))
        for _, new in (patch for patch in fault.patches if not patch[0]):
            functions, declared, rest = source.partition(_DECLARED)
            source = f"{functions}\n\n{new}\n{declared}{rest}"
        return source

    def _base(self, name: str) -> str:
        """The text of a base of any round, as its author wrote it.

        It is in its round's folder and ends with its declaration; or in the folder that rounds share, and consists of
        CEM functions (the first of a framework, or another way to write some) or is a copy of an example.
        """
        return next(self.folder.parent.glob(f"**/bases/{name}.txt")).read_text()

    def module(self, name: str) -> str:
        """The text of a module that declares the implementation with this name as `mine`."""
        source = self.source(name)
        if _DECLARED in source:
            return source
        framework = self.bases.get(name) or self._by_name[name].framework
        return f"""{source}


from cemverify import implementation

_functions = {{name: globals()[name] for name in {FUNCTIONS} if name in globals()}}
_missing = set({FUNCTIONS}) - set(_functions)
mine = implementation(
    **_functions,
    arrays={framework!r},
    not_offered=tuple({{*{tuple(self.not_offered[framework])}, *globals().get("NOT_OFFERED", ()), *_missing}}),
)
"""

    def implementation(self, name: str, *, anew: bool = False) -> Subject:
        """The implementation with this name.

        Args:
            anew: whether to run its module again, as in a new process.

        Raises:
            KeyError: there is none.
        """
        key = f"suites.blind.{self.folder.name}.{name}"
        if anew or key not in sys.modules:
            return cast(Subject, module_of(self.module(name), key).mine)
        return cast(Subject, sys.modules[key].mine)

    @property
    def names(self) -> list[str]:
        """All that can be tested: faults, styles and bases."""
        return [*self._by_name, *self.bases]

    def is_right(self, name: str) -> bool:
        """Whether it is a base or a style, which must pass."""
        return name in self.bases or self._by_name[name] in self.styles

    @cached_property
    def _by_name(self) -> dict[str, Fault]:
        return {fault.name: fault for fault in (*self.faults, *self.styles)}


def load(number: int) -> Round:
    """The round with this number.

    Raises:
        FileNotFoundError: there is none.
    """
    return read(DATA / f"round_{number}")


@cache
def read(folder: Path) -> Round:
    """The round in a folder: `round.json`, `faults.json` and `styles.json`.

    Raises:
        FileNotFoundError: one of these files is missing.
    """
    about, faults, styles = (json.loads((folder / f"{n}.json").read_text()) for n in ("round", "faults", "styles"))
    faults, styles = (
        tuple(Fault(**{**row, "patches": tuple((old, new) for old, new in row["patches"])}) for row in rows)
        for rows in (faults, styles)
    )
    absent = {framework: tuple(names) for framework, names in about.get("not_offered", {}).items()}
    return Round(folder, about["written"], about["instructions"], absent, faults, about["bases"], styles)


def answers_file(number: int) -> Path:
    """The file with the results of a round."""
    return DATA / f"round_{number}" / "answers.json"


def answers(number: int) -> dict[str, dict[str, Any]]:
    """The result for each implementation of a round that was tested."""
    file = answers_file(number)
    return json.loads(file.read_text()) if file.exists() else {}


def at_first(answer: Mapping[str, Any]) -> bool:
    """Whether it was called wrong when it was first tested."""
    return bool(answer.get("first", answer)["violated"])


def rounds() -> list[Round]:
    """All blind rounds, in the order in which they were held."""
    return sorted((read(path.parent) for path in DATA.glob("round_*/round.json")), key=lambda round_: round_.number)
