"""The rounds as they lie on disk, and the implementations they describe."""

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
_DECLARED = "\nmine = "  # where a base says itself what it is


@dataclass(frozen=True)
class Fault:
    """A base with one mistake; or, as a style, a base that is written in another way and still right."""

    name: str  # of the implementation
    framework: str  # torch, numpy or jax
    base: str  # what is patched, by its name
    area: str  # where the mistake lies, in its author's word
    fault: str  # what is wrong
    shown_by: str  # inputs on which it shows
    subtle: bool  # whether its author thought that it shows seldom
    # pairs of lines of the base and new ones; with none of the base, the new ones come after its functions and so
    # take the place of those of their names
    patches: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Round:
    """One author's work."""

    folder: Path  # `round_1`, ...
    written: str  # the date
    instructions: str  # what the author was told and what they read
    not_offered: Mapping[str, tuple[str, ...]]  # by framework, what its bases do not offer
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
            ValueError: a patch fits no place of the base, or several.
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

        It lies in the folder of its round and ends in its declaration; or in the folder that rounds share, where it
        is functions of CEM, the first of a framework or another way to write some of these, or a copy of an example.
        """
        return next(self.folder.parent.glob(f"**/bases/{name}.txt")).read_text()

    def module(self, name: str) -> str:
        """The text of a module that declares the implementation of that name as `mine`."""
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
        """The implementation of that name.

        Args:
            anew: whether its module is run once more, as in a new process.

        Raises:
            KeyError: there is none.
        """
        key = f"suites.blind.{self.folder.name}.{name}"
        if anew or key not in sys.modules:
            return cast(Subject, module_of(self.module(name), key).mine)
        return cast(Subject, sys.modules[key].mine)

    @property
    def names(self) -> list[str]:
        """All that can be asked: faults, styles and bases."""
        return [*self._by_name, *self.bases]

    def is_right(self, name: str) -> bool:
        """Whether it is a base or a style, which must not be called wrong."""
        return name in self.bases or self._by_name[name] in self.styles

    @cached_property
    def _by_name(self) -> dict[str, Fault]:
        return {fault.name: fault for fault in (*self.faults, *self.styles)}


def load(number: int) -> Round:
    """The round of that number.

    Raises:
        FileNotFoundError: there is none.
    """
    return read(DATA / f"round_{number}")


@cache
def read(folder: Path) -> Round:
    """The round that lies in a folder: `round.json`, `faults.json` and `styles.json`.

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
    """Where what was found about a round is kept."""
    return DATA / f"round_{number}" / "answers.json"


def answers(number: int) -> dict[str, dict[str, Any]]:
    """What was found about each implementation of a round that was asked."""
    file = answers_file(number)
    return json.loads(file.read_text()) if file.exists() else {}


def at_first(answer: Mapping[str, Any]) -> bool:
    """Whether it was called wrong when it was asked first."""
    return bool(answer.get("first", answer)["violated"])


def rounds() -> list[Round]:
    """All blind rounds, in the order in which they were held."""
    return sorted((read(path.parent) for path in DATA.glob("round_*/round.json")), key=lambda round_: round_.number)
