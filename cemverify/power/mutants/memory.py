"""Faults of memory between calls: something is left over from an earlier call."""

from __future__ import annotations

from cemverify.power.mutants.base import Zoo

ZOO = Zoo("memory")


ZOO += [
    ZOO.edited("keeps-its-step-size", "The step size of the first call is used for all later calls.",
        "gradient/attention/any-options", ('        if c.norm == "folded":', """\
        heads = heads * (vars(self).setdefault("kept", c.step_size) / c.step_size)
        if c.norm == "folded":"""), also=("mlp",), needs=("step-size",)),
    ZOO.edited("keeps-its-keys",
        "Keys are recomputed only if W_K or the shape of the memory changes, not if its values do.",
        "contract/attention/shared-memory", ("        return self.rotate(keys, ", """\
        name = (tuple(h.shape), tuple(w["W_K"].flatten().tolist()))
        keys = self.rotate(keys, """), ("device=h.device), c, 1.0)\n", """\
device=h.device), c, 1.0)
        return vars(self).setdefault("kept", {}).setdefault(name, keys)
""")),
    ZOO.edited("keeps-its-preconditioner",
        "The preconditioner is recomputed only if d changes, not if its kind does.",
        "training/mlp/any-options", ("        P = self.preconditioner(w, c).to(heads.dtype)\n", """\
        kept = vars(self).setdefault("kept", {})
        P = kept.setdefault(tuple(w["P_d"].flatten().tolist()), self.preconditioner(w, c)).to(heads.dtype)
"""), cause="*", needs=("preconditioner",)),
]  # fmt: skip
