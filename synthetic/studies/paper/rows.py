"""The paper's language experiments: plain functions that return a complete, frozen configuration.

Each study changes one thing in a Llama model. Whatever the paper leaves open is the same in all of them: CEM's
attention has ALiBi positions, a diagonal of A_k shared by the heads and a diagonal preconditioner per head, CEM's MLP
a diagonal preconditioner, and both a gain per channel inside the recursion (`cemverify.cem.presets.full_cem`).

Replaced attention is compared with Llama with ALiBi, so that positions are not what is compared; replaced MLPs stand
in a Llama with rotary positions and are compared with that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from cemverify.cem import presets as paper
from cemverify.cem.layers import DiagonalKind
from cemverify.console.errors import UsageError
from synthetic.training.frames import (
    PRECONDITIONERS,
    TINY,
    TINY_SIZE,
    Frame,
    PreconditionerName,
    check_size,
    paper_recipe,
    tiny_dims,
    tiny_frame,
    tiny_recipe,
)
from synthetic.training.looped import LoopedConfig
from synthetic.training.recipe import Recipe, RecipeChanges

RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)


@dataclass(frozen=True)
class Variant:
    """A model of a study.

    Attributes:
        name: in the tables. looped: the model.
        against: the name of the baseline that it is compared with; None of a baseline.
        widened: the name of the same model with an MLP as wide as gives it the baseline's parameters, if it has one.
        learning_rate: its own, or the recipe's.
    """

    name: str
    looped: LoopedConfig
    against: str | None = None
    widened: str | None = None
    learning_rate: float | None = None


@dataclass(frozen=True)
class StudyPlan:
    """What a study runs, but for its corpus.

    Attributes:
        study, size: names. figure: of the paper. variants: the models, baselines first.
        recipe: of all. seeds: how many, from `seed` on; a seed decides batches and first weights.
        windows: how many windows of the validation part are scored.
    """

    study: str
    size: str
    figure: str
    variants: tuple[Variant, ...]
    recipe: Recipe
    seeds: int
    seed: int
    windows: int

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UsageError(f"at least one seed is needed, not {self.seeds}; choose --seeds 3 for intervals")

    @property
    def every(self) -> int:
        """Steps between two validations: twenty along the way."""
        return math.ceil(self.recipe.steps / 20)

    def recipe_of(self, variant: Variant) -> Recipe:
        """How a variant is trained: by the study's recipe, at the variant's own learning rate if it has one."""
        if variant.learning_rate is None:
            return self.recipe
        return replace(self.recipe, learning_rate=variant.learning_rate)

    def named(self, name: str) -> Variant:
        """The variant of that name; StopIteration if the study has none."""
        return next(variant for variant in self.variants if variant.name == name)


ROTARY, ALIBI = "Llama, RoPE", "Llama, ALiBi"
WIDENED = ", widened"


def replace_attention(frame: Frame) -> tuple[Variant, ...]:
    """Llama's attention replaced by CEM's, T = 1 and 2."""
    return (
        _llama(frame, "alibi"),
        _llama(frame, "rotary", against=ALIBI),
        *(_with_attention(frame, T) for T in (1, 2)),
        *(_with_attention(frame, T, widened=True) for T in (1, 2)),
    )


def replace_mlp(frame: Frame) -> tuple[Variant, ...]:
    """Llama's MLP replaced by CEM's at T = 1, of the same width and of the same parameters."""
    return (_llama(frame, "rotary"), _with_mlp(frame, 1), _with_mlp(frame, 1, widened=True))


def recursion(frame: Frame) -> tuple[Variant, ...]:
    """T = 1 and 2 with three preconditioners; attention alone, and MLP alone."""
    plain: PreconditionerName = "diagonal"
    return (
        _llama(frame, "alibi"),
        _llama(frame, "rotary"),
        *(_with_attention(frame, T, P, matched=plain == P) for P in PRECONDITIONERS for T in (1, 2)),
        *(_with_attention(frame, T, widened=True) for T in (1, 2)),
        *(_with_mlp(frame, T, P, matched=plain == P) for P in PRECONDITIONERS for T in (1, 2)),
        *(_with_mlp(frame, T, widened=True) for T in (1, 2)),
    )


def learning_rate(frame: Frame) -> tuple[Variant, ...]:
    """Llama and full CEM at T = 2, each at five learning rates."""
    llama = frame.model(frame.llama_attention("rotary"), frame.swiglu())
    alibi = frame.model(frame.llama_attention("alibi"), frame.swiglu())
    attention = frame.attention(2, "low rank")
    cem = frame.model(attention, frame.mlp(2, "low rank"))
    wide = frame.widened(lambda M: frame.model(attention, frame.mlp(2, "low rank", M)))
    return tuple(
        Variant(
            at_rate(name, rate),
            looped,
            at_rate(ROTARY, rate) if name != ROTARY else None,
            at_rate(FULL + WIDENED, rate) if name == FULL else None,
            rate,
        )
        for name, looped in ((ROTARY, llama), (ALIBI, alibi), (FULL, cem), (FULL + WIDENED, wide))
        for rate in RATES
    )


FULL = "full CEM, T = 2"


def at_rate(name: str, rate: float) -> str:
    """The name of a model at a learning rate."""
    return f"{name} at {rate:g}"


def diagonal(frame: Frame) -> tuple[Variant, ...]:
    """No diagonal of A_k, one shared by the heads, one per head; attention alone, T = 1."""
    kinds: tuple[DiagonalKind, ...] = ("none", "shared", "per-head")
    return (
        _llama(frame, "alibi"),
        *(_with_attention(frame, 1, diagonal=kind, matched=kind == "shared") for kind in kinds),
        _with_attention(frame, 1, widened=True),
    )


def reuse(frame: Frame) -> tuple[Variant, ...]:
    """Recursion inside a layer against the layer twice; attention alone, and MLP alone."""
    rotary, alibi = frame.llama_attention("rotary"), frame.llama_attention("alibi")
    return (
        _llama(frame, "alibi"),
        Variant("Llama attention twice", frame.model(alibi, frame.swiglu(), attention_times=2), ALIBI),
        *(_with_attention(frame, T) for T in (1, 2)),
        Variant(
            "CEM attention, T = 1, twice",
            frame.model(frame.attention(1), frame.swiglu(), attention_times=2),
            ALIBI,
        ),
        *(_with_attention(frame, T, widened=True) for T in (1, 2)),
        _llama(frame, "rotary"),
        Variant("Llama MLP twice", frame.model(rotary, frame.swiglu(), mlp_times=2), ROTARY),
        *(_with_mlp(frame, T) for T in (1, 2)),
        Variant("CEM MLP, T = 1, twice", frame.model(rotary, frame.mlp(1), mlp_times=2), ROTARY),
        *(_with_mlp(frame, T, widened=True) for T in (1, 2)),
    )


@dataclass(frozen=True)
class Experiment:
    """One of the paper's experiments.

    Attributes:
        figure: of the paper. title: for help and lists. variants: its models at a size, baselines first.
    """

    figure: str
    title: str
    variants: Callable[[Frame], tuple[Variant, ...]]


STUDIES: Mapping[str, Experiment] = MappingProxyType(
    {
        "replace-attention": Experiment(
            "Fig. 2a", "Llama's attention replaced by CEM's, T = 1 and 2", replace_attention
        ),
        "replace-mlp": Experiment("Fig. 2b", "Llama's MLP replaced by CEM's, also at equal parameters", replace_mlp),
        "recursion": Experiment("Fig. 2c and 2d", "T = 1 and 2 with three preconditioners", recursion),
        "learning-rate": Experiment("Fig. 3a", "Llama and full CEM at five learning rates", learning_rate),
        "diagonal": Experiment("Fig. 3b", "no diagonal of A_k, one shared, one per head", diagonal),
        "reuse": Experiment("Fig. 3c and 4", "recursion inside a layer, or the layer twice", reuse),
    }
)


SIZES = (TINY, *paper.SIZES)


def plan(
    study: str,
    size: str,
    vocabulary: int,
    *,
    seeds: int | None = None,
    seed: int = 0,
    dims: paper.Size = TINY_SIZE,
) -> StudyPlan:
    """The study of that name at that size.

    Args:
        vocabulary: V; the paper's sizes need its 32,000.
        dims: of the size "tiny".

    Raises:
        UsageError: there is no such study or size, or the vocabulary is another.
    """
    if study not in STUDIES:
        raise UsageError(f"unknown study {study!r}; choose from {', '.join(STUDIES)}")
    check_size(size, vocabulary, SIZES)
    experiment = STUDIES[study]
    figure = experiment.figure
    if size == TINY:
        variants = experiment.variants(tiny_frame(vocabulary, dims))
        return StudyPlan(study, size, figure, variants, tiny_recipe(), _or(seeds, 6), seed, windows=128)
    frame = Frame(paper.SIZES[size], vocabulary, 0.02)
    return StudyPlan(
        study, size, figure, experiment.variants(frame), paper_recipe(size), _or(seeds, 1), seed, windows=128
    )


@dataclass(frozen=True)
class StudyChoice:
    """A study, and what is changed of it.

    Attributes:
        name, size: of `STUDIES` and of `SIZES`. seeds: how many; None takes the usual number. seed: the first one.
        recipe: other numbers of the recipe. dim, layers, heads: D, L and K at size "tiny".
    """

    name: str
    size: str = TINY
    seeds: int | None = None
    seed: int = 0
    recipe: RecipeChanges = RecipeChanges()
    dim: int | None = None
    layers: int | None = None
    heads: int | None = None

    def plan(self, vocabulary: int) -> StudyPlan:
        """The complete study, for tokens of a vocabulary.

        Raises:
            UsageError: there is no such study or size, or the numbers do not fit together.
        """
        dims = tiny_dims(self.dim, self.layers, self.heads)
        if self.size in paper.SIZES and (self.dim or self.layers or self.heads):
            raise UsageError(f"size {self.size} has its own dimensions: leave out --dim, --layers and --heads")
        found = plan(self.name, self.size, vocabulary, seeds=self.seeds, seed=self.seed, dims=dims)
        if found.variants[0].learning_rate is not None and self.recipe.learning_rate is not None:
            raise UsageError(f"the study {found.study} has learning rates of its own: leave out --learning-rate")
        recipe = self.recipe.of(found.recipe)
        if recipe.batch % recipe.accumulate:
            raise UsageError(
                f"a batch of {recipe.batch} windows cannot be shared equally by {recipe.accumulate} passes; choose a"
                " --batch that is a multiple of --accumulate"
            )
        return replace(found, recipe=recipe)


def _or(seeds: int | None, usual: int) -> int:
    return usual if seeds is None else seeds


def _llama(frame: Frame, position: Literal["rotary", "alibi"], against: str | None = None) -> Variant:
    name = ROTARY if position == "rotary" else ALIBI
    return Variant(name, frame.model(frame.llama_attention(position), frame.swiglu()), against)


_DIAGONALS = {"none": ", no diagonal", "shared": "", "per-head": ", a diagonal per head"}


def attention_name(steps: int, preconditioner: str = "diagonal", diagonal: DiagonalKind = "shared") -> str:
    """The name of Llama with CEM's attention."""
    other = "" if preconditioner == "diagonal" else f", {preconditioner} P"
    return f"CEM attention, T = {steps}{other}{_DIAGONALS[diagonal]}"


