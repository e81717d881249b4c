"""Somebody else's CEM layers in this harness: trained from the reference's weights, compared by their losses.

A language model is built as the reference builds it; then its CEM layers give their weights to the other
implementation's `attention` and `mlp` functions, and train through what these return. Everything else is the same.
The configuration is the richest that the implementation offers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from cemverify.cem.layers import (
    AttentionConfig,
    CEMAttention,
    CEMGatedMLP,
    MLPConfig,
    PositionKind,
    PreconditionerConfig,
)
from cemverify.cem.models import BlockConfig, LanguageModel, LanguageModelConfig
from cemverify.cem.norms import NormKind
from cemverify.cem.preconditioners import PreconditionerKind
from cemverify.conformance.implementations.contract import Implementation, load
from cemverify.conformance.implementations.naming import LoadError
from cemverify.console.errors import UsageError
from cemverify.console.streams import note
from cemverify.results.envelope import Cell, Table
from synthetic.corpora.choice import CorpusChoice, open_corpus
from synthetic.corpora.tokens import Batches
from synthetic.loss_agreement.agreement import CurveAgreement, agreement, budgets
from synthetic.side_by_side.presets import PresetChoice
from synthetic.training.machine import one_thread
from synthetic.training.recipe import Recipe
from synthetic.training.training import Training, train

Layer = Callable[..., Tensor]
_WEIGHTS = ("W_Q", "W_K", "diagonal", "to_self", "to_others", "V", "W")


def weights(layer: CEMAttention | CEMGatedMLP) -> dict[str, Tensor]:
    """The parameters of a layer under the contract's names."""
    found = {name: getattr(layer, name, None) for name in _WEIGHTS}
    learned = layer.preconditioner
    found["P_d"] = None if learned.p is None else math.sqrt(learned.dim) * learned.p
    found |= {"P_U": learned.U, "P_V": learned.V, "gain": layer.norm.gain}
    return {name: value for name, value in found.items() if value is not None}


def load_implementation(name: str) -> Implementation:
    """The implementation of that name, if it can be trained.

    Raises:
        UsageError: it cannot be loaded, has neither attention nor mlp, or autograd cannot follow it.
    """
    try:
        found = load(name)
    except LoadError as error:
        raise UsageError(str(error)) from error
    if not isinstance(found, Implementation):
        raise UsageError(
            f"{name} is an energy layer without CEM's weights: only an implementation can be trained here"
        )
    if found.arrays != "torch":
        raise UsageError(
            f"{name} computes with {found.arrays} arrays, which torch's autograd cannot follow; give one of torch"
        )
    if not {"attention", "mlp"} & found.functions.keys():
        raise UsageError(f"{name} has neither an attention nor an mlp function to train")
    if "dtype:float32" in found.not_offered:
        raise UsageError(f"{name} declares float32 absent, in which models are trained here")
    return found


def richest(offer: Implementation, model: LanguageModelConfig) -> LanguageModelConfig:
    """A CEM model of the same size as another, with all that an implementation offers.

    Where it offers no memory other than x itself, the layers have no norm, as that would make them differ.
    """
    absent = offer.not_offered
    size = model.block.attention
    steps = 1 if "steps" in absent else 2

    def first(feature: str, kinds: Any, *wanted: str) -> Any:
        assert set(wanted) <= set(get_args(kinds))
        return next((kind for kind in wanted if f"{feature}:{kind}" not in absent), wanted[-1])

    norm = "none" if "start" in absent else first("norm", NormKind, "channel", "folded", "scalar", "none")
    position = first("position", PositionKind, "alibi", "rotary", "none")
    kind = first("preconditioner", PreconditionerKind, "diagonal", "identity")
    diagonal: Any = "none" if "diagonal:shared" in absent else "shared"
    hidden = model.block.mlp.hidden
    common: dict[str, Any] = {
        "preconditioner": PreconditionerConfig(kind),
        "steps": steps,
        "norm": norm,
        "init_std": model.init_std,
    }
    attention = AttentionConfig(model.dim, size.heads, diagonal=diagonal, position=position, **common)
    return replace(model, block=BlockConfig(attention, MLPConfig(model.dim, hidden, **common)))


def implemented(config: LanguageModelConfig, offer: Implementation, seed: int) -> LanguageModel:
    """The reference's model with its first weights, whose CEM layers compute as the implementation does."""
    model = LanguageModel(config, torch.Generator().manual_seed(seed))
    for block in model.blocks:
        for kind, function in offer.functions.items():
            layer = getattr(block, kind, None)
            if isinstance(layer, CEMAttention | CEMGatedMLP):
                layer.residual = _residual(kind, layer, function)  # type: ignore[method-assign]
    return model


def _residual(kind: str, layer: Any, function: Layer) -> Callable[..., Any]:
    """A layer of a pre-norm block, (B, J, D) -> (B, J, D), by somebody else's formula; attention caches nothing."""

    def attention(h: Tensor, past: Any = None) -> tuple[Tensor, Any]:  # noqa: ARG001 - the block's signature
        return asked(h, replace(layer.config, temperature=layer.config.tau)), None

    def mlp(h: Tensor) -> Tensor:
        return asked(h, layer.config)

    def asked(h: Tensor, config: Any) -> Tensor:
        return _ask(kind, function, h, layer.norm().into(h), weights(layer), config)

    return attention if kind == "attention" else mlp


