"""The paper's language experiments, at a size that fits the machine: one recipe for all models, at given rates."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from synthetic.studies.engine.study import Study
from synthetic.studies.paper import rows
from synthetic.studies.paper.conclusion import read

EXPERIMENTS: Mapping[str, Study] = {
    name: Study(
        *(f"language-{name}", f"{experiment.title} ({experiment.figure})", experiment.rows),
        partial(read, name=name),
        papers=True,
        seeds=6,
    )
    for name, experiment in rows.EXPERIMENTS.items()
}
