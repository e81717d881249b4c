"""The lists of docs/index.md are the table of contents of the site.

Each section of that page with a list of links becomes a part of the navigation, in its order. So there is one list,
which reads the same where Markdown is shown as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Comes before Sphinx collects the tables of contents."""
    app.connect("doctree-read", _add_contents, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _add_contents(app: Sphinx, doctree: nodes.document) -> None:
    if app.env.docname != app.config.root_doc:
        return
    for section in list(doctree.findall(nodes.section)):
        lists = [child for child in section.children if isinstance(child, nodes.bullet_list)]
        pages = {page: words for found in lists for page, words in _pages(app, found)}
        if pages:
            section += _toctree(app.env.docname, section, pages)


def _pages(app: Sphinx, found: nodes.bullet_list) -> Iterator[tuple[str, str]]:
    """The page that each item begins with a link to, and the words of that link."""
    for item in found.children:
        link = next(iter(item.findall(addnodes.pending_xref)), None)
        if link is not None and link.get("refdoc") and link["reftarget"] in app.env.found_docs:
            yield link["reftarget"], link.astext()


def _toctree(docname: str, section: nodes.section, pages: Mapping[str, str]) -> addnodes.toctree:
    title = section.next_node(nodes.title)
    caption = "" if title is None else title.astext()
    return addnodes.toctree(
        parent=docname,
        entries=[(words, page) for page, words in pages.items()],
        rawentries=list(pages.values()),
        includefiles=list(pages),
        maxdepth=1,
        caption=caption,
        rawcaption=caption,
        glob=False,
        hidden=True,
        includehidden=False,
        numbered=0,
        titlesonly=True,
    )
