"""Lemmas of ours that are no longer judged, because nothing rests on them, and where to read each."""

from __future__ import annotations

from collections.abc import Mapping

# stated in docs/mathematics.md, in the section at the start of their ids
_STATED = """
1-scale 1-untied-output 2-names 2-tied-to-up 3-left-limit 3-near-zero 3-convex 3-reflection 5-trace-and-determinant
5-field 5-merge
6-exact-test 6-product-bound 6-difference-bound 6-initialisation 6-stays-definite 6-sum-of-squares 6-product-form
6-scaled-diagonal 6-weight-decay 7-sign-absorbed 7-norm-gradient 7-norm-true-gradient 7-norm-twice 8-alibi-slopes
8-self-cross 9-necessary 9-unit-step 9-initialisation 9-every-activation 9-smaller-constants 13-unrotated-values
13-rotary-concave 14-one-attention 14-one-tensor-cache 14-attention-cost 14-mlp-cost 15-full-cem-counts
15-matched-attention 15-depth-is-free 15-gains-and-biases 16-square-root 17-diverges 17-joint
"""
# by the id of a retired claim: where to read its statement
RETIRED: Mapping[str, str] = {
    **{id_: f"§{id_.partition('-')[0]} of docs/mathematics.md" for id_ in _STATED.split()},
    "3-other-primitives": "the claim 3-silu-primitive",
    "4-concave": "the claim 4-any-step",
    "5-only-equal": "the claim 5-per-head",
    "7-norm-folded": "the claim 7-norm-monotone",
}
