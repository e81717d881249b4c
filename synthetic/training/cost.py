"""What a language model costs, before it is trained: counted on the meta device, where nothing is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from cemverify.cem.blocked import watched
from cemverify.cem.devices import meta_stands_for
from cemverify.cem.energies import Convexified, Elementwise, Interaction
from cemverify.cem.models import LanguageModel, LanguageModelConfig
from synthetic.flops import matmul_flops
from synthetic.training.recipe import Recipe


@dataclass(frozen=True)
class Cost:
    """What one predicted token costs in matrix products; causal attention counts as dense."""

    forward: float  # FLOPs of the forward pass
    training: float  # of the forward and the backward pass


def on_meta(config: LanguageModelConfig) -> LanguageModel:
    """The model without storage: shapes and counts only."""
    with torch.device("meta"):
        return LanguageModel(config, torch.Generator("cpu"))


def parameters(config: LanguageModelConfig) -> int:
    """The number of parameters of a model; a tied weight counts once."""
    return sum(parameter.numel() for parameter in on_meta(config).parameters())


@cache
def cost(config: LanguageModelConfig, context: int) -> Cost:
    """The cost per token in windows of J = context tokens."""
    return cost_of(on_meta(config), context)


def cost_of(model: LanguageModel, context: int) -> Cost:
    """The cost per token of a model on the meta device, in windows of J = context tokens."""
    with torch.device("meta"):
        tokens = torch.zeros(1, context, dtype=torch.int64)
    logits: list[Any] = []
    forward = matmul_flops(lambda: logits.append(model(tokens)))
    backward = matmul_flops(lambda: logits[0].sum().backward())
    return Cost(forward / context, (forward + backward) / context)


# --- which path a layer takes -----------------------------------------------------------------------


# The path by kind of layer, "attention" or "mlp"; only kinds that have an energy are listed.
Paths = Mapping[str, str]

_KINDS = {Interaction: "attention", Elementwise: "mlp", Convexified: "mlp"}
_WORDS = {"formula": "by the formula", "tiles": "by tiles", "rows": "by rows", "blocks": "by blocks"}


def paths(model: LanguageModel, recipe: Recipe, *, device: str = "cpu", compiled: bool = False) -> Paths:
    """The paths that a model (on the meta device) takes when it is trained with a recipe on a device.

    Args:
        compiled: whether through torch.compile, which uses our kernels where they work, and otherwise the formula.
    """
    if recipe.precision == "bfloat16":
        model = model.bfloat16()
    rows = max(1, recipe.batch // recipe.accumulate)
    with torch.device("meta"):
        tokens = torch.zeros(rows, recipe.context, dtype=torch.int64)
    with meta_stands_for(device, compiled=compiled), watched() as seen:
        model(tokens)
    by_kind: dict[str, set[str]] = {}
    for energy, path in seen:
        for kind, name in _KINDS.items():
            if isinstance(energy, kind):
                by_kind.setdefault(name, set()).add(path)
    return {name: " and ".join(sorted(taken)) for name, taken in sorted(by_kind.items())}


def words(of_models: Mapping[str, Paths], *, compiled: bool = False) -> str:
    """The paths of several models in one line; models with the same paths stand together."""
    alike: dict[str, list[str]] = {}
    for name, taken in of_models.items():
        clause = ", ".join(f"{_NAMES[kind]} {_WORDS.get(path, path)}" for kind, path in taken.items())
        alike.setdefault(clause or "PyTorch's own layers", []).append(name)
    through = ", through torch.compile" if compiled else ""
    return f"computed{through}: " + "; ".join(f"{clause} ({', '.join(names)})" for clause, names in alike.items())


_NAMES = {"attention": "attention", "mlp": "MLP"}
