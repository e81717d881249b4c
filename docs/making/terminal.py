"""The README's picture of a terminal, a check of its example with the mistake: `python -m docs.making.terminal`.

It shows what the command printed, except the time, which differs from machine to machine.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from cemverify.results.envelope import show, write_text

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "pictures" / "terminal.svg"
COMMAND = "cemverify check mylayer:mine"
RIGHT, WRONG = 'bkjr->bid", W_Q', 'bkjr->bid", W_K'
_COLUMNS = 102
_TIME = re.compile(r", [\d.]+ s\.$", re.MULTILINE)
_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)  # a browser would request it from a server

# The dark colours of the pages of `python -m reports page`.
_INK, _PAPER = (232, 236, 239), (20, 24, 28)
_COLOURS = [(57, 66, 75), (240, 128, 111), (79, 181, 138), (221, 169, 74), (124, 185, 242), (221, 148, 189)]
_COLOURS += [(79, 168, 221), _INK]
_THEME = TerminalTheme(_PAPER, _INK, _COLOURS, _COLOURS)


def example() -> str:
    """The layer of the README."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (found,) = (block for block in blocks if "mine =" in block)
    return found


def printed() -> str:
    """What the check of the README's mistake prints on a terminal, with colours."""
    right = example()
    assert right.count(RIGHT) == 1
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "mylayer.py").write_text(right.replace(RIGHT, WRONG), encoding="utf-8")
        environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(_COLUMNS), "PYTHONPATH": str(ROOT)}
        environment.pop("NO_COLOR", None)
        command = [sys.executable, "-m", "cemverify", *COMMAND.split()[1:]]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)  # noqa: S603
    if done.returncode != 1:
        raise SystemExit(f"{COMMAND} ended with exit code {done.returncode}, and the mistake is worth 1")
    return _TIME.sub(".", done.stdout)


def drawn(output: str) -> str:
    """A terminal after the command, as an SVG that requests nothing from a server."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=_COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.assemble(("$ ", "bold"), COMMAND))
        console.print(Text.from_ansi(output.rstrip()))
        svg = console.export_svg(title=COMMAND, theme=_THEME, unique_id="terminal")
    return _FONT.sub("", svg).replace("Fira Code", "ui-monospace, SFMono-Regular, Menlo, Consolas")


def text_of(svg: str) -> str:
    """The text of such a picture, one line for each line of the terminal."""
    lines: dict[str, list[str]] = {}
    for y, words in re.findall(r'<text class="terminal-r\d+"[^>]* y="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        lines.setdefault(y, []).append(words)
    return html.unescape("\n".join("".join(parts).rstrip() for parts in lines.values())).replace("\xa0", " ")


def main() -> None:
    """Runs the command and draws what it printed."""
    svg = drawn(printed())
    write_text(PICTURE, svg)
    show(f"{PICTURE.relative_to(ROOT)}:\n{text_of(svg)}")


if __name__ == "__main__":
    main()
