"""How Sphinx builds the site: `python -m tox run -e docs`, which leaves it in out/site.

The source folder is the repository itself, so that links mean the same here and where Markdown is shown as it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

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
    "docs.making.docstrings",
    "docs.making.site",
]

# Every link and reference must resolve, but for types: those of other libraries, whose pages are not asked for, since
# the build needs no network, and those of ours that have no page.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|collections|pathlib|typing|types|numpy|abc|cemverify\.conformance)\..*|\w+")
]

myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"
smartquotes = False  # words of files and commands stand in running text too

# Docstrings are plain text with code in backticks.
default_role = "code"
highlight_language = "none"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # of torch's modules
autodoc_default_options = {"special-members": "__call__"}
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90

html_theme = "furo"
html_title = "cemverify"
html_static_path = ["static"]
html_extra_path = ["front"]  # the root leads to the first page
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
