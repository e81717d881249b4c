"""The models of each of the paper's language experiments, as rows of the engine.

Each study changes one thing in a Llama model. What the paper leaves open is the same in all studies: CEM's attention
has ALiBi positions, a diagonal of A_k shared by the heads, and a diagonal preconditioner per head. CEM's MLP has a
diagonal preconditioner. Both have a gain per channel inside the recursion (`cemverify.cem.presets.full_cem`).

Replaced attention is compared with a Llama with ALiBi, so that both have the same positions. Replaced MLPs are in a
Llama with rotary positions and are compared with one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from cemverify.cem.layers import DiagonalKind
from synthetic.studies.engine.designs import Design, Option, Row, parameters
from synthetic.studies.engine.plan import Setting
from synthetic.training.frames import PRECONDITIONERS, PreconditionerName

RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)


@dataclass(frozen=True)
class Key:
    """Identifies a model of an experiment."""

    kind: Literal["rotary", "alibi", "attention", "mlp", "full"]  # Llama's positions, or the layers that are CEM's
    steps: int = 1  # T
    P: PreconditionerName = "diagonal"  # of CEM's layers; ignored for full CEM, which has the paper's
    diagonal: DiagonalKind = "shared"  # of A_k
    times: int = 1  # how often the layer is applied
    widened: bool = False  # whether its MLP is widened to give it as many parameters as Llama
    rate: float | None = None  # the learning rate, if an experiment has several

    @property
    def title(self) -> str:
        """Its name in tables and result files."""
        P = "" if self.P == "diagonal" else f", {self.P} P"
        diagonal = {"none": ", no diagonal", "shared": "", "per-head": ", a diagonal per head"}[self.diagonal]
        title = {
            "rotary": "Llama, RoPE" if self.times == 1 else "Llama MLP twice",
            "alibi": "Llama, ALiBi" if self.times == 1 else "Llama attention twice",
            "attention": f"CEM attention, T = {self.steps}{P}{diagonal}",
            "mlp": f"CEM MLP, T = {self.steps}{P}",
            "full": f"full CEM, T = {self.steps}",
        }[self.kind]
        title += ", twice" if self.times > 1 and self.is_cem else ""
        title += ", widened" if self.widened else ""
        return title if self.rate is None else f"{title} at {self.rate:g}"

    @property
    def is_cem(self) -> bool:
        """Whether any of its layers is CEM's."""
        return self.kind in BASELINES

    @property
    def baseline(self) -> Key | None:
        """What it is compared with in every experiment; None for a Llama whose layers are applied once."""
        if self.is_cem:
            return Key(BASELINES[self.kind], rate=self.rate)
        return replace(self, times=1) if self.times > 1 else None

    def design(self, setting: Setting) -> Design:
        """The model at a size."""
        layer: tuple[Option, ...] = (("steps", self.steps),) if self.is_cem else ()
        if self.kind in ("attention", "mlp"):
            layer = (*layer, ("preconditioner", self.P))
        if self.kind == "attention":
            layer = (*layer, ("diagonal", self.diagonal))
        replaced: Literal["attention", "mlp", "full", "llama-rotary", "llama-alibi"]
        replaced = "llama-rotary" if self.kind == "rotary" else "llama-alibi" if self.kind == "alibi" else self.kind
        design = replace(setting.design(*layer), replaced=replaced, times=self.times)
        return _widened(setting, design) if self.widened else design


BASELINES: Mapping[str, Literal["rotary", "alibi"]] = {"attention": "alibi", "mlp": "rotary", "full": "rotary"}
ROTARY, ALIBI, FULL = Key("rotary"), Key("alibi"), Key("full", 2)
ATTENTION, MLP = (tuple(Key(kind, T) for T in (1, 2)) for kind in ("attention", "mlp"))


@dataclass(frozen=True)
class Variant(Row):
    """A model of an experiment."""

    against: Key | None = None  # the baseline that it is compared with; None for a baseline


@dataclass(frozen=True)
class Experiment:
    """One of the paper's experiments."""

    figure: str  # in the paper
    title: str  # for help and lists
    keys: tuple[Key, ...]  # its models, a baseline first

    def rows(self, setting: Setting) -> tuple[Variant, ...]:
        """The models at a size, each with its baseline."""
        bases = {key: key.baseline for key in self.keys}
        for key in [key for key, base in bases.items() if base is None and key not in bases.values()]:
            first = replace(self.keys[0], rate=key.rate)
            if key != first:  # a Llama that is not a baseline is compared with the first model
                bases[key] = first
        return tuple(
            Variant(
                key.title,
                key.design(setting),
                rate=key.rate,
                key=key,
                against=base,
            )
            for key, base in bases.items()
        )


def _wide(*keys: Key) -> tuple[Key, ...]:
    return tuple(replace(key, widened=True) for key in keys)


def _preconditioned(kind: Literal["attention", "mlp"]) -> tuple[Key, ...]:
    return tuple(Key(kind, T, P) for P in PRECONDITIONERS for T in (1, 2))


def _reused(llama: Key, once: Key, deep: Key) -> tuple[Key, ...]:
    return (llama, replace(llama, times=2), once, deep, replace(once, times=2), *_wide(once, deep))


EXPERIMENTS: Mapping[str, Experiment] = {
    "replace-attention": Experiment(
        *("Fig. 2a", "Llama's attention replaced by CEM's, T = 1 and 2"),
        (ALIBI, ROTARY, *ATTENTION, *_wide(*ATTENTION)),
    ),
    "replace-mlp": Experiment(
        *("Fig. 2b", "Llama's MLP replaced by CEM's, also at equal parameters"), (ROTARY, MLP[0], *_wide(MLP[0]))
    ),
    "recursion": Experiment(
        *("Fig. 2c and 2d", "T = 1 and 2 with three preconditioners"),
        (
            *(ALIBI, ROTARY, *_preconditioned("attention"), *_wide(*ATTENTION)),
            *(*_preconditioned("mlp"), *_wide(*MLP)),
        ),
    ),
    "learning-rate": Experiment(
        *("Fig. 3a", "Llama and full CEM at five learning rates"),
        tuple(replace(key, rate=rate) for key in (ROTARY, ALIBI, FULL, *_wide(FULL)) for rate in RATES),
    ),
    "diagonal": Experiment(
        *("Fig. 3b", "no diagonal of A_k, one shared, one per head"),
        (
            ALIBI,
            *(Key("attention", diagonal=kind) for kind in ("none", "shared", "per-head")),
            *_wide(ATTENTION[0]),
        ),
    ),
    "reuse": Experiment(
        *("Fig. 3c and 4", "recursion inside a layer, or the layer twice"),
        (*_reused(ALIBI, *ATTENTION), *_reused(ROTARY, *MLP)),
    ),
}


def _widened(setting: Setting, narrow: Design) -> Design:
    """The model with an M' that gives it as many parameters as Llama, rounded to a multiple of 8.

    About 3 M / 2 for CEM's MLP, M + 2 D / 3 for a Llama MLP behind CEM's attention.
    """
    M = setting.frame.size.hidden
    there, more = (parameters(narrow.widened(hidden)) for hidden in (M, M + 1))
    return narrow.widened(8 * round((M + (parameters(setting.llama) - there) / (more - there)) / 8))