@dataclass(frozen=True)
class LossCurves:
    """The losses of one model, computed in three ways, in bits per token.

    Attributes:
        exact, single: of the reference in float64 and in float32. theirs: of the implementation.
        allowed: how far from `exact` rounding alone may have driven each step.
        agreement: of theirs with exact.
    """

    name: str
    layers: tuple[str, ...]
    model: LanguageModelConfig
    recipe: Recipe
    exact: Training
    single: Training
    theirs: Training
    allowed: tuple[float, ...]
    agreement: CurveAgreement

    @property
    def agree(self) -> bool:
        """Whether rounding explains every difference."""
        return self.agreement.disagrees_at is None

    @property
    def sentence(self) -> str:
        """The outcome in a sentence: whether the losses agree, or where they part."""
        if self.agree:
            margin = f"margin {self.agreement.margin:.2g}"
            return (
                f"{self.name} agrees: at no step is it further from the reference than rounding explains ({margin})"
            )
        return (
            f"{self.name} disagrees from step {self.agreement.disagrees_at} on: rounding does not explain its losses"
        )

    @property
    def payload(self) -> dict[str, Any]:
        """Both loss curves and what was made of them, as plain values for the result file."""
        return {
            "implementation": self.name,
            "agreement": asdict(self.agreement),
            "bits": {
                "float64": self.exact.bits,
                "float32": self.single.bits,
                "implementation": self.theirs.bits,
                "budget": self.allowed,
            },
        }


def compare_losses(
    implementation: str, models: PresetChoice, choice: CorpusChoice, corpora: Path, seed: int
) -> LossCurves:
    """Trains the reference and the implementation from the same weights on the same batches, on one CPU thread.

    Args:
        implementation: "module:attribute" or a file and an attribute, as `load` takes it.
        models: a preset, whose last model gives the size and whose recipe is followed.
        corpora: the folder where tokens lie. seed: of weights and batches.

    Raises:
        UsageError: the implementation cannot be trained, or the numbers do not fit together.
    """
    offer = load_implementation(implementation)
    corpus = open_corpus(choice, corpora)
    preset = models.config("cpu", corpus.vocabulary)
    config, recipe = richest(offer, preset.contenders[-1].model), preset.recipe
    batches = Batches(corpus.train.tokens, seed, recipe.batch, recipe.context)

    def reference(recipe: Recipe) -> Training:
        model = LanguageModel(config, torch.Generator().manual_seed(seed))
        return train(model.double() if recipe.precision == "float64" else model, recipe, batches)

    with one_thread():
        # one step first: a fault is told before the reference has been trained
        train(implemented(config, offer, seed), recipe, batches, until=1)
        note("training the reference in float64 and in float32")
        exact, single = reference(replace(recipe, precision="float64")), reference(recipe)
        for run in (exact, single):
            if run.diverged_at is not None:
                raise UsageError(
                    f"the reference itself diverges at step {run.diverged_at}, and nothing compares with it;"
                    f" choose a --learning-rate below {recipe.learning_rate:g}"
                )
        note(f"training {implementation}")
        theirs = train(implemented(config, offer, seed), recipe, batches)
    rounding = [abs(a - b) for a, b in zip(exact.bits, single.bits, strict=False)]
    allowed = tuple(budgets(exact.bits[: len(rounding)], rounding))
    found = agreement(theirs.bits, exact.bits[: len(rounding)], allowed)
    layers = tuple(kind for kind in ("attention", "mlp") if kind in offer.functions)
    return LossCurves(implementation, layers, config, recipe, exact, single, theirs, allowed, found)


def table(curves: LossCurves) -> Table:
    """The losses at steps 1, 2, 4, 8 ... and at the last."""
    exact, single, theirs, allowed = curves.exact, curves.single, curves.theirs, curves.allowed
    steps = sorted({1, *(2**i for i in range(20) if 2**i < len(allowed)), len(allowed)})
    rows: list[list[Cell]] = []
    for step in steps:
        bits, own = exact.bits[step - 1], single.bits[step - 1]
        if step > len(theirs.bits):
            difference = f"diverged at step {theirs.diverged_at}" if theirs.diverged_at else "-"
        else:
            difference = f"{theirs.bits[step - 1] - bits:+.1e}"
        rows.append([step, f"{bits:.6f}", f"{own - bits:+.1e}", difference, f"{allowed[step - 1]:.1e}"])
    attention = curves.model.block.attention
    if not isinstance(attention, AttentionConfig):
        raise TypeError(f"an implementation is compared on CEM's layers, not on {type(attention).__name__}")
    title = (
        f"Losses of {curves.name} ({' and '.join(curves.layers)}; T = {attention.steps}, diagonal"
        f" {attention.diagonal}, position {attention.position}, preconditioner {attention.preconditioner.kind}, norm"
        f" {attention.norm}) beside the reference's in float64, bits per token"
    )
    return Table(title, ("step", "reference, float64", "reference, float32", "implementation", "allowed"), rows)


def _ask(
    kind: str, function: Layer, x: Tensor, h: Tensor, given: Mapping[str, Tensor], config: AttentionConfig | MLPConfig
) -> Tensor:
    try:
        out = function(x, h, given, config)
    except Exception as error:
        raise UsageError(
            f"the implementation's {kind} raises {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(out, Tensor) or out.shape != x.shape:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise UsageError(f"the implementation's {kind} must return a tensor {tuple(x.shape)}, not {shape}")
    if torch.is_grad_enabled() and not out.requires_grad:
        raise UsageError(
            f"autograd cannot follow the implementation's {kind}: what it returns is cut off from its weights,"
            " perhaps by detach, no_grad or a way through NumPy"
        )
    return out
