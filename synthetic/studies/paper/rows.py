"""The paper's language experiments: the models of each, in the words of the engine.

Each study changes one thing in a Llama model. Whatever the paper leaves open is the same in all of them: CEM's
attention has ALiBi positions, a diagonal of A_k shared by the heads and a diagonal preconditioner per head, CEM's MLP
a diagonal preconditioner, and both a gain per channel inside the recursion (`cemverify.cem.presets.full_cem`).

Replaced attention is compared with Llama with ALiBi, so that positions are not what is compared; replaced MLPs stand
in a Llama with rotary positions and are compared with that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cemverify.cem.layers import DiagonalKind
from synthetic.studies.engine.designs import Design, Option, Row, parameters
from synthetic.studies.engine.plan import Setting
from synthetic.training.frames import PRECONDITIONERS, PreconditionerName

RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
ROTARY, ALIBI, FULL, WIDENED = "Llama, RoPE", "Llama, ALiBi", "full CEM, T = 2", ", widened"


@dataclass(frozen=True)
class Variant(Row):
    """A model of an experiment."""

    against: str | None = None  # the name of the baseline that it is compared with; None of a baseline
    # the name of the same model with an MLP as wide as gives it the baseline's parameters, if it has one
    widened: str | None = None


def replace_attention(setting: Setting) -> tuple[Variant, ...]:
    """Llama's attention replaced by CEM's, T = 1 and 2."""
    cem = [_attention(setting, T) for T in (1, 2)]
    return (_llama(setting, ALIBI), _llama(setting, ROTARY, ALIBI), *cem, *_widened(setting, cem))


def replace_mlp(setting: Setting) -> tuple[Variant, ...]:
    """Llama's MLP replaced by CEM's at T = 1, of the same width and of the same parameters."""
    cem = _mlp(setting, 1)
    return (_llama(setting, ROTARY), cem, *_widened(setting, [cem]))


def recursion(setting: Setting) -> tuple[Variant, ...]:
    """T = 1 and 2 with three preconditioners; attention alone, and MLP alone."""
    attention = [_attention(setting, T, P) for P in PRECONDITIONERS for T in (1, 2)]
    mlp = [_mlp(setting, T, P) for P in PRECONDITIONERS for T in (1, 2)]
    return (
        *(_llama(setting, ALIBI), _llama(setting, ROTARY)),
        *(*attention, *_widened(setting, attention[2:4])),  # those with a diagonal P
        *(*mlp, *_widened(setting, mlp[2:4])),
    )


def learning_rate(setting: Setting) -> tuple[Variant, ...]:
    """Llama and full CEM at T = 2, each at five learning rates."""
    cem = Variant(FULL, _design(setting, "full", ("steps", 2)), against=ROTARY)
    models = (_llama(setting, ROTARY), _llama(setting, ALIBI, ROTARY), cem, *_widened(setting, [cem]))
    return tuple(
        replace(
            model,
            name=at_rate(model.name, rate),
            rate=rate,
            against=at_rate(model.against, rate) if model.against else None,
        )
        for model in models
        for rate in RATES
    )


def diagonal(setting: Setting) -> tuple[Variant, ...]:
    """No diagonal of A_k, one shared by the heads, one per head; attention alone, T = 1."""
    none, shared, per_head = (_attention(setting, 1, diagonal=kind) for kind in ("none", "shared", "per-head"))
    return (_llama(setting, ALIBI), none, shared, per_head, *_widened(setting, [shared]))


def reuse(setting: Setting) -> tuple[Variant, ...]:
    """Recursion inside a layer against the layer twice; attention alone, and MLP alone."""

    def twice(variant: Variant, name: str) -> Variant:
        return replace(variant, name=name, design=replace(variant.design, times=2))

    variants: list[Variant] = []
    for base, kind, build in ((ALIBI, "attention", _attention), (ROTARY, "MLP", _mlp)):
        llama, cem = _llama(setting, base), [build(setting, T) for T in (1, 2)]
        again = twice(cem[0], f"{cem[0].name}, twice")
        variants += [llama, replace(twice(llama, f"Llama {kind} twice"), against=base), *cem, again]
        variants += _widened(setting, cem)
    return tuple(variants)


@dataclass(frozen=True)
class Experiment:
    """One of the paper's experiments."""

    figure: str  # of the paper
    title: str  # for help and lists
    variants: Callable[[Setting], tuple[Variant, ...]]  # its models at a size, baselines first

    def rows(self, setting: Setting) -> tuple[Variant, ...]:
        """The models, each with the name of its widened twin where the experiment has one."""
        variants = self.variants(setting)
        twins = {row.name: _widened_name(row) for row in variants}
        names = twins.keys()
        return tuple(replace(row, widened=twins[row.name] if twins[row.name] in names else None) for row in variants)


