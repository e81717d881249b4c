"""Depth as a dial in language models: one set of parameters, and T chosen at test time.

A model that is trained with T steps is good only with T steps. Here a model that is trained with T drawn for each
batch is compared with one model trained for each T, on text or on chains with known entropy.
"""

from __future__ import annotations

from synthetic.studies.depth_dial.conclusion import read
from synthetic.studies.depth_dial.rows import MOST, TEST_DEPTHS, rows
from synthetic.studies.engine.stopping import STOPS
from synthetic.studies.engine.study import Study

STUDY = Study(
    "dial",
    "one model for every number of steps, against a model for each",
    rows,
    read,
    replaced="mlp",
    depth=MOST,
    per_parameter=5.0,
    seeds=3,
    depths=TEST_DEPTHS,
    stops=STOPS,
)
