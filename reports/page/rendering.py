"""The page as HTML, through Jinja2 with autoescape."""

from __future__ import annotations

from base64 import b64encode
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from reports.page.content import Page
from reports.pictures.drawing import Picture


def render(page: Page) -> str:
    """The page in one file: its style, its script and its pictures are inside, and it asks nobody for anything."""
    environment = Environment(
        loader=PackageLoader("reports.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["csv_link"] = _csv_link
    environment.filters["ours"] = Markup  # for the style, the script and the pictures, which are our own
    folder = resources.files("reports.page")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return environment.get_template("page.html.j2").render(page=page, style=style, script=script)


def _csv_link(picture: Picture) -> str:
    """The data of a picture inside the link to it."""
    return f"data:text/csv;base64,{b64encode(picture.csv.encode('utf-8', 'backslashreplace')).decode()}"
