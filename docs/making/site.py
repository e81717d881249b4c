"""What the site shows otherwise than Markdown does elsewhere: formulas, names of files, long and wide pages, a front.

Formulas between dollars become MathML, which browsers draw themselves: no script and no request. Docutils translates
them. Where a block of code is a file, its name stands above it. What begins closed may hold sections. Pages of
results are wider. The root of the site leads to the first page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

_RESULTS = "docs/results/"

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
    app.connect("doctree-read", lambda _app, doctree: close_folds(doctree))
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


# --- long pages -----------------------------------------------------------------------------------------


def close_folds(doctree: nodes.document) -> None:
    """A part that begins closed ends behind the sections in it, the last of which takes its end for its own."""
    opened: list[nodes.raw] = []
    for node in list(doctree.findall(nodes.raw)):
        if node.astext().startswith("<details"):
            opened.append(node)
        elif node.astext().strip() == "</details>":
            last, around = node, opened.pop().parent
            while last.parent is not around:
                last = last.parent
            if last is not node:
                node.parent.remove(node)
                around.insert(around.index(last) + 1, node)


def _widen(app: Sphinx, _doctree: nodes.document) -> None:
    """Pages of results keep the room of the list of sections, which are titles of tables there."""
    if app.env.docname.startswith(_RESULTS):
        app.env.metadata[app.env.docname]["hide-toc"] = ""


# --- the front ------------------------------------------------------------------------------------------


def _lead_to_the_first_page(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        (Path(app.outdir) / "index.html").write_text(_FRONT, encoding="utf-8")
