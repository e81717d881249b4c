"""Depth as a dial in language models: one set of parameters, and T chosen at test time.

A model that is trained with T steps is good with T and no other number. One that is trained with T drawn for each
batch is set beside models that were trained for each T, on text or on chains whose entropy is known.
"""

from __future__ import annotations

from synthetic.studies.depth_dial.rows import MOST, TEST_DEPTHS, rows
from synthetic.studies.depth_dial.sentences import read
from synthetic.studies.engine.stopping import STOPS
from synthetic.studies.engine.study import Study

STUDY = Study(
    "dial",
    "depth as a dial: one model for every number of steps, against a model for each",
    """\
Trains one model with T drawn for each batch, and one model for each of T = 1, 2, 4 and 8, each at its
own learning rate. Scores each with 1 to 16 steps, and with tokens that stop once their steps lower
the energy by little. For a chain the smallest possible number of bits is known, and the tables show
how far above it each model is.
""",
    rows,
    read,
    example="--corpus hidden --compile --page out/dial.md",
    replaced="mlp",
    depth=MOST,
    per_parameter=5.0,
    seeds=3,
    depths=TEST_DEPTHS,
    stops=STOPS,
)
