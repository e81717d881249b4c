"""How Sphinx builds the site: `python -m tox run -e docs`, which leaves it in out/site.

The source folder is the repository itself, so that links mean the same here and where Markdown is shown as it is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from cemverify._version import VERSION  # noqa: E402  (the repository is on the path now)

project = "cemverify"
author = "The cemverify maintainers"
project_copyright = author
version = release = VERSION

root_doc = "docs/index"
include_patterns = ["docs/**.md", "*.md"]
exclude_patterns = [".*", "**/.*", "out", "build", "dist", "*.egg-info"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "docs.making.contents",
    "docs.making.commands",
    "docs.making.schema",
]

# Every link and reference must resolve, but for types: those of other libraries, whose pages are not asked for, since
# the build needs no network, and those of ours that have no page.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|collections|pathlib|typing|types|numpy|abc|cemverify\.conformance)\..*|\w+")
]

myst_heading_anchors = 4
smartquotes = False  # words of files and commands stand in running text too

# Docstrings are plain text with code in backticks.
default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90

html_theme = "furo"
html_title = "cemverify"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False


def setup(app: Sphinx) -> None:
    """Docstrings are mended before napoleon reads them, and signatures before they are shown."""
    app.connect("autodoc-process-docstring", _mend, priority=100)
    app.connect("autodoc-process-signature", _without_factories)


def _mend(_app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Docstrings are plain text: what is indented keeps its lines, |V| is a norm, and several names are each one.

    What stands below Args, Attributes or Raises is left to napoleon.
    """
    mended: list[str] = []
    in_list = literal = False
    for line in lines:
        indented = line.startswith(" ")
        if line and not indented:
            in_list, literal = bool(re.match(r"(Args|Attributes|Raises|Returns|Yields):$", line)), False
        if indented and not in_list and not literal and mended[-1:] == [""]:
            mended += ["::", ""]
            literal = True
        text = line if literal else line.replace("|", "\\|")
        several = re.match(r"(\s+)(\w+(?:, \w+)+): (.*)", text) if in_list else None
        mended += [f"{several[1]}{name}: {several[3]}" for name in several[2].split(", ")] if several else [text]
    lines[:] = mended


def _without_factories(
    _app: Sphinx, _what: str, _name: str, _obj: object, _options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """`<factory>`, the default of a dataclass field, is no Python; Sphinx shows what it cannot read as it is."""
    return (None if signature is None else signature.replace("<factory>", "...")), returns
