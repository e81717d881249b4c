"""The layers of the documentation, each also with a mistake, and known violations, as texts for files of commands."""

from __future__ import annotations

import re
from typing import Any

from cemverify.conformance.implementations.edited import edited, module_of
from suites.kit.source import ROOT

# attention with NumPy, and a copy whose values are not tied to its keys
TIED = (ROOT / "examples" / "attention_numpy.py").read_text()
UNTIED = edited(TIED, (", a, keys)", ', a, np.einsum("krd,bjd->bkjr", W_Q, h))'))

# README's blocks of Python; its layer, and the layer with the mistake that README explains
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
(README,) = (block for block in BLOCKS if "mine =" in block)
README_MISTAKEN = edited(README, ('bkjr->bid", W_Q', 'bkjr->bid", W_K'))

# a layer that moves a quarter of the way to its memory
PULL = """\
from cemverify import energy_layer


def energy(x, y):
    apart = x - y
    return (apart * apart).sum(-1) / 2


def update(x, y):
    return 0.25 * (y - x)


mine = energy_layer(update=update, energy=energy, state=("J", 3), memory=("J", 3), step_size=0.25)
"""


def defined(text: str) -> Any:
    """Runs a text and returns the `mine` that it defines."""
    return module_of(text, "defined_by_a_text").mine


def known(
    property_: str, cause: str = "*", implementation: str = "mypkg.cem:mine", expires: str = "9999-12-31"
) -> str:
    """An entry of a file of known violations."""
    named = f'implementation = "{implementation}"\nproperty = "{property_}"\ncause = "{cause}"\n'
    return f'[[violation]]\n{named}reason = "because"\nexpires = {expires}\n'
