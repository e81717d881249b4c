"""CEM layers: modules whose parameters make an energy and a descent, and nothing else.

    layer.energy     what it minimises, built from its parameters
    layer.descent    how
    layer(x, h)      descent(energy, start=x, memory=energy.remember(h)), by blocks of tokens where that helps

A layer owns the RMSNorm gain that its descent uses inside, and `layer.residual(h)` is the sublayer of a
standard pre-norm block: it starts at h, uses N(h) as its memory and evaluates the energy at N(x). At T = 1 and
P = I that is exactly h + MHA(N(h)), or h + MLP(N(h)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from cemverify.cem import blocked
from cemverify.cem.activations import activation
from cemverify.cem.beyond import PAPER, Beyond
from cemverify.cem.descent import Descent, Own, Trajectory
from cemverify.cem.energies import Convexified, Elementwise, Energy, Interaction, InteractionMemory
from cemverify.cem.norms import Norm, NormKind, norm
from cemverify.cem.positions import Bias, Rotary, SelfCross, alibi, printed_alibi
from cemverify.cem.precision import for_products
from cemverify.cem.preconditioners import Preconditioner, PreconditionerKind, preconditioner

DiagonalKind = Literal["none", "shared", "per-head"]
PositionKind = Literal["none", "alibi", "alibi-printed", "self-cross", "rotary"]
InitKind = Literal["paper", "identity"]
StepKind = Literal["fixed", "learned"]


def check_word(option: str, word: str, words: Any) -> None:
    """Raises if a word is not in the `Literal` type, so that a typo does not silently select a default."""
    if word not in get_args(words):
        raise ValueError(f"unknown {option} {word!r}; choose from {', '.join(get_args(words))}")


@dataclass(frozen=True)
class PreconditionerConfig:
    """Which preconditioner a layer learns.

    Attributes:
        kind: "low-rank" is the positive-definite form, "low-rank-printed" the paper's.
        rank: R of U and V; the paper takes 4 per head in attention, 16 in the MLP (App. C.4).
        per_head: one for each attention head.
        init: "paper" is U ~ N(0, 0.02), V = 0, d = 1, so P = 1.313 I; "identity" starts at exactly P = I.
    """

    kind: PreconditionerKind = "identity"
    rank: int = 4
    per_head: bool = False
    init: InitKind = "paper"

    def __post_init__(self) -> None:
        check_word("preconditioner", self.kind, PreconditionerKind)
        check_word("init", self.init, InitKind)
        if self.rank < 1:
            raise ValueError(f"the rank of a preconditioner must be at least 1, not {self.rank}")
        if self.kind == "identity" and self.per_head:
            raise ValueError("the identity preconditioner is the same for every head: it cannot be per head")


@dataclass(frozen=True)
class LayerConfig:
    """The options that every CEM layer has.

    Attributes:
        dim: D.
        preconditioner: see `PreconditionerConfig`.
        steps: T. step_size: eta. step: whether eta is constant, or only the start of learning it.
        norm: RMSNorm inside the recursion; "folded" puts a per-channel gain into both paths.
        norm_eps: the number that the norm adds to the mean square.
        init_std: standard deviation of the initial weights.
        beyond: options that the paper does not have.
    """

    dim: int
    preconditioner: PreconditionerConfig = field(default_factory=PreconditionerConfig, kw_only=True)
    steps: int = field(default=1, kw_only=True)
    step_size: float = field(default=1.0, kw_only=True)
    step: StepKind = field(default="fixed", kw_only=True)
    norm: NormKind = field(default="none", kw_only=True)
    norm_eps: float = field(default=1e-5, kw_only=True)
    init_std: float = field(default=0.02, kw_only=True)
    beyond: Beyond = field(default=PAPER, kw_only=True, metadata={"added": True})

    def __post_init__(self) -> None:
        check_word("norm", self.norm, NormKind)
        check_word("step", self.step, StepKind)
        if self.beyond.own_steps and self.step != "learned":
            raise ValueError('steps have sizes of their own where they are learned: give step="learned"')
        if self.beyond.own_preconditioners and self.preconditioner.kind == "identity":
            raise ValueError("the identity preconditioner is the same in every step: steps cannot have their own")
        if self.steps < 1:
            raise ValueError(f"T must be at least 1, not {self.steps}")
        if not (self.step_size > 0 and math.isfinite(self.step_size)):
            raise ValueError(f"the step size must be positive and finite, not {self.step_size}")

    @property
    def temperatures(self) -> tuple[float | None, ...]:
        """tau_t of each of the T steps; None if all share one, or have none."""
        return (None,) * self.steps


@dataclass(frozen=True)
class AttentionConfig(LayerConfig):
    """A CEM attention layer; `LayerConfig` has the options that it shares with the MLP.

    Attributes:
        heads: K. head_dim: R, D / K if not given.
        temperature: tau, sqrt(R) if not given; the paper prints the square root of the model dimension.
        diagonal: the diagonal of A_k. position: see `cemverify.cem.positions`.
        causal: whether a token sees only its past.
    """

    heads: int
    head_dim: int | None = None
    temperature: float | None = None
    diagonal: DiagonalKind = "none"
    position: PositionKind = "none"
    causal: bool = True

    def __post_init__(self) -> None:
        if self.dim < 1 or self.heads < 1:
            raise ValueError(f"dim and heads must be positive, not {self.dim} and {self.heads}")
        if self.head_dim is None and self.dim % self.heads:
            raise ValueError(f"dim {self.dim} is not a multiple of heads {self.heads}; give head_dim")
        check_word("diagonal", self.diagonal, DiagonalKind)
        check_word("position", self.position, PositionKind)
        if self.temperature is not None and not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ValueError(f"the temperature must be positive and finite, not {self.temperature}")
        if self.R < 1 or (self.position == "rotary" and self.R % 2):
            raise ValueError(f"the head dimension must be positive, and even for rotary positions, not {self.R}")
        if self.beyond.signs != "ignored":
            raise ValueError("attention has no gates: it cannot move their signs")
        super().__post_init__()

    @property
    def R(self) -> int:
        """R, the number of features of each attention head."""
        return self.dim // self.heads if self.head_dim is None else self.head_dim

    @property
    def tau(self) -> float:
        """The temperature by which attention divides its scores."""
        return math.sqrt(self.R) if self.temperature is None else self.temperature

    @property
    def temperatures(self) -> tuple[float | None, ...]:
        """tau_t = tau cooling^t of each of the T steps; None if all have tau."""
        cooling = self.beyond.cooling
        return tuple(None if cooling == 1 else self.tau * cooling**t for t in range(self.steps))


@dataclass(frozen=True)
class MLPConfig(LayerConfig):
    """A CEM gated MLP; `LayerConfig` has the options that it shares with attention.

    Attributes:
        hidden: M. activation: a name of `cemverify.cem.activations`.
    """

    hidden: int
    activation: str = "silu"

    def __post_init__(self) -> None:
        if self.dim < 1 or self.hidden < 1:
            raise ValueError(f"dim and hidden must be positive, not {self.dim} and {self.hidden}")
        activation(self.activation)  # refuses an unknown name
        if self.preconditioner.per_head:
            raise ValueError("an MLP has no heads: its preconditioner cannot be per head")
        if self.beyond.cooling != 1:
            raise ValueError("an MLP has no temperature: it cannot be cooled")
        super().__post_init__()


class LearnedPreconditioner(nn.Module):
    """The parameters of a preconditioner; calling it returns the preconditioner.

    Attributes:
        p: with d = sqrt(D) p, so that an optimiser's step on p moves d sqrt(D) times as far (App. C.4).
        U, V: the low-rank factors.
    """

    def __init__(self, config: PreconditionerConfig, dim: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.dim = dim
        lead = (heads,) if config.per_head else ()
        self.p: nn.Parameter | None = None
        self.U: nn.Parameter | None = None
        self.V: nn.Parameter | None = None
        if config.kind == "identity":
            return
        # softplus(ln(e - 1)) = 1
        start = 1.0 if config.init == "paper" else math.log(math.e - 1)
        self.p = nn.Parameter(torch.full((*lead, dim), start / math.sqrt(dim)))
        if config.kind != "diagonal":
            self.U = normal((*lead, dim, config.rank), 0.02, generator)
            self.V = nn.Parameter(torch.zeros(*lead, dim, config.rank))

    def forward(self) -> Preconditioner:
        d = None if self.p is None else math.sqrt(self.dim) * self.p
        return preconditioner(self.config.kind, d, self.U, self.V)


class LearnedNorm(nn.Module):
    """The gain of an RMSNorm inside a recursion; calling it returns the norm."""

    def __init__(self, kind: NormKind, dim: int, eps: float) -> None:
        super().__init__()
        self.kind = kind
        self.eps = eps
        self.gain: nn.Parameter | None = None
        if kind != "none":
            self.gain = nn.Parameter(torch.ones(1 if kind == "scalar" else dim))

    def forward(self) -> Norm:
        return norm(self.kind, self.gain, self.eps)


def normal(shape: tuple[int, ...], std: float, generator: torch.Generator) -> nn.Parameter:
    """A parameter drawn from N(0, std^2) by the generator; left empty on the meta device."""
    parameter = nn.Parameter(torch.empty(shape))
    if not parameter.is_meta:
        with torch.no_grad():
            parameter.copy_(torch.randn(shape, generator=generator, device=generator.device) * std)
    return parameter


class CEMLayer(nn.Module):
    """A layer of CEM: an energy and a descent, both made of its parameters on each call.

    Parameters: those of the preconditioner and the norm; log_step () if the step size is learned (a logarithm, so
    that the size stays positive), or (T,) if each step has its own; momentum () if it is learned; preconditioners of
    the later steps if each step has its own. The subclasses add those of the energy.
    """

    def __init__(self, config: LayerConfig, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.preconditioner = LearnedPreconditioner(config.preconditioner, config.dim, heads, generator)
        self.norm = LearnedNorm(config.norm, config.dim, config.norm_eps)
        beyond = config.beyond
        self._steps, self._step_size, self._temperatures = config.steps, config.step_size, config.temperatures
        self._least_fall = 0.0
        self._apart = beyond.own_steps or beyond.own_preconditioners or beyond.cooling != 1
        sizes = (config.steps,) if beyond.own_steps else ()
        self.log_step = nn.Parameter(torch.zeros(sizes)) if config.step == "learned" else None
        self._momentum = beyond.momentum
        carries = beyond.learn_momentum and config.steps > 1  # a single step has no move before it
        self.momentum = nn.Parameter(torch.tensor(beyond.momentum)) if carries else None
        self.later_preconditioners = nn.ModuleList(
            LearnedPreconditioner(config.preconditioner, config.dim, heads, generator)
            for _ in range(config.steps - 1 if beyond.own_preconditioners else 0)
        )

    def set_steps(self, steps: int, step_size: float, least_fall: float = 0.0) -> None:
        """From now on it takes T = `steps` steps of that size; its parameters stay as they are.

        Args:
            least_fall: as in `Descent`: tokens may stop earlier.

        Raises:
            ValueError: its steps differ from one another, so that T is part of its parameters.
        """
        if self._apart:
            raise ValueError("a layer whose steps have something of their own takes as many as it was made for")
        self._steps, self._step_size, self._least_fall = steps, step_size, least_fall

    @property
    def energy(self) -> Energy:
        """The energy that it minimises."""
        raise NotImplementedError

    @property
    def descent(self) -> Descent:
        """The descent that minimises the energy."""
        T, P = self._steps, self.preconditioner()
        eta = self._step_size if self.log_step is None else self._step_size * self.log_step.exp()
        momentum = self._momentum if self.momentum is None else self.momentum
        if not self._apart:
            return Descent(T, eta, P, self.norm(), momentum, least_fall=self._least_fall)
        etas = eta.unbind() if isinstance(eta, Tensor) and eta.dim() else (eta,) * T
        later = [preconditioner() for preconditioner in self.later_preconditioners] or [P] * (T - 1)
        own = tuple(map(Own, etas, (P, *later), self._temperatures))
        return Descent(T, etas[0], P, self.norm(), momentum, own, self._least_fall)

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        """x^(T) from x^(0) = x with memory h, x itself if not given: (B, J, D) -> (B, J, D)."""
        energy = self.energy
        return blocked.run(self.descent, energy, x, energy.remember(x if h is None else h))

    def descend(self, x: Tensor, memory: Any) -> Tensor:
        """Takes all steps from x with a memory from `energy.remember`: (B, J, D) -> (B, J, D)."""
        return blocked.run(self.descent, self.energy, x, memory)

    def trajectory(self, x: Tensor, h: Tensor | None = None) -> Trajectory:
        """Takes all steps, and returns every intermediate state with its energy."""
        energy = self.energy
        return self.descent.trajectory(energy, x, energy.remember(x if h is None else h))


class CEMAttention(CEMLayer):
    """Weight-tied multi-head attention: T descent steps on an interaction energy (Eq. 1, 5, 12).

    Parameters: W_Q, W_K (K, R, D); diagonal (D,) or (K, D); to_self, to_others (K,); a preconditioner; a gain.
    """

    def __init__(self, config: AttentionConfig, generator: torch.Generator) -> None:
        super().__init__(config, config.heads, generator)
        self.config = config
        shape = (config.heads, config.R, config.dim)
        self.W_Q = normal(shape, config.init_std, generator)
        self.W_K = normal(shape, config.init_std, generator)
        self.diagonal: nn.Parameter | None = None
        self.to_self: nn.Parameter | None = None
        self.to_others: nn.Parameter | None = None
        if config.diagonal != "none":
            lead = (config.heads,) if config.diagonal == "per-head" else ()
            self.diagonal = nn.Parameter(torch.zeros(*lead, config.dim))
        if config.position == "self-cross":
            self.to_self = nn.Parameter(torch.zeros(config.heads))
            self.to_others = nn.Parameter(torch.zeros(config.heads))

    @property
    def energy(self) -> Interaction:
        """The interaction energy with the current parameters."""
        return Interaction(
            for_products(self.W_Q),
            for_products(self.W_K),
            self.config.tau,
            diagonal=self.diagonal,
            bias=self._bias(),
            rotary=Rotary() if self.config.position == "rotary" else None,
            causal=self.config.causal,
        )

    def residual(self, h: Tensor, past: InteractionMemory | None = None) -> tuple[Tensor, InteractionMemory]:
        """The sublayer of a pre-norm block, and its memory, which is the cache when decoding.

        Args:
            h: (B, J, D), the tokens that follow those in `past`.
        """
        energy = self.energy
        memory = energy.remember(self.norm().into(h), past)
        return blocked.run(self.descent, energy, h, memory), memory

    def _bias(self) -> Bias | None:
        if self.config.position == "alibi":
            return alibi(self.config.heads, self.W_Q)
        if self.config.position == "alibi-printed":
            return printed_alibi(self.config.heads, self.W_Q)
        if self.to_self is not None and self.to_others is not None:
            return SelfCross(self.to_self, self.to_others)
        return None


class CEMGatedMLP(CEMLayer):
    """A gated MLP with tied projections: T descent steps on an element-wise energy (Eq. 7, 11, 13).

    Parameters: V, W (M, D); a preconditioner; a gain. In Llama's terms V is the gate and, transposed, the down
    projection; W is the up projection.
    """

    def __init__(self, config: MLPConfig, generator: torch.Generator) -> None:
        super().__init__(config, 1, generator)
        self.config = config
        self.V = normal((config.hidden, config.dim), config.init_std, generator)
        self.W = normal((config.hidden, config.dim), config.init_std, generator)
        self.activation = activation(config.activation)

    @property
    def energy(self) -> Elementwise | Convexified:
        """The element-wise energy with the current parameters."""
        V, W = for_products(self.V), for_products(self.W)
        if self.config.beyond.signs == "moved":
            return Convexified(V, W, self.activation, straight_through=True)
        return Elementwise(V, W, self.activation)

    def residual(self, h: Tensor) -> Tensor:
        """The sublayer of a pre-norm block: (B, J, D) -> (B, J, D)."""
        energy = self.energy
        return blocked.run(self.descent, energy, h, energy.remember(self.norm().into(h)))
