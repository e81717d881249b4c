"""The code blocks of a page, found by a Markdown parser."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

from suites.kit.source import ROOT

_BLOCKS_ALONE = MarkdownIt().disable("inline")  # the content of paragraphs takes longest to parse


@dataclass(frozen=True)
class Block:
    """A code block."""

    line: int  # where it begins in the page
    language: str  # of a fenced block; "" if it is indented
    title: str  # the name of the file that it is, or another title
    text: str  # its lines
    note: str  # the HTML comment right above it


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """All code blocks of a page, in order."""
    code_blocks, note = [], ""
    for token in _BLOCKS_ALONE.parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            language, _, rest = token.info.partition(" ")
            title = re.search(r'title="([^"]+)"', rest)
            code_blocks.append(Block(token.map[0] + 1, language, title[1] if title else "", token.content, note))
        html = token.content if token.type == "html_block" else ""
        comment = re.fullmatch(r"<!--(.*)-->\s*", html, flags=re.DOTALL)
        note = comment[1].strip() if comment else ""
    return tuple(code_blocks)


# for the files and outputs of the tutorial
TUTORIAL = {block.title: block.text for block in blocks(ROOT / "docs" / "tutorial.md")}
