"""The tutorial as a notebook, examples/tutorial.ipynb: `python -m docs.making.notebook` makes and runs it.

Its text and code are those of docs/tutorial.md. Files become cells, and the check tests two properties in this
process instead of all in worker processes, so that it takes seconds.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode, v4

from cemverify.results.envelope import show, write_text

ROOT = Path(__file__).parents[2]
TUTORIAL, NOTEBOOK = ROOT / "docs" / "tutorial.md", ROOT / "examples" / "tutorial.ipynb"

_BLOCK = re.compile(r'```\w+ title="([^"]+)"\n(.*?)```\n', flags=re.DOTALL)
_BEFORE = """\
> This is [the tutorial](../docs/tutorial.md) as a notebook. Where it saves a file, run a cell. Checks test two
> properties here, which takes seconds; the command line tests all.
"""
_CHECK = """\
from cemverify import check_implementation

chosen = ["gradient/attention/plain", "contract/attention/one-array"]
for record in check_implementation(mine, properties=chosen):
    print(record, end="\\n\\n")
"""


def notebook() -> NotebookNode:
    """The notebook, not run."""
    cells = [
        v4.new_markdown_cell(text.strip()) if kind == "markdown" else v4.new_code_cell(text.strip())
        for kind, text in _cells(TUTORIAL.read_text(encoding="utf-8"))
        if text.strip()
    ]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # nbformat's own is drawn at random
    made = v4.new_notebook(cells=cells)
    made.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return made


def _cells(page: str) -> Iterator[tuple[str, str]]:
    blocks = dict(_BLOCK.findall(page))
    adapter = re.sub(r"from layer import .*\n\n?", "", blocks["adapter.py"])
    title, rest = page.split("\n", 1)
    yield "markdown", f"{title}\n\n{_BEFORE}"
    start = 0
    for found in _BLOCK.finditer(rest):
        end = found.start()
        match found[1]:
            case "layer.py":
                code = found[2]
            case "adapter.py":
                code = adapter
            case "violation":
                code = _CHECK
            case "right":
                end = found.end()  # what is replaced by what stays in the text
                fixed = blocks["layer.py"].replace(blocks["wrong"], blocks["right"])
                code = "\n\n".join([fixed, _without_imports(adapter), _without_imports(_CHECK)])
            case _:
                continue
        yield "markdown", _links(rest[start:end])
        yield "code", code
        start = found.end()
    yield "markdown", _links(rest[start:])


def _without_imports(code: str) -> str:
    return "\n".join(line for line in code.splitlines() if not line.startswith(("import ", "from "))).strip() + "\n"


def _links(text: str) -> str:
    """Links of docs/ as they are from examples/."""
    return re.sub(r"\]\((?!\.\./|https?:|#)([^)]+)\)", r"](../docs/\1)", text)


def run(made: NotebookNode) -> NotebookNode:
    """Runs the cells in order, and keeps what they print."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate((cell for cell in made.cells if cell.cell_type == "code"), 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(cell.source, names)  # noqa: S102  (our own tutorial)
        cell["execution_count"] = number
        cell["outputs"] = (
            [v4.new_output("stream", name="stdout", text=printed.getvalue())] if printed.getvalue() else []
        )
    return made


def main() -> None:
    """Makes it, runs it and writes it."""
    made = run(notebook())
    nbformat.validate(made)
    write_text(NOTEBOOK, nbformat.writes(made) + "\n")
    show(f"{NOTEBOOK.relative_to(ROOT)}: {len(made.cells)} cells")


if __name__ == "__main__":
    main()
