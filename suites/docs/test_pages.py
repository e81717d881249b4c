"""What the pages show is true: Python runs, and parsers accept the commands and the files.

Blocks of Python run in the order of the page, in one folder and one namespace. A block with a title is a file with
that name. An HTML comment directly above a block, invisible to readers, may say

    <!-- before: CODE -->         definitions that the block needs
    <!-- not run: REASON -->      compiled only

Commands are not run; the program's parser reads them with all options. Other tests check what they print:
`suites/docs/test_followed.py`, `suites/test_examples.py`, `suites/conformance/test_ci_recipes.py`.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from docs.making.parsers import PROGRAMS, parsers
from suites.docs.blocks import Block, blocks
from suites.kit.source import ROOT, name

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
# These have separate tests, which run the commands and compare the output.
FOLLOWED = {"README.md", "docs/tutorial.md"}
FOLLOWED |= {f"docs/how-to/{name}.md" for name in ("own-property", "new-property", "new-study")}
OURS = (*PROGRAMS, "python -m cemverify")


def fenced(*languages: str) -> list[Any]:
    pairs = [(page, block) for page in PAGES for block in blocks(page) if block.language in languages]
    return [pytest.param(block, id=f"{name(page)}:{block.line}") for page, block in pairs]


def commands() -> Iterator[tuple[str, str]]:
    """Every command of ours on a page, with its place."""
    for page in PAGES:
        for block in blocks(page):
            if block.language not in ("", "sh", "bash", "console", "yaml", "ini"):
                continue
            whole = block.text.replace("\\\n", " ")
            for line in whole.splitlines():
                # after a prompt, in the command field of a recipe, or after a program that starts it
                starts = r"\$ |- run: |- |commands = |(?:uvx|pipx run) .*(?=cemverify )|eval \"\$\("
                match = re.match(rf"\s*(?:{starts})?(.*)", line)
                if match and any(match[1].startswith(f"{program} ") for program in OURS):
                    command = match[1].partition(')"')[0] if "eval" in line else match[1]
                    yield f"{name(page)}:{block.line}", command


COMMANDS = sorted({(where, command) for where, command in commands()})


def words_of(command: str) -> list[str]:
    """The words of a command, up to a comment, a pipe or a redirection; a word replaces what a service fills in."""
    line = re.sub(r"\$\{\{.*?\}\}|\{env_tmp_dir\}", "X", command.replace("{posargs}", ""))
    words = shlex.split(line, comments=True)
    stop = next((i for i, word in enumerate(words) if word in ("|", ">", "&&", "||", ";")), len(words))
    return words[:stop]


def test_every_command_on_every_page_is_one_that_its_parser_reads() -> None:
    programs = {words: parser for program in PROGRAMS for words, parser in parsers(program).items()}
    assert len(COMMANDS) > 60
    wrong = []
    for where, command in COMMANDS:
        words = words_of(command.replace("python -m cemverify", "cemverify"))
        own = next(program for program in PROGRAMS if words[: len(program.split())] == program.split())
        here, rest = own, words[len(own.split()) :]
        while rest and f"{here} {rest[0]}" in programs:
            here, rest = f"{here} {rest[0]}", rest[1:]
        if {"-h", "--help", "--version"} & set(rest):
            continue
        try:
            programs[here].parse_args(rest)
        except Exception as error:
            wrong.append(f"{where}: {command}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_other_programs_are_told_exists(page: Path) -> None:
    text = "\n".join(block.text for block in blocks(page) if block.language in ("", "sh", "bash", "console"))
    environments = re.findall(r"^\[testenv:(\w+)\]", (ROOT / "tox.ini").read_text(), flags=re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"tox run -e (\w+)", text)) <= set(environments)
    assert {extra for group in re.findall(r"'\.\[([\w,]+)\]'", text) for extra in group.split(",")} <= set(extras)
    for path in re.findall(r"pytest (suites/[\w/.]+)", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\((?!\w+:)([^)#\s]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("block", fenced("toml", "yaml", "ini", "json"))
def test_a_file_of_settings_can_be_read(block: Block) -> None:
    match block.language:
        case "toml":
            assert tomllib.loads(block.text)
        case "yaml":
            assert yaml.safe_load(block.text)
        case "json":
            assert json.loads(block.text)
        case _:
            parser = configparser.ConfigParser(interpolation=None)
            parser.read_string(block.text)
            assert parser.sections()


NEEDED = {"jax": "jax", "hugging-face": "transformers"}
PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]


@pytest.mark.parametrize("page", [page for page in PYTHON if name(page) not in FOLLOWED], ids=name)
def test_the_python_of_a_page_runs(page: Path, here: Path) -> None:
    if page.stem in NEEDED:
        pytest.importorskip(NEEDED[page.stem])
    before = set(sys.modules)
    names: dict[str, Any] = {"__name__": "page"}
    try:
        for block in (block for block in blocks(page) if block.language == "python"):
            kind, _, rest = block.note.partition(":")
            code = compile("\n" * (block.line) + block.text, str(page), "exec")
            if kind == "not run":
                assert rest.strip(), "say why"
                continue
            if kind == "before":
                exec(rest, names)  # noqa: S102  (our own pages)
            if block.title:
                Path(block.title).write_text(block.text)
                module = ModuleType(Path(block.title).stem)
                sys.modules[module.__name__] = module
                exec(code, module.__dict__)  # noqa: S102
            else:
                exec(code, names)  # noqa: S102
    finally:
        for added in set(sys.modules) - before:
            if getattr(sys.modules[added], "__file__", None) is None:
                del sys.modules[added]
