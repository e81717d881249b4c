"""What torch does not promise: its private names, each used only here.

`suites/test_private_interfaces.py` states what each of them must do, so that a torch that changes one is noticed. For
`softmax_backward` the tests of tiled attention do this, for `TorchDispatchMode` those of roundoff.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

__all__ = ["FakeTensorMode", "TorchDispatchMode", "tree_leaves"]


def is_transforming() -> bool:
    """Whether a transform of `torch.func` (vmap, grad, jvp) or forward-mode differentiation is under way."""
    return bool(torch._C._are_functorch_transforms_active()) or forward_ad._current_level >= 0


def is_batched(array: Any) -> bool:
    """Whether a tensor stands for the tensors over which `vmap` maps."""
    return bool(torch._C._functorch.is_batchedtensor(array))


def is_wrapped(array: Any) -> bool:
    """Whether a tensor belongs to any transform of `torch.func`."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(array))


def is_dispatching() -> bool:
    """Whether a `TorchDispatchMode` sees the operations."""
    return _get_current_dispatch_mode() is not None


def count_modes() -> tuple[int, int]:
    """How many `TorchFunctionMode` and `TorchDispatchMode` are active."""
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def without_overrides() -> AbstractContextManager[Any]:
    """A context in which no subclass of `Tensor` overrides operations."""
    disabled: AbstractContextManager[Any] = torch._C.DisableTorchFunctionSubclass()
    return disabled


def inductor_without_code(graph: Any, inputs: Any) -> Any:
    """A backend of `torch.compile`: attention as the default one rewrites it, without the code that it generates.

    A graph with no softmax and no permuted axes is only traced: importing what fuses attention takes seconds, and
    torch 2.13 was found to take permuted keys for transposed ones.
    """
    from torch._dynamo.backends.common import aot_autograd

    traced = " ".join(str(node.target) for node in graph.graph.nodes)
    if "softmax" not in traced or not any(permuting in traced for permuting in ("permute", "movedim", "moveaxis")):
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    def rewritten(traced: Any, _: Any) -> Any:
        return joint_graph_passes(traced).forward

    backend = aot_autograd(fw_compiler=rewritten, inference_compiler=rewritten, decompositions=select_decomp_table())
    return backend(graph, inputs)


def softmax_backward(d_p: Tensor, p: Tensor) -> Tensor:
    """The gradient in the scores of p = softmax(scores) over the last axis: p (d_p - sum p d_p), of p's shape."""
    return torch._softmax_backward_data(d_p, p, -1, p.dtype)


def standard_gamma(shape: Tensor, generator: torch.Generator) -> Tensor:
    """Draws from gamma distributions of these shape parameters and scale 1; deprecated since 1.1."""
    warnings.warn("standard_gamma goes: call torch._standard_gamma", DeprecationWarning, stacklevel=2)
    return torch._standard_gamma(shape, generator=generator)


def set_deterministic(on: bool, *, warn_only: bool) -> None:
    """`torch.use_deterministic_algorithms`, without its import of a compiler."""
    torch._C._set_deterministic_algorithms(on, warn_only=warn_only)


def print_options() -> dict[str, Any]:
    """The options of `torch.set_printoptions`; writing into them changes them."""
    return vars(torch._tensor_str.PRINT_OPTS)


def limit_recompilations(most: int) -> None:
    """How often `torch.compile` compiles one function anew before it gives up."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = most
