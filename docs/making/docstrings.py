"""Prepares our docstrings for Sphinx: they are plain text, in which one line may describe several names.

Napoleon reads the lists below Args, Attributes and Raises. Before that, everything is put into the form that it
knows; afterwards, two words of Sphinx are corrected.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_LISTS = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connects the corrections: of docstrings before napoleon reads them, of signatures before they are shown."""
    app.connect("autodoc-process-docstring", _mend, priority=100)
    app.connect("autodoc-process-signature", _without_factories)
    app.connect("doctree-resolved", _reword)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _mend(_app: Sphinx, _what: str, _name: str, found: object, _options: object, lines: list[str]) -> None:
    lines[:] = mended(lines, _names(found))


def mended(lines: list[str], names: set[str]) -> list[str]:
    """A docstring in the form that napoleon and docutils understand.

    Indented text keeps its lines; |V| is a norm, not markup; "a, b: text" and "a: text. b: text" are two entries;
    "D." ends a sentence, and is not the fourth item of a list.

    Args:
        names: those that a list may describe.
    """
    out: list[str] = []
    in_list = literal = False
    for line in lines:
        indented = line.startswith(" ")
        if line and not indented:
            in_list, literal = _LISTS.match(line) is not None, False
        if indented and not in_list and not literal and out[-1:] == [""]:
            out += ["::", ""]
            literal = True
        if literal:
            out.append(line)
        elif in_list and indented:
            out += [entry.replace("|", "\\|") for entry in _entries(line, names)]
        else:
            out.append(line.replace("|", "\\|"))
    return out


def _entries(line: str, names: set[str]) -> Iterator[str]:
    """The entries in a line of a list; a continuation line is one entry."""
    margin = line[: len(line) - len(line.lstrip())]
    start = 0
    text = line.strip()
    for found in re.finditer(r"(?<=[.;)]) (?=(\w+)(?:, \w+)*: )", text):
        if found[1] in names:
            yield from _each(margin, text[start : found.start()])
            start = found.end()
            margin = margin[:4]
    yield from _each(margin, text[start:])


def _each(margin: str, text: str) -> Iterator[str]:
    several = re.match(r"(\w+(?:, \w+)*): (.*)", text)
    if several is None:
        yield margin + text
        return
    about = re.sub(r"^(?=[A-Za-z]\.(?: |$))", r"\\", several[2])
    for name in several[1].split(", "):
        yield f"{margin}{name}: {about}"


def _names(found: object) -> set[str]:
    """The parameters and attributes of an object with a docstring."""
    try:
        names = set(inspect.signature(found).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        names = set()
    return names | set(getattr(found, "__annotations__", {}))


def _without_factories(
    _app: Sphinx, _what: str, _name: str, _obj: object, _options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Replaces `<factory>`, the default of a dataclass field: it is not Python, and Sphinx would show it as it is."""
    return (None if signature is None else signature.replace("<factory>", "...")), returns


def _reword(_app: Sphinx, doctree: nodes.document, _docname: str) -> None:
    words = {" -- ": " – ", "Variables": "Attributes"}
    for text in list(doctree.findall(nodes.Text)):
        if text in words and isinstance(text.parent, nodes.paragraph | nodes.field_name):
            text.parent.replace(text, nodes.Text(words[text]))
