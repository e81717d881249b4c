"""`python -m reports pictures`: result files as pictures, each with its data."""

from __future__ import annotations

import argparse

from cemverify.console.parsing import path
from reports.commands import add_paths, beside

DESCRIPTION = """\
Draws the pictures of result files, each with its data as CSV beside it. A picture makes one statement, which is its
title. Text in SVG stays text, and needs no font that a browser lacks; a PDF has its font in it; PNG has 300 dpi.
"""

EPILOG = """\
examples:
  python -m reports pictures out/                        into out/pictures
  python -m reports pictures out/recursion.json --output docs/pictures
  python -m reports pictures out/recursion.json --format pdf      for LaTeX

exit code: 0, or 2 with one sentence on stderr if a path is no result file or a picture cannot be written.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `python -m reports pictures` to its parser."""
    add_paths(parser)
    parser.add_argument(
        "--format", choices=("svg", "pdf", "png"), default="svg", help="format of the pictures (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=path,
        help="where the pictures are written (default: pictures/ beside the input)",
    )


def run(options: argparse.Namespace) -> int:
    """Writes the pictures and says what each shows."""
    from cemverify.processes.atomic_files import slug
    from cemverify.results.envelope import check_outputs, show, write_bytes
    from reports.collect import collect, complete
    from reports.pictures import pictures_of

    drawn = {}
    folder = options.output or beside(options.paths) / "pictures"
    check_outputs(folders=[folder])
    sources = collect(options.paths)
    for source in sources:
        with complete(source):
            for picture in pictures_of(source.content):
                name = f"{slug(source.path.stem)}-{picture.name}"
                while name in drawn:
                    name += "-again"
                drawn[name] = picture
    files = {folder / f"{name}.{options.format}": picture.file(options.format) for name, picture in drawn.items()}
    files |= {folder / f"{name}.csv": picture.csv.encode() for name, picture in drawn.items()}
    check_outputs(*files, read=[source.path for source in sources])
    for file, content in files.items():
        write_bytes(file, content)
    lines = [f"{folder / name}.{options.format}: {picture.title}" for name, picture in drawn.items()]
    show("\n".join(lines or ["nothing to draw"]))
    return 0
