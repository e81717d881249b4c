"""Faults of RMSNorm inside."""

from __future__ import annotations

from dataclasses import replace

from cemverify.power.mutants.base import Zoo

ZOO = Zoo("norms")


ZOO += [
    ZOO.but("folded-gain-after-p", "A folded gain is applied after the preconditioner instead of before.",
        "gradient/attention/norm-folded", also=("mlp", "gradient/attention/any-options", "gradient/mlp/any-options"),
        needs=("norm:folded", "preconditioner:low-rank"), advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads, w, c) if c.norm != "folded"
            else x + c.step_size * usual.sum_heads(usual.precondition(heads, w, c) * w["gain"])),
    ZOO.but("norm-missing", "RMSNorm inside is left out.",
        "gradient/attention/norm-channel", norm=lambda _, x, w, c: x),
    ZOO.but("norm-afterwards", "The state is normalised after each step as well.",
        "gradient/attention/norm-channel",
        advance=lambda usual, x, heads, w, c: usual.norm(usual.advance(x, heads, w, c), w, c)),
    ZOO.but("norm-of-the-memory", "The memory is normalised too.",
        "gradient/attention/norm-channel",
        attention_direction=lambda usual, x, h, w, c: usual.attention_direction(x, usual.norm(h, w, c), w, c)),
    ZOO.but("centred-norm", "The mean is subtracted, as LayerNorm does.",
        "gradient/mlp/norm-scalar", also=("attention",),
        norm=lambda usual, x, w, c: usual.norm(x - x.mean(-1, keepdim=True), w, c) if c.norm != "none" else x),
    ZOO.but("gain-plus-one", "The gain is one plus its weight, as some models store it.",
        "gradient/attention/norm-scalar", gain=lambda usual, w: 1 + usual.gain(w)),
    ZOO.but("epsilon-has-floor", "An epsilon below 1e-8 is taken for 1e-8.",
        "gradient/attention/norm-channel",
        root=lambda usual, x, c: usual.root(x, replace(c, norm_eps=max(c.norm_eps, 1e-8)))),
    ZOO.edited("norm-only-before-the-first-step",
        "Only the first step takes the gradient at N(x); later steps take it at x.",
        "gradient/attention/norm-channel",
        ("c: AttentionConfig) -> Tensor:\n        for _", "c: AttentionConfig) -> Tensor:\n        for t"),
        ("            x = self.advance(x, self.attention_direction(self.norm(x, w, c)", """\
            n = x if t and c.norm != "folded" else self.norm(x, w, c)
            x = self.advance(x, self.attention_direction(n"""),
        also=("gradient/attention/any-options",), needs=("norm:channel", "steps")),
]  # fmt: skip