EXPERIMENTS: Mapping[str, Experiment] = {
    "replace-attention": Experiment("Fig. 2a", "Llama's attention replaced by CEM's, T = 1 and 2", replace_attention),
    "replace-mlp": Experiment("Fig. 2b", "Llama's MLP replaced by CEM's, also at equal parameters", replace_mlp),
    "recursion": Experiment("Fig. 2c and 2d", "T = 1 and 2 with three preconditioners", recursion),
    "learning-rate": Experiment("Fig. 3a", "Llama and full CEM at five learning rates", learning_rate),
    "diagonal": Experiment("Fig. 3b", "no diagonal of A_k, one shared, one per head", diagonal),
    "reuse": Experiment("Fig. 3c and 4", "recursion inside a layer, or the layer twice", reuse),
}


def at_rate(name: str, rate: float) -> str:
    """The name of a model at a learning rate."""
    return f"{name} at {rate:g}"


def attention_name(steps: int, preconditioner: str = "diagonal", diagonal: str = "shared") -> str:
    """The name of Llama with CEM's attention."""
    kinds = {"none": ", no diagonal", "shared": "", "per-head": ", a diagonal per head"}
    return f"CEM attention, T = {steps}{_other(preconditioner)}{kinds[diagonal]}"


def mlp_name(steps: int, preconditioner: str = "diagonal") -> str:
    """The name of Llama with CEM's MLP."""
    return f"CEM MLP, T = {steps}{_other(preconditioner)}"


def _other(preconditioner: str) -> str:
    return "" if preconditioner == "diagonal" else f", {preconditioner} P"


def _widened_name(row: Variant) -> str:
    """The name that the widened twin of a model has, at the same learning rate."""
    if row.rate is None:
        return row.name + WIDENED
    return at_rate(row.name.removesuffix(at_rate("", row.rate)) + WIDENED, row.rate)


def _design(setting: Setting, replaced: str, *layer: Option) -> Design:
    return replace(setting.design(*layer), replaced=replaced)  # type: ignore[arg-type]


def _llama(setting: Setting, name: str, against: str | None = None) -> Variant:
    return Variant(name, _design(setting, "llama-rotary" if name == ROTARY else "llama-alibi"), against=against)


def _attention(
    setting: Setting, steps: int, P: PreconditionerName = "diagonal", diagonal: DiagonalKind = "shared"
) -> Variant:
    options = _design(setting, "attention", ("steps", steps), ("preconditioner", P), ("diagonal", diagonal))
    return Variant(attention_name(steps, P, diagonal), options, against=ALIBI)


def _mlp(setting: Setting, steps: int, P: PreconditionerName = "diagonal") -> Variant:
    return Variant(
        mlp_name(steps, P), _design(setting, "mlp", ("steps", steps), ("preconditioner", P)), against=ROTARY
    )


def _widened(setting: Setting, narrow: list[Variant]) -> list[Variant]:
    """Models with the M' that gives them the parameters of Llama, rounded to eights.

    About 3 M / 2 for CEM's MLP, M + 2 D / 3 for a Llama MLP behind CEM's attention.
    """
    M, base = setting.frame.size.hidden, parameters(setting.llama)

    def of(design: Design, hidden: int) -> Design:
        return replace(design, size=replace(design.size, hidden=hidden))

    wide_models = []
    for row in narrow:
        there, more = (parameters(of(row.design, hidden)) for hidden in (M, M + 1))
        wide = 8 * round((M + (base - there) / (more - there)) / 8)
        wide_models.append(replace(row, name=row.name + WIDENED, design=of(row.design, wide)))
    return wide_models
