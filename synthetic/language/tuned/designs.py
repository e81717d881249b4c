"""The models of the study: a few words that name a model in the store, and the configuration they stand for.

A cell of the store names a model by what differs from the frame that all share. Options that are added to the layers
later leave the keys of cells alone that do not use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal

from cemverify.cem import presets as paper
from cemverify.cem.beyond import Beyond
from cemverify.cem.layers import LayerConfig, MLPConfig
from synthetic.language.paper.studies import TINY_SIZE, Frame, PreconditionerName
from synthetic.language.training.cost import Cost, cost_of
from synthetic.language.training.looped import LoopedConfig, looped_on_meta
from synthetic.language.training.scaling import Base

Replaced = Literal["attention", "mlp", "full"]
REPLACED: tuple[Replaced, ...] = ("attention", "mlp", "full")
LAYERS = {"attention": "CEM attention", "mlp": "CEM MLPs", "full": "full CEM"}  # as pages name them
EMBEDDING_STD = 1.0
BEYOND = tuple(option.name for option in fields(Beyond))
# c of §18c: the second step is this much colder than the first.
COOLING = 0.5
Option = tuple[str, int | float | str]
Dial = Literal["", "sum", "alike"]


def doubling(most: int) -> tuple[int, ...]:
    """1, 2, 4 ... up to `most`."""
    return tuple(2**i for i in range(most.bit_length()))


@dataclass(frozen=True)
class Design:
    """A model in the words that name its cells.

    Attributes:
        replaced: what of Llama is CEM's; "llama-alibi" and "llama-rotary" replace nothing.
        size: D, L, K, M. vocabulary: V.
        embedding_std: of the first embedding. init_std: of all other first weights.
        layer: options of the CEM layers, and of what is beyond the paper in them, that are not their defaults:
            (("steps", 2), ("step_size", 0.5), ("momentum", 0.5)).
        times: how often each CEM layer is applied in a row. rounds: how often attention and MLP take turns.
        head_std: of the head's first weights, where it is not `init_std`.
        dial: whether it is trained with T drawn from 1 ... steps for each batch: with steps that "sum" to the same
            whatever T is, or that are all "alike"; "" trains with T = steps.
    """

    replaced: Literal["attention", "mlp", "full", "llama-alibi", "llama-rotary"]
    size: paper.Size
    vocabulary: int
    embedding_std: float
    init_std: float
    layer: tuple[Option, ...] = ()
    times: int = 1
    rounds: int = field(default=1, metadata={"added": True})
    head_std: float | None = field(default=None, metadata={"added": True})
    dial: Dial = field(default="", metadata={"added": True})

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
    def looped(self) -> LoopedConfig:
        """The model."""
        frame = Frame(self.size, self.vocabulary, self.init_std)
        # the paper's full model has a low-rank preconditioner in both, its single replacements are taken diagonal
        P: PreconditionerName = "low rank" if self.replaced == "full" else "diagonal"
        in_attention, in_mlp = self.replaced in ("attention", "full"), self.replaced in ("mlp", "full")
        position: Literal["rotary", "alibi"] = "rotary" if self.replaced in ("mlp", "llama-rotary") else "alibi"
        attention = self._with(frame.attention(1, P)) if in_attention else frame.llama_attention(position)
        mlp = self._with(frame.mlp(1, P)) if in_mlp else frame.swiglu()
        found = frame.model(
            attention,
            mlp,
            attention_times=self.times if in_attention else 1,
            mlp_times=self.times if in_mlp else 1,
        )
        block = replace(found.model.block, rounds=self.rounds)
        return replace(
            found, model=replace(found.model, block=block, embedding_std=self.embedding_std, head_std=self.head_std)
        )

    def _with(self, config: Any) -> Any:
        assert isinstance(config, LayerConfig)
        changes: dict[str, Any] = dict(self.layer)
        beyond = {name: changes.pop(name) for name in BEYOND if name in changes}
        if isinstance(config, MLPConfig):  # which has no temperature
            beyond.pop("cooling", None)
            changes.pop("temperature", None)
        return replace(config, **changes, beyond=Beyond(**beyond))


@dataclass(frozen=True)
class Row:
    """A row of the study.

    Attributes:
        name: in the tables. design: the model. weights: is added to a seed for the first weights alone, 0 for all but
            the A/A row. why: what the row is there for. beyond: whether it is beyond the paper.
        base: the size from which rates are scaled; None: one rate for all parameters.
    """

    name: str
    design: Design
    weights: int = 0
    why: str = ""
    beyond: bool = False
    base: Base | None = None


# Far from any seed that judges or tunes.
OTHER_WEIGHTS = 1_000_000


def one(depth: int = 1) -> str:
    """The name of T = 1, or of T = 1 with a step so many times as long."""
    return "T = 1" if depth == 1 else f"T = 1, eta {depth}"


def several(depth: int) -> str:
    """The name of T = depth with steps of 1/T."""
    return f"T = {depth}, eta 1/{depth}"


AGAIN, WIDER, TWICE, LEARNED_ONE, LLAMA = "T = 1 again", "T = 1, wider", "T = 1, twice", "T = 1, eta learned", "Llama"


def rows(replaced: Replaced, frame: Frame, context: int, depth: int = 2) -> tuple[Row, ...]:
    """The rows of every study, those first without which nothing can be said.

    Args:
        context: J, which decides what attention costs. depth: T.
    """

    def design(*layer: Option, times: int = 1, size: paper.Size = frame.size) -> Design:
        return Design(replaced, size, frame.vocabulary, EMBEDDING_STD, frame.init_std, tuple(layer), times)

    plain, deep = design(), design(("steps", depth), ("step_size", 1 / depth))
    wider = _as_costly(plain, deep, context)
    llama = replace(plain, replaced="llama-rotary" if replaced == "mlp" else "llama-alibi")
    return (
        Row(one(), plain, why="the model without recursion"),
        Row(one(depth), design(("step_size", float(depth))), why="the longer update without recursion"),
        Row(several(depth), deep, why="the recursion"),
        Row(AGAIN, plain, OTHER_WEIGHTS, why="T = 1 with other first weights, tuned anew: should come out equal"),
        Row(WIDER, wider, why=f"as many training FLOPs a token as T = {depth}"),
        Row(TWICE, design(times=depth), why="plain reuse: the memory is read anew"),
        Row(f"T = {depth}, eta 1", design(("steps", depth)), why="the paper's step size, as far as it says one"),
        Row(
            f"T = {depth}, eta learned",
            design(("steps", depth), ("step_size", 1 / depth), ("step", "learned")),
            why=f"one step size a layer, learned from 1/{depth}",
        ),
        Row(LEARNED_ONE, design(("step", "learned")), why="one step size a layer, learned from 1"),
        Row(LLAMA, llama, why="nothing replaced"),
    )


def beyond(replaced: Replaced, frame: Frame, depth: int = 2) -> tuple[Row, ...]:
    """Rows of T steps that differ from one another, or are taken jointly: what the paper does not have (§18).

    All begin with steps of 1/T, as T = depth does. Those that learn what is new begin where it is nothing.
    """
    deep: tuple[Option, ...] = (("steps", depth), ("step_size", 1 / depth))
    learned: tuple[Option, ...] = (("step", "learned"), ("own_steps", True))
    momentum: tuple[Option, ...] = (("learn_momentum", True),)
    own: tuple[Option, ...] = (("own_preconditioners", True),)
    cooled: tuple[Option, ...] = () if replaced == "mlp" else (("cooling", COOLING),)

    def row(what: str, why: str, *layer: Option, T: int = depth, rounds: int = 1) -> Row:
        design = Design(replaced, frame.size, frame.vocabulary, EMBEDDING_STD, frame.init_std, layer, rounds=rounds)
        return Row(f"T = {T}, {what}", design, why=why, beyond=True)

    found = [
        row("momentum", "heavy ball, mu learned from 0", *deep, *momentum),
        row("P per step", "each step learns a preconditioner of its own", *deep, *own),
        row("eta per step", f"each step learns a size of its own, from 1/{depth}", *deep, *learned),
    ]
    if cooled:
        found.append(row("temperature per step", f"step t has tau {COOLING}^t", *deep, *cooled))
    found.append(row("all of these", "all that is above", *deep, *momentum, *own, *learned, *cooled))
    if replaced == "full":
        why = f"attention and MLP take {depth} turns on the sum of their energies, memories fixed"
        found.append(row("joint", why, ("step_size", 1 / depth), rounds=depth))
    for norm in ("scalar", "folded"):
        found.append(row(f"{norm} norm", f"the norm inside is {norm}", *deep, ("norm", norm)))
        found.append(row(f"{norm} norm", "its control", ("norm", norm), T=1))
    return (*found, *_scaled(replaced, frame, depth))


def _scaled(replaced: Replaced, frame: Frame, depth: int) -> Iterator[Row]:
    """T = 1 and T = depth by maximal-update scaling from "tiny"; none at "tiny", where nothing would be scaled."""
    base = Base(TINY_SIZE.dim, TINY_SIZE.layers, TINY_SIZE.heads)
    size = frame.size
    if (size.dim, size.layers, size.heads) == (base.dim, base.layers, base.heads):
        return
    eta, tau = base.step_share(size.layers), base.temperature(size.dim // size.heads)
    for T in (1, depth):
        layer: tuple[Option, ...] = (("steps", T), ("step_size", eta / T), ("temperature", tau))
        design = Design(replaced, size, frame.vocabulary, EMBEDDING_STD, frame.init_std, layer)
        design = replace(design, head_std=base.head_std(size.dim))
        why = f"maximal-update scaling from D = {base.dim}, L = {base.layers}"
        yield Row(f"T = {T}, mu-scaled", design, why=why, beyond=True, base=base)


def chosen(every: Sequence[Row], names: Sequence[str]) -> tuple[Row, ...]:
    """The rows of these names, in the study's order; all if none is named.

    Raises:
        ValueError: there is no such row; the message lists those there are.
    """
    known = [row.name for row in every]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no row {unknown[0]!r}; choose from {'; '.join(known)}")
    return tuple(row for row in every if not names or row.name in names)


@cache
def cost(design: Design, context: int) -> Cost:
    """FLOPs per token in windows of J = context tokens; the mean over T where it is drawn."""
    if not design.dial:
        return cost_of(looped_on_meta(design.looped), context)
    # every step costs the same, so the mean over 1 ... T is that of the ends
    ends = [cost(replace(design, dial="", layer=_with_steps(design.layer, T)), context) for T in (1, design.steps)]
    return Cost(*(sum(values) / 2 for values in zip(*map(astuple, ends), strict=True)))


def _with_steps(layer: tuple[Option, ...], steps: int) -> tuple[Option, ...]:
    return tuple({**dict(layer), "steps": steps}.items())


@cache
def parameters(design: Design) -> int:
    """How many the model has."""
    return sum(parameter.numel() for parameter in looped_on_meta(design.looped).parameters())


def _as_costly(narrow: Design, target: Design, context: int) -> Design:
    """The narrow model with an MLP so wide, in eights, that a token of training costs what the target's costs."""

    def of(hidden: int) -> Design:
        return replace(narrow, size=replace(narrow.size, hidden=hidden))

    M = narrow.size.hidden
    base, wider = (cost(of(hidden), context).training for hidden in (M, 2 * M))
    missing = cost(target, context).training - base
    return of(8 * round((M + M * missing / (wider - base)) / 8))
