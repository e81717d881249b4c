"""What the site shows otherwise than Markdown does elsewhere: formulas, names of files, long and wide pages, a front.

Formulas between dollars become MathML, which browsers draw themselves: no script and no request. Docutils translates
them. Where a block of code is a file, its name stands above it. Sections with many entries begin closed, and open
when a link or a search leads into them; pages of results are wider. The root of the site leads to the first page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

# Pages that are mostly a list, with the level of the sections that begin closed.
FOLDED: Mapping[str, int] = {"docs/claims": 2, "docs/power": 3, "docs/results/energy-layer-mutants": 2}
_RESULTS = "docs/results/"
_MANY = 8  # entries from which on a section of these pages is closed

_FILE = re.compile(r'^```(\w+) title="([^"]+\.\w+)"$', re.MULTILINE)

_FRONT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>cemverify</title>
<meta http-equiv="refresh" content="0; url=docs/index.html">
<link rel="canonical" href="docs/index.html">
<p>The documentation of cemverify begins <a href="docs/index.html">here</a>.</p>
</html>
"""


def setup(app: Sphinx) -> dict[str, Any]:
    """Adds all of it."""
    app.add_html_math_renderer("mathml", (_inline, None), (_displayed, None))
    app.connect("source-read", _name_files)
    app.connect("doctree-read", _fold)
    app.connect("doctree-read", _widen)
    app.connect("build-finished", _lead_to_the_first_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


# --- formulas -------------------------------------------------------------------------------------------


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _displayed(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


# --- names of files -------------------------------------------------------------------------------------


def _name_files(_app: Sphinx, _docname: str, source: list[str]) -> None:
    source[0] = with_captions(source[0])


def with_captions(markdown: str) -> str:
    """A page whose blocks of code with a file's name are directives with a caption."""
    return _FILE.sub(r"```{code-block} \1\n:caption: \2\n", markdown)


# --- long sections --------------------------------------------------------------------------------------


def _fold(app: Sphinx, doctree: nodes.document) -> None:
    level = FOLDED.get(app.env.docname)
    if level is None:
        return
    for section in doctree.findall(nodes.section):
        if _level(section) == level and (entries := len(list(_entries(section)))) >= _MANY:
            opening = f'<details class="fold"><summary>Show {entries} entries</summary>'
            title, *body = section.children
            section.children = []
            section += [title, _html(opening), *body, _html("</details>")]


def _level(section: nodes.section) -> int:
    above = section.parent
    return 1 if not isinstance(above, nodes.section) else 1 + _level(above)


def _entries(section: nodes.section) -> Iterator[nodes.Node]:
    """The sections in it, or else the rows of its tables."""
    inner = [child for child in section.children if isinstance(child, nodes.section)]
    yield from inner or (row for body in section.findall(nodes.tbody) for row in body.children)


def _html(text: str) -> nodes.raw:
    return nodes.raw("", text, format="html")


def _widen(app: Sphinx, _doctree: nodes.document) -> None:
    """Pages of results keep the room of the list of sections, which are titles of tables there."""
    if app.env.docname.startswith(_RESULTS):
        app.env.metadata[app.env.docname]["hide-toc"] = ""


# --- the front ------------------------------------------------------------------------------------------


def _lead_to_the_first_page(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        (Path(app.outdir) / "index.html").write_text(_FRONT, encoding="utf-8")
