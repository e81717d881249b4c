"""Which lines of its own files an implementation can reach, as its functions and what they name show.

The objects are followed: from its functions to what they close over and what they name, and from an instance to the
methods of its class whose names occur. What only ran at the import, such as a factory, is not reached that way.
"""

from __future__ import annotations

import dis
import gc
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import Tensor

_MOST = 50_000  # objects that are looked at
_BEGINS = ("RESUME", "COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR", "POP_TOP")
_PLAIN = (str, bytes, int, float, complex, Tensor, CodeType, type(None))


def reachable_lines(subject: Any, modules: Mapping[str, ModuleType]) -> dict[str, set[int]] | None:
    """By file, the lines of the functions that an implementation can call; None if there is too much to look at.

    Args:
        modules: its own, by file.
    """
    walk = _Walk(modules, [subject])
    while walk.queue:
        if len(walk.seen) > _MOST:
            return None
        walk.look_at(walk.queue.pop())
        if not walk.queue:
            walk.queue += [member for kind in walk.classes for member in walk.methods(kind) if walk.is_new(member)]
    return walk.lines


@dataclass
class _Walk:
    """What has been looked at, and what comes next."""

    modules: Mapping[str, ModuleType]
    queue: list[Any]
    seen: dict[int, Any] = field(default_factory=dict)  # kept, so that no other object gets its number
    names: set[str] = field(default_factory=set)  # that the functions use
    classes: list[type] = field(default_factory=list)
    made: set[type] = field(default_factory=set)  # of classes that functions name, and so may make instances of
    lines: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def is_new(self, thing: Any) -> bool:
        """Whether an object is still to be looked at."""
        return id(thing) not in self.seen and not isinstance(thing, _PLAIN)

    def look_at(self, thing: Any) -> None:
        """Queues what follows from an object."""
        if not self.is_new(thing):
            return
        self.seen[id(thing)] = thing
        if isinstance(thing, FunctionType):
            self.queue += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__, vars(thing)]
            path = os.path.abspath(thing.__code__.co_filename)
            if path in self.modules:
                codes = list(_with_inner(thing.__code__))
                self.lines[path] |= {line for code in codes for line in _lines(code)}
                names = {name for code in codes for name in code.co_names}
                self.names |= names
                named = list(self._named(names, thing.__globals__))
                self.made |= {each for each in named if isinstance(each, type)}
                self.queue += named
        elif isinstance(thing, type):
            if any(module.__name__ == thing.__module__ for module in self.modules.values()):
                self.classes.append(thing)
                self.queue += thing.__mro__
        elif not isinstance(thing, ModuleType):
            self.queue += [*gc.get_referents(thing), type(thing)]

    def methods(self, kind: type) -> Iterator[Any]:
        """The members of a class that may be used: by name, by a library, or because an instance is made."""
        for name, member in vars(kind).items():
            inherited = any(hasattr(base, name) for base in kind.__mro__[1:])
            making = name in ("__init__", "__new__", "__post_init__")
            by_name = name in self.names or "getattr" in self.names or inherited or name.startswith("__")
            if kind in self.made if making else by_name:
                yield member

    def _named(self, names: set[str], space: Mapping[str, Any]) -> Iterator[Any]:
        """What names stand for in a module, and in its own modules that they name or import."""
        of = [module for module in self.modules.values() if module.__name__.rpartition(".")[2] in names]
        of += [space[name] for name in names & space.keys() if isinstance(space[name], ModuleType)]
        spaces = (space, *(vars(module) for module in of if module in self.modules.values()))
        return (each[name] for each in spaces for name in names & each.keys())


def _lines(code: CodeType) -> Iterator[int]:
    """The lines of its instructions, without those that begin a call: they bear the line of the `def`."""
    for each in dis.get_instructions(code):
        if each.opname not in _BEGINS and each.positions is not None and each.positions.lineno is not None:
            yield each.positions.lineno


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those defined inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
