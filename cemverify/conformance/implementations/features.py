"""The words of the contract: its functions, weights, options and features. They are read without torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

FUNCTIONS: Mapping[str, str] = {
    "attention": "attention(x, h, weights, config): x^(T) of CEM attention, (B, J, D)",
    "mlp": "mlp(x, h, weights, config): x^(T) of the CEM gated MLP, (B, J, D)",
    "block": "block(h, weights, config): the pre-norm block of attention and MLP, (B, J, D)",
    "decode": "decode(h, weights, config): self-attention of h, token by token from a cache, (B, J, D)",
    "attention_energy": "attention_energy(x, h, weights, config): attention's energy at each token, (B, J)",
    "mlp_energy": "mlp_energy(x, h, weights, config): the MLP's energy at each token, (B, J)",
}

# none of these, because it returns two things
PREFILL = "prefill"
_PREFILL = "prefill(h, cache, weights, config): attention of h after the tokens in the cache, and the next cache"

# by name: the shape in the letters D, K, R, M and r, the option that needs it, and what it is
WEIGHTS: Mapping[str, tuple[str, str, str]] = {
    "W_Q": ("(K, R, D)", "attention", "query projection; its transpose is the output projection"),
    "W_K": ("(K, R, D)", "attention", "key projection; keys are the values too"),
    "diagonal": ("(D,) or (K, D)", "diagonal: shared, or per-head", "d in A_k = W_Q^T W_K + diag(d)"),
    "to_self": ("(K,)", "position: self-cross", "the bias on a token's own key"),
    "to_others": ("(K,)", "position: self-cross", "the bias on all other keys"),
    "V": ("(M, D)", "MLP", "gate projection; its transpose is the down projection"),
    "W": ("(M, D)", "MLP", "up projection"),
    "P_d": ("(D,) or (K, D)", "a preconditioner, shared or per head", "d in diag(softplus(d))"),
    "P_U": ("(D, r) or (K, D, r)", "a low-rank preconditioner", "U in U V^T + V U^T"),
    "P_V": ("(D, r) or (K, D, r)", "a low-rank preconditioner", "V in U V^T + V U^T"),
    "gain": ("(1,) or (D,)", "norm: scalar, or channel and folded", "the gain of the norm"),
}

OPTIONS: Mapping[str, str] = {
    "dim": "D",
    "heads": "K (attention)",
    "head_dim": "R, always given; read `config.R` (attention)",
    "hidden": "M (MLP)",
    "steps": "T, at least 1",
    "step_size": "eta, positive",
    "step": "has no meaning here: eta is given, learned or not",
    "temperature": "tau, always a number (attention)",
    "diagonal": "`none`, `shared` or `per-head` (attention)",
    "position": "`none`, `alibi`, `self-cross` or `rotary`; never `alibi-printed` (attention)",
    "causal": "always true (attention)",
    "activation": "the name of sigma (MLP)",
    "norm": "`none`, `scalar`, `channel` or `folded`",
    "norm_eps": "the number that the norm adds to the mean square",
    "preconditioner": "its `kind` is `identity`, `diagonal`, `low-rank` or `low-rank-printed`; it has a "
    "`rank` r, and is `per_head` or not",
    "init_std": "has no meaning here: the weights are given",
    "beyond": "ignore it: extensions that are not in the paper; always at their defaults",
}

# As in `cemverify.cem.activations`, which needs torch; the tests hold the two together.
_ACTIVATIONS = ("silu", "gelu", "gelu-tanh", "relu", "relu2", "sigmoid", "tanh", "softplus", "identity")

LAYER_FEATURES: Mapping[str, str] = {
    "energy": "an energy in addition to the update (energy layers)",
    "causality": "a token's update does not depend on later tokens (energy layers)",
    "autograd": "the energy can be differentiated by torch or JAX (energy layers)",
    "inference": "it works in torch's inference mode (energy layers)",
    "pieces": "a row may be given in pieces, each with the last state of the one before (online layers)",
    "no-state": "the first state may be None, which stands for zeros (online layers)",
    "packed-rows": "rows may be laid end to end (online layers with update_packed)",
    "left-padding": "padding may go before a row (online layers with update_padded)",
    "right-padding": "padding may go after a row (online layers with update_padded)",
    "narrow-state": "for bfloat16 tokens, the last state is bfloat16 and not float32 (online layers)",
}
# features of online layers alone
OF_STATES = ("pieces", "no-state", "packed-rows", "left-padding", "right-padding", "narrow-state")
# features of both kinds of implementation that an energy layer may declare absent
SHARED_FEATURES = ("gradients", "vmap", "compile", "cuda", "dtype:float32", "dtype:bfloat16")
# features that are tested only where they are claimed
ON_REQUEST = ("dtype:float16",)

FEATURES: Mapping[str, str] = {
    **FUNCTIONS,
    PREFILL: _PREFILL,
    "start": "x may differ from the memory h",
    "steps": "more than one step, T > 1",
    "step-size": "a step size other than 1",
    "temperature": "a temperature other than the square root of the head dimension",
    "head-dim": "heads whose dimension is not D / K",
    "validation": "a ValueError or TypeError of its own, with a message, for bad input",
    "gradients": "gradients flow to x, h and every weight, so that it can be trained",
    "vmap": "its functions can be mapped over another axis (torch.func.vmap, jax.vmap)",
    "threads": "its functions can be called from several threads at once",
    "compile": "its functions can be compiled (torch.compile, jax.jit)",
    "cuda": "its functions accept arrays on a CUDA device",
    "diagonal:shared": "A_k = W_Q^T W_K + diag(d), one d for all heads",
    "diagonal:per-head": "A_k = W_Q^T W_K + diag(d_k), one d_k per head",
    "position:alibi": "ALiBi position biases, with the sign and slopes of Press et al.",
    "position:self-cross": "one bias for a token's own key and one for all other keys",
    "position:rotary": "rotary positions, half-split layout, base 10000",
    "preconditioner:diagonal": "the preconditioner P = diag(softplus(d))",
    "preconditioner:low-rank": "the positive definite diagonal-plus-low-rank P of docs/mathematics.md §6(c)",
    "preconditioner:low-rank-printed": "the printed P = diag(softplus(d)) + U V^T + V U^T",
    "preconditioner:per-head": "one preconditioner per head",
    "norm:scalar": "RMSNorm inside the recursion, with one gain",
    "norm:channel": "RMSNorm inside the recursion, with one gain per channel",
    "norm:folded": "norm:channel with the gain folded into both paths",
    **{f"activation:{name}": f"the activation {name}" for name in _ACTIVATIONS},
    "dtype:float32": "float32 arrays",
    "dtype:bfloat16": "bfloat16 arrays",
    "dtype:float16": "float16 arrays, whose largest number is 65,504 (only with offers=)",
    **LAYER_FEATURES,
}


def names_of(declared: Any, argument: str) -> tuple[Any, ...]:
    """The value of an argument that takes several names; a ValueError for one name, or for what is not iterable."""
    if isinstance(declared, str) or not isinstance(declared, Iterable):
        raise ValueError(f"{argument} must be a collection of names: write ({declared!r},)")
    return tuple(declared)


def unclaimed(offers: Any) -> dict[str, str]:
    """A reason for each feature that is tested on request and was not requested.

    Raises:
        ValueError: a name in `offers` is no such feature.
    """
    offered = names_of(offers, "offers")
    if strange := [name for name in offered if name not in ON_REQUEST]:
        raise ValueError(
            f"offers may name only features that are tested on request ({', '.join(ON_REQUEST)}), not {strange[0]!r}"
        )
    return {feature: f"not claimed: offers=({feature!r},)" for feature in ON_REQUEST if feature not in offered}


def declared_absent(not_offered: Any, allowed: Collection[str]) -> dict[str, str]:
    """A reason for each feature that is named absent; the name of a group ("diagonal") stands for all its members.

    Raises:
        ValueError: a name is not allowed; the message lists those that are.
    """
    reasons: dict[str, str] = {}
    for name in names_of(not_offered, "not_offered"):
        members = [feature for feature in allowed if feature == name or feature.startswith(f"{name}:")]
        if not members:
            groups = ", ".join(sorted({feature.partition(":")[0] for feature in allowed}))
            raise ValueError(f"unknown feature {name!r}; choose from {groups} and their members")
        reasons |= dict.fromkeys(members, "declared")
    return reasons
