"""The functions in a file: their names and lines, and the names in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from cemverify.conformance.implementations.origin import Place
from cemverify.conformance.source.reading.code import OwnCode
from cemverify.conformance.source.reading.own import source_lines

_BY_A_LIBRARY = ("forward", "backward", "setup_context", "__init__", "__call__")  # methods that a library calls
_DECLARES = {"implementation", "implementation_from_modules", "energy_layer", "online_layer"}
_HANDS_OVER = "functional_call"  # torch's, which calls a module with given parameters


@dataclass(frozen=True)
class Function:
    """A function of a file."""

    name: str  # with its class, as in "ShortConv.forward"
    called: str  # the name by which it is called; its class's if a library calls it
    # its first line and its last one
    line: int
    last: int
    lines: frozenset[int]  # of its body, without those of functions inside it
    words: frozenset[str]  # the names in the body
    calls: frozenset[str]  # the names that it calls

    @property
    def is_constructor(self) -> bool:
        """Whether it constructs an object of its class."""
        return self.name.endswith("__init__")

    def began(self, statements: Collection[int], ran: Collection[int]) -> bool:
        """Whether it was called: its own first statement ran, not only a function inside it."""
        return min(self.lines.intersection(statements), default=0) in ran


def functions_in(text: str) -> Iterator[Function]:
    """The functions in the text of a file, outer ones before those inside them.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it cannot be parsed.
    """
    texts = source_lines(text)

    def inside(node: ast.AST, of: str) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                last, name = child.end_lineno or child.lineno, child.name
                inner = [n for n in ast.walk(child) if n is not child and isinstance(n, ast.FunctionDef)]
                lines = set(range(child.body[0].lineno, last + 1))
                lines -= {line for n in inner for line in range(n.lineno + 1, (n.end_lineno or 0) + 1)}
                called = of if of and name in _BY_A_LIBRARY else name
                words = frozenset(word for line in lines for word in re.findall(r"\w+", texts[line - 1]))
                full, calls = f"{of}.{name}" if of else name, _calls(child)
                yield Function(full, called, child.lineno, last, frozenset(lines), words, calls)
            yield from inside(child, child.name if isinstance(child, ast.ClassDef) else "")

    return inside(ast.parse(text), "")


def called_at_import(text: str) -> frozenset[str]:
    """The names of what the lines outside a file's functions call; raises what `functions_in` does."""
    return _calls(ast.parse(text))


def _calls(tree: ast.AST) -> frozenset[str]:
    """The names that a tree calls, without the functions inside it."""

    def outside(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                yield child
                yield from outside(child)

    functions = (node.func for node in outside(tree) if isinstance(node, ast.Call))
    return frozenset(getattr(function, "id", getattr(function, "attr", "")) for function in functions)


def places_of(code: OwnCode, lines: Mapping[str, Collection[int]]) -> tuple[Place, ...]:
    """The functions that these lines, by path, belong to, those with most of the lines first.

    Leaves out constructors, and functions that declare a layer, where only lambdas ran. Puts last those that make a
    module or hand arrays to one, as adapters do.
    """
    try:
        read = [(file, each) for file in code.files if file.path in lines for each in functions_in(file.text)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the text comes from the implementation's process
        return ()
    ran = [(file, f, f.lines.intersection(lines[file.path])) for file, f in read]
    ran = [(file, f, own) for file, f, own in ran if f.began(file.lines.called, own)]
    made = {function.called for _, function, _ in ran if function.is_constructor} | {_HANDS_OVER}
    ran.sort(key=lambda each: (not made.isdisjoint(each[1].words), -len(each[2])))
    ran = [each for each in ran if not (each[1].is_constructor or each[1].calls & _DECLARES)]
    return tuple(Place(file.label, f.line, f.name, f.last) for file, f, _ in ran)
