"""The bank of correct implementations, each written independently: whatever calls one of them wrong is a false alarm.

They are the examples of the repository, so that most are there only in a clone of it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from cemverify.conformance.implementations.plain import Plain

plain = Plain().subject()


@dataclass(frozen=True)
class CorrectImplementation:
    """One correct implementation.

    Attributes:
        name: module:attribute. written: how, as a phrase. needs: a package beyond cemverify's own, if any.
        costly: whether it runs through a compiler, which takes seconds for each shape that it meets.
    """

    name: str
    written: str
    needs: str | None = None
    costly: bool = False


_Correct = CorrectImplementation
BANK: Sequence[CorrectImplementation] = (
    _Correct("cemverify:reference", "the reference: energies and descents"),
    _Correct("cemverify:fast", "the reference by blocks of tokens and tiles of weights"),
    _Correct("cemverify.power.bank:plain", "einsums of the formulas, without energies"),
    _Correct("examples.attention_numpy:mine", "ten lines of NumPy"),
    _Correct("examples.loops_numpy:mine", "loops over tokens and heads, NumPy"),
    _Correct("examples.einsum_torch:mine", "einsums, torch"),
    _Correct("examples.sdpa_torch:mine", "scaled_dot_product_attention"),
    _Correct("examples.augmented_sdpa:mine", "scaled_dot_product_attention with wider heads for the diagonal"),
    _Correct("examples.attention_module:mine", "an nn.Module of four linear layers"),
    _Correct("examples.mlp_module:mine", "an nn.Module of three linear layers"),
    _Correct("examples.compiled_reference:mine", "the reference's modules under torch.compile", costly=True),
    _Correct("examples.energies_jax:mine", "gradients of two scalars by jax.grad", "jax", costly=True),
    _Correct("examples.llama_transformers:mine", "Llama's own modules with tied weights", "transformers"),
    _Correct("examples.energy_layer:mine", "a Hopfield layer, as an energy layer"),
)


def unavailable(entry: CorrectImplementation) -> str | None:
    """Why an implementation of the bank cannot be tested here, as a phrase; None if it can."""
    module = entry.name.partition(":")[0]
    try:
        there = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing too
        there = False
    if not there:
        return f"{module} is not installed; it is part of a clone of the repository"
    if entry.needs is not None and importlib.util.find_spec(entry.needs) is None:
        return f"it needs {entry.needs}: pip install 'cemverify[{entry.needs}]'"
    return None
