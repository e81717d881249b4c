"""The bank of correct implementations, written independently: a violation found in one is a false alarm.

They are the repository's examples, so most exist only in a clone of it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from cemverify.cem.activations import ACTIVATIONS
from cemverify.conformance.implementations.contract import implementation
from cemverify.conformance.implementations.plain import Plain
from cemverify.power.fused import HeadByHead, UnitByUnit

plain = Plain().subject()
head_by_head = HeadByHead().subject()
unit_by_unit = UnitByUnit().subject()
relu_alone = implementation(
    mlp=Plain().mlp, not_offered=["validation", *(f"activation:{name}" for name in ACTIVATIONS if name != "relu")]
)


@dataclass(frozen=True)
class CorrectImplementation:
    """One correct implementation."""

    name: str  # module:attribute
    written: str  # the way it is written, as a phrase
    needs: str | None = None  # a package beyond cemverify's own, if any
    costly: bool = False  # whether it runs through a compiler, which takes seconds for each new shape


_Correct = CorrectImplementation
BANK: Sequence[CorrectImplementation] = (
    _Correct("cemverify:reference", "the reference: energies and descents"),
    _Correct("cemverify:fast", "the reference by blocks of tokens and tiles of weights"),
    _Correct("cemverify.power.bank:plain", "einsums of the formulas, without energies"),
    _Correct("cemverify.power.bank:head_by_head", "each head's step added to the state at once"),
    _Correct("cemverify.power.bank:unit_by_unit", "each hidden unit's step added to the state at once"),
    _Correct("cemverify.power.bank:relu_alone", "an MLP of one activation, which has a kink"),
    _Correct("examples.attention_numpy:mine", "ten lines of NumPy"),
    _Correct("examples.loops_numpy:mine", "loops over tokens and heads, NumPy"),
    _Correct("examples.einsum_torch:mine", "einsums, torch"),
    _Correct("examples.sdpa_torch:mine", "scaled_dot_product_attention"),
    _Correct("examples.augmented_sdpa:mine", "scaled_dot_product_attention with wider heads for the diagonal"),
    _Correct("examples.attention_module:mine", "an nn.Module of four linear layers"),
    _Correct("examples.mlp_module:mine", "an nn.Module of three linear layers"),
    _Correct("examples.fused_modules:mine", "nn.Modules with several weights in one parameter"),
    _Correct("examples.compiled_reference:mine", "the reference's modules under torch.compile", costly=True),
    _Correct("examples.energies_jax:mine", "gradients of two scalars by jax.grad", "jax", costly=True),
    _Correct("examples.llama_transformers:mine", "Llama's own modules with tied weights", "transformers"),
    _Correct("examples.energy_layer:mine", "a Hopfield layer, as an energy layer"),
    _Correct("examples.online_layers.delta_chunks:mine", "a delta rule in chunks"),
    _Correct("examples.online_layers.delta_jax:mine", "a delta rule by lax.scan", "jax", costly=True),
    _Correct("examples.online_layers.delta_numpy:mine", "a delta rule in NumPy"),
    _Correct("examples.online_layers.delta_product:mine", "two steps of the delta rule for each token"),
    _Correct("examples.online_layers.delta_rule:mine", "a delta rule, token by token"),
    _Correct("examples.online_layers.gated_delta_net:mine", "a Gated DeltaNet module, with convolutions and heads"),
    _Correct("examples.online_layers.gated_delta_rule:mine", "a gated delta rule"),
    _Correct("examples.online_layers.kimi_delta_attention:mine", "a gate for each channel of the keys"),
    _Correct("examples.online_layers.linear_attention:mine", "linear attention, all tokens at once"),
    _Correct("examples.online_layers.mesa_net:mine", "a ridge regression that is solved at each token"),
    _Correct("examples.online_layers.packed_rows:mine", "rows end to end, and padded ones"),
    _Correct("examples.online_layers.preconditioned_delta_rule:mine", "a delta rule with P, read before the step"),
    _Correct("examples.online_layers.titans_linear:mine", "a linear memory with momentum"),
    _Correct("examples.online_layers.ttt_linear:mine", "test-time training in mini-batches"),
    _Correct("examples.energy_layers.ista:mine", "a gradient step and the proximal map of a penalty"),
    _Correct("examples.energy_layers.adaptive_step:mine", "steps whose sizes depend on the state"),
    _Correct("examples.energy_layers.averaged_energy:mine", "a scalar energy, the mean over batch and tokens"),
    _Correct("examples.energy_layers.cem_attention:mine", "CEM attention, as an energy layer"),
    _Correct("examples.energy_layers.cem_mlp:mine", "CEM's gated MLP, as an energy layer of two steps"),
    _Correct("examples.energy_layers.energy_based_transformer:mine", "an Energy-Based Transformer step, by autograd"),
    _Correct("examples.energy_layers.energy_transformer:mine", "an Energy Transformer block, tokens coupled"),
    _Correct("examples.energy_layers.equilibrium_layer:mine", "an equilibrium layer"),
    _Correct("examples.energy_layers.ham_two_layers:mine", "an associative memory of two layers of neurons"),
    _Correct("examples.energy_layers.hopfield_cccp:mine", "Hopfield retrieval by the concave-convex procedure"),
    _Correct("examples.energy_layers.hopfield_heads:mine", "Hopfield retrieval with several heads"),
    _Correct("examples.energy_layers.hopfield_retrieval:mine", "Hopfield retrieval that returns the next state"),
    _Correct("examples.energy_layers.langevin_score:mine", "a Langevin step along a score"),
    _Correct("examples.energy_layers.nrgpt_step:mine", "an NRGPT step with a learned projection"),
    _Correct("examples.energy_layers.simplicial_hopfield:mine", "a simplicial Hopfield network"),
    _Correct("examples.energy_layers.uniformity:mine", "tokens that repel each other, at least two of them"),
    _Correct("examples.energy_layers.hopfield_jax:mine", "a Hopfield layer in JAX", "jax", costly=True),
)


def unavailable(entry: CorrectImplementation) -> str | None:
    """Why an implementation of the bank cannot be tested here, as a phrase; None if it can."""
    module = entry.name.partition(":")[0]
    try:
        there = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package may be missing too
        there = False
    if not there:
        return f"{module} is not installed; it is part of a clone of the repository"
    if entry.needs is not None and importlib.util.find_spec(entry.needs) is None:
        return f"it needs {entry.needs}: pip install 'cemverify[{entry.needs}]'"
    return None
