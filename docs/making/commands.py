"""The directive `commands`: a program and its commands, from their parsers.

    ```{commands} cemverify
    ```

makes a section for each command: what it does, its usage, its arguments, its examples. Nothing is copied by hand.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from docs.making.parsers import PROGRAMS, parsers

_WIDTH = 84


def setup(app: Sphinx) -> dict[str, Any]:
    """Adds the directive."""
    app.add_directive("commands", _Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class _Commands(SphinxDirective):  # type: ignore[misc]  # Sphinx is not among what mypy is run with
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        program = self.arguments[0]
        if program not in PROGRAMS:
            raise self.error(f"there is no program {program!r}; choose from {', '.join(PROGRAMS)}")
        (own, parser), *commands = parsers(program).items()
        return [*_about(own, parser), *(_section(words, command) for words, command in commands)]


def _section(words: str, parser: argparse.ArgumentParser) -> nodes.section:
    title = nodes.title("", "", nodes.literal("", words.removeprefix("python -m ")))
    return nodes.section("", title, *_about(words, parser), ids=[nodes.make_id(words)])


def _about(words: str, parser: argparse.ArgumentParser) -> Iterator[nodes.Node]:
    yield from _prose(parser.description or "")
    yield nodes.literal_block("", _usage(parser), language="text")
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        options = [
            action for action in shown if not isinstance(action, argparse._HelpAction | argparse._VersionAction)
        ]
        if not options:
            continue
        if group.title not in ("positional arguments", "options"):
            yield nodes.rubric("", (group.title or "").capitalize())
        yield from _prose(group.description or "")
        yield nodes.definition_list("", *(_item(words, parser, action) for action in options), classes=["options"])
    yield from _prose(parser.epilog or "")


def _usage(parser: argparse.ArgumentParser) -> str:
    """Its usage, broken between options at a width that fits a page."""
    words = " ".join(parser.format_usage().removeprefix("usage: ").split())
    whole = re.sub(r"\[[^\[\]]*(?:\[[^\]]*\][^\[\]]*)*\]", lambda option: option[0].replace(" ", "\0"), words)
    broken = textwrap.fill(whole, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return broken.replace("\0", " ")


def _item(words: str, parser: argparse.ArgumentParser, action: argparse.Action) -> nodes.definition_list_item:
    formatter = argparse.HelpFormatter(parser.prog)
    if isinstance(action, argparse._SubParsersAction):
        about: Sequence[nodes.Node] = _choices(action)
    else:
        about = [nodes.paragraph("", "", *_words(formatter._expand_help(action) if action.help else ""))]
    term = nodes.term("", "", nodes.literal("", formatter._format_action_invocation(action)))
    term["ids"] = [nodes.make_id(f"{words} {(action.option_strings or [action.dest])[-1]}")]
    return nodes.definition_list_item("", term, nodes.definition("", *about))


def _choices(action: argparse._SubParsersAction[Any]) -> Sequence[nodes.Node]:
    items = [
        nodes.list_item(
            "", nodes.paragraph("", "", nodes.literal("", choice.dest), *_words(f": {choice.help or ''}"))
        )
        for choice in action._choices_actions
    ]
    return [nodes.bullet_list("", *items)]


def _prose(text: str) -> Iterator[nodes.Node]:
    """Paragraphs; what is laid out by hand, such as a list of examples, keeps its lines."""
    for part in textwrap.dedent(text).strip().split("\n\n"):
        head, *rest = part.splitlines() or [""]
        indented = [line for line in rest if line.startswith(" ")]
        if not part:
            continue
        if part.startswith(" ") or len(rest) > len(indented) or not indented:
            if any(line.startswith(" ") for line in part.splitlines()):
                yield nodes.literal_block("", textwrap.dedent(part), language="text")
            else:
                yield nodes.paragraph("", "", *_words(" ".join(part.split())))
        else:
            yield nodes.paragraph("", "", *_words(head))
            yield nodes.literal_block("", textwrap.dedent("\n".join(rest)), language="text")


def _words(text: str) -> list[nodes.Node]:
    """Text in which `backticks` mark code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # a backtick without its other half
        return [nodes.Text(text)]
    return [nodes.literal("", piece) if i % 2 else nodes.Text(piece) for i, piece in enumerate(pieces) if piece]
