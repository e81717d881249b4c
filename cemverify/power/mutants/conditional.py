"""Faults that show only sometimes: at one size, in one dtype, for one layout, in one mode, on one call.

Faults of sizes and dtypes compute wrongly; faults of layouts, modes and calls wrap any implementation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.power.mutants.base import ANSWER, Call, Zoo, fault, followed_by, in_dtype, overwrite
from cemverify.power.mutants.preconditioners import of_ranks

ZOO = Zoo("conditional")


# --- sizes, options and dtypes ----------------------------------------------------------------------


ZOO += [
    # Wrong only in some cases: updates are too large, by one part in a hundred unless another factor is given.
    ZOO.too_large("wrong-at-odd-head-sizes", "Wrong only at odd head dimensions above one.",
        "gradient/attention/plain", lambda _, c: c.R % 2 == 1 and c.R > 1, of=AttentionConfig),
    ZOO.too_large("wrong-at-odd-hidden-sizes", "Wrong only at odd numbers of hidden units above one.",
        "gradient/mlp/silu", lambda _, c: c.hidden % 2 == 1 and c.hidden > 1, of=MLPConfig),
    ZOO.too_large("wrong-where-hidden-exceeds-width", "Wrong only if the MLP has more hidden units than features.",
        "gradient/mlp/silu", lambda _, c: c.hidden > c.dim, of=MLPConfig),
    ZOO.too_large("wrong-for-one-token", "Wrong only for a row of one token.",
        "gradient/attention/plain", lambda x, _: x.shape[1] == 1, of=AttentionConfig),
    ZOO.too_large("wrong-beyond-sixteen-tokens", "Wrong only beyond a block of sixteen tokens.",
        "precision/attention/float32", lambda x, _: x.shape[1] > 16, of=AttentionConfig, cause="*norm"),
    ZOO.too_large("wrong-in-bfloat16", "Updates are a tenth too large, in bfloat16 only.",
        "precision/attention/bfloat16", lambda x, _: x.dtype == torch.bfloat16, 1.1, cause="*norm",
        own_dtype=True),
    ZOO.too_large("wrong-in-float32", "Updates are one part in ten thousand too large, in float32 only.",
        "precision/attention/float32", lambda x, _: x.dtype == torch.float32, 1.0001, cause="*norm",
        own_dtype=True),
    ZOO.too_large("wrong-beyond-sixteen-features",
        "Wrong by one part in a million, only beyond a block of sixteen features.",
        "gradient/mlp/any-options", lambda _, c: c.dim > 16, 1 + 1e-6),
    ZOO.but("keys-shared-by-the-ends-of-the-batch",
        "Keys are made once where the first and the last row of the batch have the same memory.",
        "gradient/attention/any-options",
        keys=lambda usual, h, w, c: usual.keys(h[:1].expand_as(h) if torch.equal(h[0], h[-1]) else h, w, c)),
    ZOO.but("tokens-shared-by-the-ends-of-the-row",
        "A memory whose first and last tokens are the same is taken for one token, repeated.",
        "gradient/attention/any-options",
        keys=lambda usual, h, w, c: usual.keys(h[:, :1].expand_as(h) if torch.equal(h[:, 0], h[:, -1]) else h, w, c)),
    ZOO.but("misses-the-first-block", "Beyond thirty-two tokens, the first sixteen are not read by the last ones.",
        "precision/attention/float32", "*norm", hidden=lambda _, i, j: (j > i) | ((i >= 32) & (j < 16))),
    ZOO.but("wrong-where-the-state-is-the-memory", "Wrong only if x differs from h: the residual is h.",
        "gradient/attention/plain", needs=("start",),
        attention=lambda usual, x, h, w, c: usual.attention(x, h, w, c) - x + h),
]  # fmt: skip


# --- layouts, modes and calls -----------------------------------------------------------------------


def _misread(array: Any) -> Any:
    """The values in the order in which they lie in memory."""
    if isinstance(array, Tensor):
        return array if array.is_contiguous() else torch.as_strided(array, (array.numel(),), (1,)).view(array.shape)
    if not hasattr(array, "flags") or array.flags["C_CONTIGUOUS"]:
        return array
    return array.ravel(order="K").reshape(array.shape)


@ZOO.calls("contract/attention/determinism", "repeated: at once", also=("mlp",))
@fault("Every second output is one part in a thousand too large.")
def wrong_every_second_call(call: Call, *arguments: Any) -> Any:
    call.memory["calls"] = call.memory.get("calls", 0) + 1
    return call(*arguments) * (1 if call.memory["calls"] % 2 else 1.001)


@ZOO.calls("contract/attention/determinism", "repeated", also=("mlp",))
@fault("The first call with each shape is right; later outputs are one part in a million too large.")
def wrong_once_a_shape_is_known(call: Call, *arguments: Any) -> Any:
    shapes = (call.name, tuple(arguments[0].shape), arguments[-1])
    scale = 1 + 1e-6 * (shapes in call.memory)
    call.memory[shapes] = True
    return call(*arguments) * scale


@ZOO.calls("contract/attention/determinism", "repeated", also=("mlp",))
@fault("A thousandth of the previous output of that shape is added: state leaks from call to call.")
def remembers_the_last_call(call: Call, *arguments: Any) -> Any:
    answer = call(*arguments)
    key = (call.name, tuple(answer.shape))
    before, call.memory[key] = call.memory.get(key, 0.0 * answer), answer + 0
    return answer + before / 1000


ZOO += [
    ZOO.calling("draws-noise", "Noise of one part in a million is added, as if dropout had been left on.",
        "contract/attention/determinism", "repeated", also=("mlp",), answer=lambda call, *a: call(*a) * (1 + 1e-6
            * float(torch.randn((), generator=call.memory.setdefault(0, torch.Generator().manual_seed(0)))))),
    ZOO.calling("edits-its-weights", "W_Q is scaled in place.",
        "contract/attention/inputs-unchanged", "kept: W_Q*", edits=True, answer=followed_by(lambda call, *a:
            overwrite(W := a[-2]["W_Q"], W * 2) if "W_Q" in a[-2] and call.name == "attention" else None)),
    ZOO.calling("edits-its-memory", "The memory is overwritten with zeros after use.",
        "contract/attention/inputs-unchanged", "kept: h*", edits=True,
        answer=followed_by(lambda _, *a: overwrite(a[1], 0.0) if len(a) == 4 else None)),
    ZOO.calling("wrong-on-views", "Arrays that are not contiguous are read as if they were contiguous.",
        "gradient/attention/plain", ANSWER, answer=lambda call, first, *arguments: call(_misread(first), *arguments)),
    ZOO.calling("scales-by-the-batch",
        "Outputs are larger by one part in a million for every batch row after the first.",
        "structure/attention/batch-independence", ANSWER, also=("mlp",),
        answer=lambda call, first, *arguments: call(first, *arguments) * (1 + 1e-6 * (first.shape[0] - 1))),
    ZOO.calling("drops-a-batch-of-one", "A batch of one row is returned without its batch axis.",
        "gradient/attention/plain", "wrong shape",
        answer=lambda call, first, *arguments: call(first, *arguments)[0 if len(first) == 1 else slice(None)]),
    ZOO.calling("rounds-to-float32", "Outputs are rounded to float32 and returned in the dtype of the input.",
        "gradient/attention/plain", ANSWER, also=("gradient/mlp/silu",),
        answer=lambda call, *arguments:
            in_dtype(in_dtype(a := call(*arguments), "float32"), str(a.dtype).removeprefix("torch."))),
    ZOO.but("three-ranks-at-most", "Only the first three ranks of a low-rank preconditioner are used.",
        "gradient/mlp/preconditioner-low-rank-printed", cross=of_ranks(3)),
    ZOO.but("step-size-in-float32", "The step size passes through float32.",
        "gradient/mlp/silu", needs=("step-size",), advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads, w, replace(c, step_size=float(torch.tensor(c.step_size))))),
    ZOO.calling("wrong-where-arrays-are-one",
        "If x and h are the same array, outputs are one part in a thousand too large.",
        "contract/attention/one-array", ANSWER, also=("*",),
        answer=lambda call, *arguments: call(*arguments) * (1.001 if arguments[0] is arguments[1] else 1)),
    ZOO.edited("wrong-for-ties", "If two logits of a token are equal, the later one is left out.",
        "gradient/attention/plain", ("        return self.softmax(logits.masked_fill(hidden, -math.inf))", """\
        seen = logits.masked_fill(hidden, -torch.inf)
        same = (seen[..., None, :] == seen[..., :, None]).tril(-1) & ~hidden[..., :, None]  # (B, K, J, S, S)
        return self.softmax(seen.masked_fill(same.any(-1), -torch.inf))""")),
]  # fmt: skip
