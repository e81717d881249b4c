"""The models of a study: the few options that identify a model in the store, and the configuration they stand for.

A cell of the store identifies a model by its differences from the frame that all models share. Options that are added
to the layers later do not change the keys of cells that do not use them.
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
    """A model by the options that its cells store."""

    # which layers of Llama are replaced by CEM's; "llama-alibi" and "llama-rotary" replace none
    replaced: Literal["attention", "mlp", "full", "llama-alibi", "llama-rotary"]
    size: paper.Size  # D, L, K, M
    vocabulary: int  # V
    embedding_std: float  # of the first embedding
    init_std: float  # of all other initial weights
    # options of the CEM layers that differ from their defaults, including those beyond the paper: (("steps", 2),
    # ("step_size", 0.5), ("momentum", 0.5))
    layer: tuple[Option, ...] = ()
    # how often each CEM layer is applied in a row; for Llama: its attention if that has ALiBi, otherwise its MLP
    times: int = 1
    rounds: int = field(default=1, metadata={"added": True})  # how often attention and MLP take turns
    # "sum" and "alike" train with T drawn from 1 ... steps for each batch: with step sizes that sum to the same for
    # every T, or with one size for every T; "" trains with T = steps
    dial: Dial = field(default="", metadata={"added": True})
    # None: the usual ones for `replaced` (see `position`)
    positions: Positions | None = field(default=None, metadata={"added": True})

    @property
    def steps(self) -> int:
        """T, or the largest T that is drawn."""
        return int(dict(self.layer).get("steps", 1))

    @property
    def depths(self) -> tuple[int, ...]:
        """The numbers of steps that it is scored with: T, or 1, 2, 4 ... up to the largest that is drawn."""
        return doubling(self.steps) if self.dial else (self.steps,)

    def step_size_at(self, steps: int) -> float:
        """The size of each step when it takes this many."""
        eta = float(dict(self.layer).get("step_size", 1.0))
        return eta * self.steps / steps if self.dial == "sum" else eta

    @property
    def preconditioner(self) -> PreconditionerName:
        """P; by default low-rank in both layers of full CEM, as in the paper, and diagonal otherwise."""
        usual = "low rank" if self.replaced == "full" else "diagonal"
        return cast(PreconditionerName, dict(self.layer).get("preconditioner", usual))

    @property
    def position(self) -> Positions:
        """The positions; by default ALiBi with CEM attention and in the Llama compared with it."""
        if self.positions is not None:
            return self.positions
        return "rotary" if self.replaced in ("mlp", "llama-rotary") else "alibi"

    def widened(self, hidden: int) -> Design:
        """The model with this many hidden units in its MLP."""
        return replace(self, size=replace(self.size, hidden=hidden))

    @property
    def looped(self) -> LoopedConfig:
        """The complete configuration of the model."""
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
        if isinstance(config, MLPConfig):  # an MLP has no temperature
            beyond.pop("cooling", None)
            changes.pop("temperature", None)
        return replace(config, **changes, beyond=Beyond(**beyond))


@dataclass(frozen=True)
class Row:
    """A row of the study."""

    name: str  # its title in the tables, and on the command line
    design: Design  # the model
    weights: int = 0  # added to the seed of the initial weights only; 0 except for the A/A row
    why: str = ""  # the purpose of the row
    beyond: bool = False  # whether it is beyond the paper
    rate: float | None = None  # its learning rate, if the study does not search for one
    length: float = 1.0  # the length of its training, relative to the others
    key: Hashable = None  # identifies the row; its title by default

    def __post_init__(self) -> None:
        if self.key is None:
            object.__setattr__(self, "key", self.name)


def chosen(every: Sequence[Row], names: Sequence[str]) -> tuple[Row, ...]:
    """The rows with these names, in the study's order."""
    there = [row.name for row in every]
    if unknown := [name for name in names if name not in there]:
        raise UsageError(f"there is no row {unknown[0]!r}; choose from {'; '.join(there)}")
    return tuple(row for row in every if row.name in names)


@cache
def cost(design: Design, context: int) -> Cost:
    """FLOPs per token in windows of J = context tokens; the mean over T if T is drawn."""
    if not design.dial:
        return cost_of(looped_on_meta(design.looped), context)
    # every step costs the same, so the mean over 1 ... T is the mean of the two ends
    ends = [
        cost(replace(design, dial="", layer=tuple({**dict(design.layer), "steps": T}.items())), context)
        for T in (1, design.steps)
    ]
    return Cost(*(sum(values) / 2 for values in zip(*map(astuple, ends), strict=True)))


def as_costly(narrow: Design, target: Design, context: int) -> Design:
    """`narrow`, its MLP widened until training costs as much per token as `target`; M is a multiple of 8."""
    M = narrow.size.hidden
    base, wider = (cost(narrow.widened(hidden), context).training for hidden in (M, 2 * M))
    missing = cost(target, context).training - base
    return narrow.widened(8 * round((M + M * missing / (wider - base)) / 8))


@cache
def parameters(design: Design) -> int:
    """The number of parameters of the model."""
    return sum(parameter.numel() for parameter in looped_on_meta(design.looped).parameters())
