"""The paper's language experiments, at a size that fits the machine: all models by one recipe, at given rates."""

from __future__ import annotations

from functools import partial

from cemverify.console.errors import one_of
from synthetic.studies.engine.study import Study
from synthetic.studies.paper.rows import EXPERIMENTS
from synthetic.studies.paper.sentences import read


def study(name: str) -> Study:
    """The study of one of the paper's experiments.

    Raises:
        UsageError: there is none of that name.
    """
    experiment = one_of("study", name, EXPERIMENTS)
    return Study(
        f"language-{name}", experiment.title, "", experiment.rows, partial(read, name=name), papers=True, seeds=6
    )
