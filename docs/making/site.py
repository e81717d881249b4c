"""Where the site differs from plain Markdown: formulas, generated parts, navigation, long and wide pages.

Formulas between dollar signs become MathML, which docutils makes and browsers draw without a script or a request. A
code block that is a file has the file's name above it. The lists of docs/index.md are the navigation. A folded part
may contain sections. Pages of results are wider.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

from docs.making import commands, schema

_RESULTS = "docs/results/"

_FILE = re.compile(r'^```(\w+) title="([^"]+\.\w+)"$', re.MULTILINE)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connects all of this to Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_displayed, None))
    app.connect("source-read", _write)
    app.connect("doctree-read", lambda _app, doctree: close_folds(doctree))
    app.connect("doctree-read", _widen)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


# --- formulas -------------------------------------------------------------------------------------------


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _displayed(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


# --- what stands in pages -------------------------------------------------------------------------------


def _write(app: Sphinx, docname: str, source: list[str]) -> None:
    page = with_captions(source[0])
    if docname == app.config.root_doc:
        page = with_navigation(page)
    page = re.sub(r"```\{commands\} (.*)\n```\n", lambda found: commands.markdown(found[1]), page)
    source[0] = page.replace("```{result-schema}\n```\n", schema.markdown())


def with_navigation(markdown: str) -> str:
    """Makes each section with a list of pages also a part of the navigation, in the same order."""

    def listed(section: re.Match[str]) -> str:
        pages = re.findall(r"^\* \[([^\]]+)\]\((\S+\.md)\)", section[0], re.MULTILINE)
        entries = "".join(f"{words} <{page}>\n" for words, page in pages)
        options = f":hidden:\n:maxdepth: 1\n:titlesonly:\n:caption: {section[1]}\n"
        return f"{section[0]}\n```{{toctree}}\n{options}\n{entries}```\n\n" if pages else section[0]

    return re.sub(r"^## (.+)\n(?:(?!## ).*\n)*", listed, markdown, flags=re.MULTILINE)


def with_captions(markdown: str) -> str:
    """Makes code blocks with a file's name directives with a caption."""
    return _FILE.sub(r"```{code-block} \1\n:caption: \2\n", markdown)


# --- long pages -----------------------------------------------------------------------------------------


def close_folds(doctree: nodes.document) -> None:
    """Moves the end of a folded part behind its sections: the parser puts it into the last of them."""
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
    """Hides the list of sections on pages of results, where it would only repeat the titles of tables."""
    if app.env.docname.startswith(_RESULTS):
        app.env.metadata[app.env.docname]["hide-toc"] = ""
