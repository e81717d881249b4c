"""The rounds as they lie on disk, and the implementations they describe."""

from __future__ import annotations

import json
import linecache
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from cemverify.conformance.implementations.contract import Subject

HERE = Path(__file__).parent
BASES = HERE / "bases"
EXAMPLES = HERE.parents[1] / "examples" / "energy_layers"
KINDS = ("faults", "styles")
FUNCTIONS = ("attention", "mlp", "block", "decode", "attention_energy", "mlp_energy")


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
    # names of its bases, with their framework: functions of CEM in the folder that rounds share; or, where the folder
    # of the round has `bases`, files there (.py, or as data .txt) that end in their own declaration, `mine = ...`
    bases: Mapping[str, str]
    styles: tuple[Fault, ...]  # correct implementations that look unusual

    @property
    def number(self) -> int:
        """1, 2, ..."""
        return int(self.folder.name.removeprefix("round_"))

    @property
    def declares(self) -> bool:
        """Whether its bases declare themselves what they are."""
        return (self.folder / "bases").is_dir()

    def source(self, name: str) -> str:
        """The source of a base, a fault or a style.

        A shared base that is another way to write its framework's first one is appended to that. A round that has
        bases of its own may patch those of earlier rounds and the examples, too.

        Raises:
            ValueError: a patch fits no place of the base, or several.
            KeyError: no such implementation.
        """
        if self.declares and name not in self._by_name:
            earlier = (self.folder.with_name(f"round_{number}") / "bases" for number in range(self.number, 0, -1))
            files = (folder / f"{name}{kind}" for folder in (*earlier, EXAMPLES) for kind in (".py", ".txt"))
            return next(file for file in files if file.exists()).read_text()
        if name in self.bases:
            first = f"base_{self.bases[name]}"
            return "\n\n".join((BASES / f"{part}.py").read_text() for part in dict.fromkeys((first, name)))
        fault = self._by_name[name]
        source = self.source(fault.base)
        for old, new in fault.patches:
            if not old:
                functions, declaration, rest = source.partition("\nmine = ")
                source = f"{functions}\n\n{new}\n{declaration}{rest}"
                continue
            if source.count(old) != 1:
                raise ValueError(f"{name}: {source.count(old)} places of {fault.base} read {old!r}")
            source = source.replace(old, new)
        return source

    def module(self, name: str) -> str:
        """The text of a module that declares the implementation of that name as `mine`."""
        if self.declares:
            return self.source(name)
        framework = self.bases.get(name) or self._by_name[name].framework
        return f"""{self.source(name)}


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
        if anew:
            sys.modules.pop(key, None)
        return cast(Subject, _module(key, self.module(name)).mine)

    @property
    def names(self) -> list[str]:
        """All that can be asked: faults, styles and bases."""
        return [*self._by_name, *self.bases]

    def is_right(self, name: str) -> bool:
        """Whether it is a base or a style, which must not be called wrong."""
        return name in self.bases or self._by_name[name] in self.styles

    @property
    def _by_name(self) -> dict[str, Fault]:
        return {fault.name: fault for fault in (*self.faults, *self.styles)}


def load(number: int) -> Round:
    """The round of that number.

    Raises:
        FileNotFoundError: there is none.
    """
    return read(HERE / f"round_{number}")


@cache
def read(folder: Path) -> Round:
    """The round that lies in a folder: `round.json`, `faults.json`, `styles.json`, and `bases` if it has its own.

    Raises:
        FileNotFoundError: one of these files is missing.
    """
    about: dict[str, Any] = json.loads((folder / "round.json").read_text())
    faults, styles = (
        tuple(
            Fault(**{**row, "patches": tuple((old, new) for old, new in row["patches"])})
            for row in json.loads((folder / f"{kind}.json").read_text())
        )
        for kind in ("faults", "styles")
    )
    return Round(
        folder,
        about["written"],
        about["instructions"],
        {framework: tuple(names) for framework, names in about.get("not_offered", {}).items()},
        faults,
        about["bases"],
        styles,
    )


def answers_file(number: int) -> Path:
    """Where what was found about a round is kept."""
    return HERE / f"round_{number}" / "answers.json"


def answers(number: int) -> dict[str, dict[str, Any]]:
    """What was found about each implementation of a round that was asked."""
    file = answers_file(number)
    return json.loads(file.read_text()) if file.exists() else {}


def at_first(answer: Mapping[str, Any]) -> bool:
    """Whether it was called wrong when it was asked first."""
    return bool(answer.get("first", answer)["violated"])


def rounds() -> list[Round]:
    """All blind rounds, in the order in which they were held."""
    return sorted((read(path.parent) for path in HERE.glob("round_*/round.json")), key=lambda round_: round_.number)


def _module(name: str, source: str) -> ModuleType:
    """A module of that source, whose lines tracebacks can show."""
    if name not in sys.modules:
        module = ModuleType(name)
        module.__file__ = file = f"<{name}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        sys.modules[name] = module  # dataclasses look there for their module
        exec(compile(source, file, "exec"), module.__dict__)  # noqa: S102 -- a patched base of ours
    return sys.modules[name]