def mlp_name(steps: int, preconditioner: str = "diagonal") -> str:
    """The name of Llama with CEM's MLP."""
    return f"CEM MLP, T = {steps}" + ("" if preconditioner == "diagonal" else f", {preconditioner} P")


def _with_attention(
    frame: Frame,
    steps: int,
    preconditioner: PreconditionerName = "diagonal",
    diagonal: DiagonalKind = "shared",
    *,
    matched: bool = True,
    widened: bool = False,
) -> Variant:
    """Llama with CEM's attention; `matched` says whether the study has it widened too."""
    name = attention_name(steps, preconditioner, diagonal)
    attention = frame.attention(steps, preconditioner, diagonal)
    if widened:
        return Variant(name + WIDENED, frame.widened(lambda M: frame.model(attention, frame.swiglu(M))), ALIBI)
    looped = frame.model(attention, frame.swiglu())
    return Variant(name, looped, ALIBI, name + WIDENED if matched else None)


def _with_mlp(
    frame: Frame,
    steps: int,
    preconditioner: PreconditionerName = "diagonal",
    *,
    matched: bool = True,
    widened: bool = False,
) -> Variant:
    """Llama with CEM's MLP; `matched` as above."""
    name = mlp_name(steps, preconditioner)
    rotary = frame.llama_attention("rotary")
    if widened:
        wide = frame.widened(lambda M: frame.model(rotary, frame.mlp(steps, preconditioner, M)))
        return Variant(name + WIDENED, wide, ROTARY)
    looped = frame.model(rotary, frame.mlp(steps, preconditioner))
    return Variant(name, looped, ROTARY, name + WIDENED if matched else None)
