"""Which path a model's layers take while it is trained (see `cemverify.cem.blocked`).

The path follows from the sizes alone, so it can be told of trainings that are planned, running or long done. Layers
are asked on the meta device, where nothing is computed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from cemverify.cem.blocked import watched
from cemverify.cem.energies import Elementwise, Interaction
from cemverify.cem.models import LanguageModel
from synthetic.training.recipe import Recipe

# The path of each kind of layer: "attention" and "mlp"; of kinds that have an energy only.
Paths = Mapping[str, str]

_KINDS = {Interaction: "attention", Elementwise: "mlp"}
_WORDS = {"formula": "by the formula", "tiles": "by tiles", "blocks": "by blocks"}


def paths(model: LanguageModel, recipe: Recipe, *, processes: int = 1, compiled: bool = False) -> Paths:
    """The paths of a model on the meta device, trained with a recipe by so many processes together.

    Args:
        compiled: whether through torch.compile, which takes the formula.
    """
    rows = max(1, recipe.batch // processes // recipe.accumulate)
    with torch.device("meta"):
        tokens = torch.zeros(rows, recipe.context, dtype=torch.int64)
    with watched() as seen:
        model(tokens)
    found: dict[str, set[str]] = {}
    for energy, path in seen:
        for kind, name in _KINDS.items():
            if isinstance(energy, kind):
                found.setdefault(name, set()).add("formula" if compiled else path)
    return {name: " and ".join(sorted(taken)) for name, taken in sorted(found.items())}


def words(of_models: Mapping[str, Paths], *, compiled: bool = False) -> str:
    """The paths of several models in a line, models that take the same together."""
    alike: dict[str, list[str]] = {}
    for name, taken in of_models.items():
        said = ", ".join(f"{_NAMES[kind]} {_WORDS.get(path, path)}" for kind, path in taken.items())
        alike.setdefault(said or "PyTorch's own layers", []).append(name)
    through = ", through torch.compile" if compiled else ""
    return f"computed{through}: " + "; ".join(f"{said} ({', '.join(names)})" for said, names in alike.items())


_NAMES = {"attention": "attention", "mlp": "MLP"}
