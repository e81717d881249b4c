"""The functions that stand in a file: their names and lines, and what they name."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from cemverify.conformance.implementations.origin import Place
from cemverify.conformance.source.reading.code import OwnCode
from cemverify.conformance.source.reading.own import source_lines

_BY_A_LIBRARY = ("forward", "backward", "setup_context", "__init__", "__call__")  # methods that it calls
_DECLARES = {"implementation", "implementation_from_modules", "energy_layer", "online_layer"}
_HANDS_OVER = "functional_call"  # torch's, of a module with given parameters


@dataclass(frozen=True)
class Function:
    """A function of a file."""

    name: str  # with its class, as in "ShortConv.forward"
    called: str  # the name by which it is called, which may be that of its class
    # its first line and its last one
    line: int
    last: int
    lines: frozenset[int]  # of its body, without those of functions inside it
    words: frozenset[str]  # in them
    calls: frozenset[str]  # those of them that it calls

    @property
    def is_constructor(self) -> bool:
        """Whether it makes an object of its class."""
        return self.name.endswith("__init__")

    def began(self, statements: Collection[int], ran: Collection[int]) -> bool:
        """Whether it was called: its first statement ran, and not only a function inside it."""
        return min(self.lines.intersection(statements), default=0) in ran


def functions_in(text: str) -> Iterator[Function]:
    """The functions in the text of a file, those outside before those inside them.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it cannot be taken apart.
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
    """The names of what the lines of a file outside its functions call; raises what `functions_in` does."""
    return _calls(ast.parse(text))


def _calls(tree: ast.AST) -> frozenset[str]:
    """The names of what is called in a tree, without the functions inside it."""

    def outside(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                yield child
                yield from outside(child)

    functions = (node.func for node in outside(tree) if isinstance(node, ast.Call))
    return frozenset(getattr(function, "id", getattr(function, "attr", "")) for function in functions)


def places_of(code: OwnCode, lines: Mapping[str, Collection[int]]) -> tuple[Place, ...]:
    """The functions that these lines, by path, belong to: first the one that does most, by how many are its own.

    No constructors, and nothing that declares a layer, in which lambdas alone ran; and last what makes a module or
    hands arrays over to one, as adapters do.
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
