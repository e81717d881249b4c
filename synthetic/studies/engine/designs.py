"""The models of the study: a few words that name a model in the store, and the configuration they stand for.

A cell of the store names a model by what differs from the frame that all share. Options that are added to the layers
later leave the keys of cells alone that do not use them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, cast

from cemverify.cem import presets as paper
from cemverify.cem.beyond import Beyond
from cemverify.cem.layers import LayerConfig, MLPConfig
from cemverify.console.errors import UsageError
from synthetic.training.cost import Cost, cost_of
from synthetic.training.frames import Frame, PreconditionerName
from synthetic.training.looped import LoopedConfig, looped_on_meta

Replaced = Literal["attention", "mlp", "full"]
REPLACED: tuple[Replaced, ...] = ("attention", "mlp", "full")
LAYERS = {"attention": "CEM attention", "mlp": "CEM MLPs", "full": "full CEM"}  # as pages name them
EMBEDDING_STD = 1.0
BEYOND = tuple(option.name for option in fields(Beyond))
Option = tuple[str, int | float | str]
Dial = Literal["", "sum", "alike"]
Positions = Literal["rotary", "alibi"]


def doubling(most: int) -> tuple[int, ...]:
    """The powers of two 1, 2, 4 ... up to `most`."""
    return tuple(2**i for i in range(most.bit_length()))


@dataclass(frozen=True)
class Design:
    """A model in the words that name its cells."""

    # what of Llama is CEM's; "llama-alibi" and "llama-rotary" replace nothing
    replaced: Literal["attention", "mlp", "full", "llama-alibi", "llama-rotary"]
    size: paper.Size  # D, L, K, M
    vocabulary: int  # V
    embedding_std: float  # of the first embedding
    init_std: float  # of all other first weights
    # options of the CEM layers, and of what is beyond the paper in them, that are not their defaults: (("steps", 2),
    # ("step_size", 0.5), ("momentum", 0.5))
    layer: tuple[Option, ...] = ()
    # how often each CEM layer is applied in a row; of Llama its attention where that has ALiBi, and its MLP otherwise
    times: int = 1
    rounds: int = field(default=1, metadata={"added": True})  # how often attention and MLP take turns
    # whether it is trained with T drawn from 1 ... steps for each batch: with steps that "sum" to the same whatever T
    # is, or that are all "alike"; "" trains with T = steps
    dial: Dial = field(default="", metadata={"added": True})
    # where they are not those of what is replaced
    positions: Positions | None = field(default=None, metadata={"added": True})

    @property
    def steps(self) -> int:
        """T, or the largest that is drawn."""
        return int(dict(self.layer).get("steps", 1))

    @property
    def depths(self) -> tuple[int, ...]:
        """The numbers of steps that it is scored with: T, or 1, 2, 4 ... of those that are drawn."""
        return doubling(self.steps) if self.dial else (self.steps,)

    def step_size_at(self, steps: int) -> float:
        """The size of each step when it takes so many."""
        eta = float(dict(self.layer).get("step_size", 1.0))
        return eta * self.steps / steps if self.dial == "sum" else eta

    @property
    def preconditioner(self) -> PreconditionerName:
        """P where no option names it: the paper's full model has a low-rank one in both layers, others a diagonal."""
        usual = "low rank" if self.replaced == "full" else "diagonal"
        return cast(PreconditionerName, dict(self.layer).get("preconditioner", usual))

    @property
    def position(self) -> Positions:
        """CEM attention has ALiBi, and so has the Llama beside it."""
        if self.positions is not None:
            return self.positions
        return "rotary" if self.replaced in ("mlp", "llama-rotary") else "alibi"

    def widened(self, hidden: int) -> Design:
        """The model with so many hidden units in its MLP."""
        return replace(self, size=replace(self.size, hidden=hidden))

    @property
    def looped(self) -> LoopedConfig:
        """The complete configuration of the model that these words name."""
        frame = Frame(self.size, self.vocabulary, self.init_std)
        P = self.preconditioner
        in_attention, in_mlp = self.replaced in ("attention", "full"), self.replaced in ("mlp", "full")
        attention = self._with(frame.attention(1, P)) if in_attention else frame.llama_attention(self.position)
        mlp = self._with(frame.mlp(1, P)) if in_mlp else frame.swiglu()
        config = frame.model(
            attention,
            mlp,
            attention_times=self.times if in_attention or self.replaced == "llama-alibi" else 1,
            mlp_times=self.times if in_mlp or self.replaced == "llama-rotary" else 1,
        )
        block = replace(config.model.block, rounds=self.rounds)
        return replace(config, model=replace(config.model, block=block, embedding_std=self.embedding_std))

    def _with(self, config: Any) -> Any:
        assert isinstance(config, LayerConfig)
        changes: dict[str, Any] = {name: value for name, value in self.layer if name != "preconditioner"}
        beyond = {name: changes.pop(name) for name in BEYOND if name in changes}
        if isinstance(config, MLPConfig):  # which has no temperature
            beyond.pop("cooling", None)
            changes.pop("temperature", None)
        return replace(config, **changes, beyond=Beyond(**beyond))


@dataclass(frozen=True)
class Row:
    """A row of the study."""

    name: str  # its title in the tables, and on the command line
    design: Design  # the model
    weights: int = 0  # is added to a seed for the first weights alone, 0 for all but the A/A row
    why: str = ""  # what the row is there for
    beyond: bool = False  # whether it is beyond the paper
    rate: float | None = None  # its learning rate, where the study does not find one
    length: float = 1.0  # how many times as long as the others it is trained
    key: Hashable = None  # what it is found by; its title, if the study gives it none

    def __post_init__(self) -> None:
        if self.key is None:
            object.__setattr__(self, "key", self.name)


def chosen(every: Sequence[Row], names: Sequence[str]) -> tuple[Row, ...]:
    """The rows of these names, in the study's order."""
    there = [row.name for row in every]
    if unknown := [name for name in names if name not in there]:
        raise UsageError(f"there is no row {unknown[0]!r}; choose from {'; '.join(there)}")
    return tuple(row for row in every if row.name in names)


@cache
def cost(design: Design, context: int) -> Cost:
    """FLOPs per token in windows of J = context tokens; the mean over T where it is drawn."""
    if not design.dial:
        return cost_of(looped_on_meta(design.looped), context)
    # every step costs the same, so the mean over 1 ... T is that of the ends
    ends = [
        cost(replace(design, dial="", layer=tuple({**dict(design.layer), "steps": T}.items())), context)
        for T in (1, design.steps)
    ]
    return Cost(*(sum(values) / 2 for values in zip(*map(astuple, ends), strict=True)))


def as_costly(narrow: Design, target: Design, context: int) -> Design:
    """The narrow model with an MLP so wide, in eights, that a token of training costs what the target's costs."""
    M = narrow.size.hidden
    base, wider = (cost(narrow.widened(hidden), context).training for hidden in (M, 2 * M))
    missing = cost(target, context).training - base
    return narrow.widened(8 * round((M + M * missing / (wider - base)) / 8))


@cache
def parameters(design: Design) -> int:
    """How many parameters the model of a design has."""
    return sum(parameter.numel() for parameter in looped_on_meta(design.looped).parameters())
