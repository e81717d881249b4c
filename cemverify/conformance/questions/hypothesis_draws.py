"""Draws by Hypothesis that follow from the seed alone.

Hypothesis mixes into its draws the constants that it finds in the source of whatever local modules happen to be
imported, and leaves what it found in the current folder (`.hypothesis`). What a property is asked would then depend
on the code of the layer under test, on how cemverify was installed, and on which worker asked what before. Hypothesis
has no setting for it; suites/test_hypothesis_draws.py fails if a release makes this file useless or unneeded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import Phase, given, settings
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.strategies import none


@contextmanager
def from_the_seed_alone() -> Iterator[None]:
    """Inside, what Hypothesis draws depends on the seed and the strategy; outside, other tests draw as they did."""
    draws = getattr(HypothesisProvider, "_maybe_draw_constant", None)
    if draws is None:  # as in 6.130.5, which knows no constants
        yield
        return
    HypothesisProvider._maybe_draw_constant = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        HypothesisProvider._maybe_draw_constant = draws  # type: ignore[method-assign]


def get_ready() -> None:
    """Draws once, since the first draw of a process takes longest: Hypothesis registers NumPy's generator then."""

    @settings(max_examples=1, database=None, deadline=None, phases=[Phase.generate])
    @given(none())
    def drawn(_: None) -> None: ...

    with from_the_seed_alone():
        drawn()
