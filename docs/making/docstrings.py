"""Our docstrings for Sphinx: plain text, in which one line may speak of several names.

Napoleon reads the lists below Args, Attributes and Raises. Before it does, everything is brought into the form that
it knows; after it, two words of Sphinx are put right.
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
    """Docstrings are mended before napoleon reads them, and signatures before they are shown."""
    app.connect("autodoc-process-docstring", _mend, priority=100)
    app.connect("autodoc-process-signature", _without_factories)
    app.connect("doctree-resolved", _reword)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _mend(_app: Sphinx, _what: str, _name: str, found: object, _options: object, lines: list[str]) -> None:
    lines[:] = mended(lines, _names(found))


def mended(lines: list[str], names: set[str]) -> list[str]:
    """A docstring as napoleon and docutils understand it.

    What is indented keeps its lines; |V| is a norm, not markup; "a, b: text" and "a: text. b: text" are two entries;
    "D." is a sentence, not the fourth item of a list.

    Args:
        names: those of which a list may speak.
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
    """The entries of a line of a list; a line that goes on with the one before is one entry."""
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
    """The parameters and attributes of what has a docstring."""
    try:
        names = set(inspect.signature(found).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        names = set()
    return names | set(getattr(found, "__annotations__", {}))


def _without_factories(
    _app: Sphinx, _what: str, _name: str, _obj: object, _options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """`<factory>`, the default of a dataclass field, is no Python; Sphinx shows what it cannot read as it is."""
    return (None if signature is None else signature.replace("<factory>", "...")), returns


def _reword(_app: Sphinx, doctree: nodes.document, _docname: str) -> None:
    words = {" -- ": " – ", "Variables": "Attributes"}
    for text in list(doctree.findall(nodes.Text)):
        if text in words and isinstance(text.parent, nodes.paragraph | nodes.field_name):
            text.parent.replace(text, nodes.Text(words[text]))
