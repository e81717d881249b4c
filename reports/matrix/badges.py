"""Badges: one line about an implementation, as an SVG and as JSON for shields.io's endpoint."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from cemverify.console.escaping import one_line
from reports.matrix.standings import Line

# White text has at least 4.5 times their luminance.
_COLOURS = {"brightgreen": "#2a7a4f", "red": "#b3321f", "yellow": "#8a6100", "lightgrey": "#5c6670"}
LABEL = "cemverify"


def badge(line: Line) -> dict[str, Any]:
    """For shields.io: https://shields.io/badges/endpoint-badge."""
    run, violated = line.total("run"), line.total("violated")
    if violated:
        message, colour = f"{violated} of {run} violated", "red"
    elif run:
        message, colour = line.words, "brightgreen" if line.whole else "yellow"
    else:
        message, colour = "nothing was run", "lightgrey"
    return {"schemaVersion": 1, "label": LABEL, "message": message, "color": colour}


def svg(line: Line) -> str:
    """The badge as an SVG, a picture that needs no server."""
    said = badge(line)
    environment = Environment(
        loader=PackageLoader("reports.matrix", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    left, right = (round(6.6 * len(text) + 12) for text in (LABEL, said["message"]))
    about = one_line(f"{line.implementation}: {said['message']}, {line.date}, cemverify {line.version}")[:300]
    return environment.get_template("badge.svg.j2").render(
        label=LABEL, message=said["message"], colour=_COLOURS[said["color"]], left=left, right=right, about=about
    )
