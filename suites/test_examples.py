"""The examples are correct, and the README shows the first of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from cemverify.conformance.implementations.contract import kind_of, load
from cemverify.conformance.judging.offered import applicable, not_offered
from cemverify.conformance.properties import catalogue
from suites.kit.examples import BLOCKS, TIED
from suites.kit.source import ROOT

# the false-alarm tests judge every example
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("[!_]*.py")) if not path.stem.startswith("test_")]
LAYERS = sorted((ROOT / "examples" / "energy_layers").glob("[!_]*.py"))


@pytest.mark.parametrize("path", [*EXAMPLES, *LAYERS], ids=lambda path: path.stem)
def test_an_example_says_how_it_is_judged_and_the_readme_or_the_page_of_layers_names_it(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    assert f"`cemverify check {module}:mine`" in path.read_text().partition('"""')[2].partition('"""')[0]
    page = ROOT / "docs" / "energy-layers.md" if path in LAYERS else ROOT / "README.md"
    link = os.path.relpath(path, page.parent)
    assert path.stem == "attention_numpy" or f"({link})" in page.read_text()


def test_the_readme_and_the_site_open_with_the_numpy_example_line_for_line() -> None:
    untyped = re.sub(r": Any|-> Any|from typing import Any\n\n", "", TIED).replace(") :", "):")
    shown = untyped.partition('"""\n\n')[2]
    assert BLOCKS[0] == shown
    assert f'```python title="mylayer.py"\n{shown}```' in (ROOT / "docs" / "index.md").read_text()


def test_the_readmes_snippet_of_a_layer_runs_and_its_energies_fall() -> None:
    (snippet,) = (block for block in BLOCKS if "layer.trajectory" in block)
    lines = snippet.splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines[:-2]), names)  # noqa: S102  (our own README)
    energy, energies = (eval(line, names) for line in lines[-2:])  # noqa: S307
    assert (energy.shape, energies.shape) == ((2, 5), (3, 2, 5))
    assert bool((energies.diff(dim=0) < 0).all())


def test_every_source_that_a_property_names_is_a_section_of_the_mathematics_page() -> None:
    sections = set(re.findall(r"^## (\d+)\.", (ROOT / "docs" / "mathematics.md").read_text(), flags=re.MULTILINE))
    for p in catalogue():
        assert set(re.findall(r"§(\d+)", p.source)) <= sections, p.id


def test_the_readme_counts_the_properties_of_its_run() -> None:
    layer = load("examples.attention_numpy:mine")
    properties = applicable(kind_of(layer), catalogue())
    run = [p for p in properties if not_offered(p, layer.not_offered, torch.float64) is None]
    readme = (ROOT / "README.md").read_text()
    assert f"mine: {len(properties)} properties, {len(run)} run: {len(run)} hold, 0 violated" in readme
    assert f"{len(properties) - len(run)} not offered.\n" in readme
