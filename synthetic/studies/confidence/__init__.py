"""Energy as confidence: what do a trained model's energies tell that the entropy of its softmax does not?

If a low energy means that a layer has settled, tokens with a high one should be those that the model gets wrong, and
text from elsewhere should show in it. But the model already says how sure it is: by the entropy of its softmax. So
the question is what energies add to that (`engine.told`).
"""

from __future__ import annotations

from synthetic.studies.confidence.rows import rows
from synthetic.studies.confidence.sentences import read
from synthetic.studies.engine.study import Study

STUDY = Study(
    "confidence",
    "energy as confidence: what do energies tell of a token that the entropy of the softmax does not?",
    """\
Trains T = 1 and T steps of 1/T, and asks each trained model how large the loss of a token is, and
whether the token is from text that was not trained on: from the entropy of the softmax, from the
energies of its layers, and from both. The rates are those of `fixed-memory`, and found by its rule.
""",
    rows,
    read,
    example="--replaced full --per-parameter 5 --seeds 8 --until 60",
    replaced="full",
    P="low rank",
    positions="alibi",
    tuning=1,
    tuning_seeds=3,
    rounded=False,
    tells=True,
)
