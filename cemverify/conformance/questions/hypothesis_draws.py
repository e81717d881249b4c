"""Draws by Hypothesis that depend only on the seed.

Hypothesis mixes into its draws the constants that it finds in the source of any local modules that happen to be
imported, and leaves what it found in the current folder (`.hypothesis`). A property's questions would then depend
on the code of the layer under test, on how cemverify was installed, and on which worker asked what before. Hypothesis
has no setting for this; suites/test_hypothesis_draws.py fails if a release makes this file useless or unneeded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import Phase, given, settings
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.strategies import none


@contextmanager
def from_the_seed_alone() -> Iterator[None]:
    """Within, what Hypothesis draws depends only on the seed and the strategy; other tests draw as before."""
    draws = getattr(HypothesisProvider, "_maybe_draw_constant", None)
    if draws is None:  # as in 6.130.5, which does not use constants
        yield
        return
    HypothesisProvider._maybe_draw_constant = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        HypothesisProvider._maybe_draw_constant = draws  # type: ignore[method-assign]


def get_ready() -> None:
    """Draws once, since a process's first draw takes longest: Hypothesis then registers NumPy's generator."""

    @settings(max_examples=1, database=None, deadline=None, phases=[Phase.generate])
    @given(none())
    def drawn(_: None) -> None: ...

    with from_the_seed_alone():
        drawn()
