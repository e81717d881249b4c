"""What is trained side by side: plain functions that return a complete, frozen configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from cemverify.cem import presets as paper
from cemverify.cem.layers import AttentionConfig, PreconditionerConfig
from cemverify.cem.models import LanguageModelConfig
from cemverify.console.errors import UsageError, one_of
from synthetic.training.frames import Frame, shared_preconditioners
from synthetic.training.recipe import Recipe, check_heads


@dataclass(frozen=True)
class Contender:
    """A model and its name in the tables."""

    name: str
    model: LanguageModelConfig
    baseline: bool = False  # whether the others must stay within the run's band of it

    @property
    def slug(self) -> str:
        """The name for folders and the command line: "CEM T=2" becomes cem-t2."""
        return self.name.lower().replace(" ", "-").replace("=", "")


POSITIONS: Mapping[str, Literal["rotary", "alibi"]] = {"RoPE": "rotary", "ALiBi": "alibi"}
SMALL_BAND = 1.15
WHY_SMALL_BAND = (
    "at equal steps of a short training CEM is level with Llama to a few per cent; 15 % more is the mark of a fault"
    " and not of a design"
)


@dataclass(frozen=True)
class LanguageConfig:
    """All that determines a run except its corpus and seed."""

    contenders: tuple[Contender, ...]  # the models compared
    recipe: Recipe  # how each is trained
    validation_windows: int  # how many windows of the validation part, of J tokens each, are scored
    band: float = SMALL_BAND  # how many times the bits of the best baseline another model may need
    why_band: str = WHY_SMALL_BAND  # where the band comes from, for the report


def contenders(vocabulary: int, dim: int, layers: int, heads: int, depths: tuple[int, ...]) -> tuple[Contender, ...]:
    """Llama with rotary and with ALiBi positions, and CEM at several T, of the same depth and width.

    CEM is the paper's full CEM (`cemverify.cem.presets.full_cem`) except for its preconditioners, which are diagonal
    and shared by the heads: low-rank ones per head make a step take 1.5 times as long and, the paper reports, gain
    little. The diagonal of A_k stays, because the paper finds that it matters; it takes a tenth of the time of a
    step. CEM's MLP has two projections and Llama's three, so CEM gets 3/2 as many hidden units for equal parameters;
    both numbers are rounded to a multiple of 8. CEM's attention has half of Llama's parameters, as always.

    Weights start at N(0, 1/D): the usual 0.02 is meant for D in the thousands. With it, models as narrow as these
    would spend much of so short a training on growing their weights.
    """
    check_heads(dim, heads)
    frame = Frame(paper.Size(dim, layers, heads, _eights(8 * dim / 3)), vocabulary, dim**-0.5)
    llamas = [(f"Llama {name}", frame.llama_attention(kind)) for name, kind in POSITIONS.items()]
    cems = [(T, replace(frame.attention(T), preconditioner=PreconditionerConfig("diagonal"))) for T in depths]
    return (
        *(Contender(name, frame.model(attention, frame.swiglu()).model, True) for name, attention in llamas),
        *(Contender(f"CEM T={T}", frame.model(cem, frame.mlp(T, hidden=_eights(4 * dim))).model) for T, cem in cems),
    )


def _eights(units: float) -> int:
    return 8 * max(1, round(units / 8))


def tiny(vocabulary: int, precision: Literal["float32", "bfloat16"] = "float32") -> LanguageConfig:
    """Takes seconds on one CPU core and shows that all parts work together; on a GPU, in the GPU's precision."""
    recipe = Recipe(steps=600, batch=8, context=32, learning_rate=1e-2, precision=precision)
    return LanguageConfig(contenders(vocabulary, 32, 2, 2, (1, 2)), recipe, 256)


def smoke(vocabulary: int) -> LanguageConfig:
    """Takes a few minutes on two CPU cores; batches are small, as more steps of fewer tokens learn faster here."""
    recipe = Recipe(steps=320, batch=4, context=128, learning_rate=3e-3)
    return LanguageConfig(contenders(vocabulary, 128, 4, 4, (1, 2, 3)), recipe, 256)


def smoke_on_cuda(vocabulary: int) -> LanguageConfig:
    """The paper's 86M Llama, also with ALiBi, and its full CEM, in bfloat16, for 150 steps of 8,192 tokens.

    The vocabulary differs; CEM's preconditioners are diagonal and shared by the heads, as in `contenders`.

    At the rates measured on an H100 (docs/results/gpu.md) the four models need 41 seconds for 1.2 million tokens,
    without compilation. Compilation takes most of two minutes, so a third T would not fit.
    """
    recipe = Recipe(steps=150, batch=4, context=paper.CONTEXT, precision="bfloat16")
    models = [
        *(Contender(f"Llama {name}", paper.llama("86M", kind), True) for name, kind in POSITIONS.items()),
        *(Contender(f"CEM T={T}", shared_preconditioners(paper.full_cem("86M", T))) for T in (1, 2)),
    ]
    return LanguageConfig(
        tuple(replace(c, model=replace(c.model, vocabulary=vocabulary)) for c in models), recipe, 64
    )


PRESETS: Mapping[str, Mapping[str, Callable[[int], LanguageConfig]]] = {
    "tiny": {"cpu": tiny, "cuda": partial(tiny, precision="bfloat16")},
    "smoke": {"cpu": smoke, "cuda": smoke_on_cuda},
}
DEFAULT_PRESET = "smoke"


@dataclass(frozen=True)
class PresetChoice:
    """A preset, and the changes to it."""

    preset: str = DEFAULT_PRESET
    recipe: Mapping[str, Any] = field(default_factory=dict)  # changed numbers of the recipe
    # dim, layers, heads: of the models, D, L and K; None keeps the preset's
    dim: int | None = None
    layers: int | None = None
    heads: int | None = None
    depths: tuple[int, ...] = ()  # the recursion depths T of CEM; () keeps the preset's
    models: tuple[str, ...] = ()  # slugs of the contenders that are trained; () takes all

    def config(self, device: str, vocabulary: int) -> LanguageConfig:
        """The complete configuration, for a device and a size of vocabulary."""
        chosen = one_of("preset", self.preset, PRESETS)[device.partition(":")[0]](vocabulary)
        chosen = replace(chosen, recipe=replace(chosen.recipe, **self.recipe))
        if any((self.dim, self.layers, self.heads, self.depths)):
            model = chosen.contenders[0].model
            attentions = [c.model.block.attention for c in chosen.contenders]
            depths = self.depths or tuple(a.steps for a in attentions if isinstance(a, AttentionConfig))
            sizes = (self.dim or model.dim, self.layers or model.layers, self.heads or model.block.attention.heads)
            chosen = replace(chosen, contenders=contenders(vocabulary, *sizes, tuple(dict.fromkeys(depths))))
        if not self.models:
            return chosen
        by_slug = {contender.slug: contender for contender in chosen.contenders}
        if unknown := [slug for slug in self.models if slug not in by_slug]:
            raise UsageError(f"unknown model {unknown[0]!r} in this run; choose from {', '.join(by_slug)}")
        return replace(chosen, contenders=tuple(c for slug, c in by_slug.items() if slug in self.models))
