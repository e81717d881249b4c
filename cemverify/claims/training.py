"""Claims about training: what the paper's experiments report.

None has evidence here, so none has a verdict of ours. Each names the command that measures it, or comes nearest, and
says what would have to be measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from cemverify.claims.base import Claim

_LANGUAGE = "python -m synthetic language train --preset smoke"
_RECURSION = "python -m synthetic recursion --preset quick"


def claims() -> Iterator[Claim]:
    """The paper's reports, and what it would take to judge them."""
    yield from _recursion_claims()
    yield from _language_claims()


def _recursion_claims() -> Iterator[Claim]:
    yield Claim(
        id="18-depth-two-synthetic",
        source="synthetic study",
        statement=(
            "On functions drawn from Gaussian processes, a recursive CEM MLP is usually better at T = 2 than at 1."
        ),
        formula="RMSE(T = 2) < RMSE(T = 1)",
        proof=(
            "To be measured: the ratio of the two errors on the same functions, seeds and batches, with an interval "
            "that excludes 1, over at least eight functions per prior; and that each model was trained long enough "
            "for the ratio not to be one of training speed."
        ),
        study=f"{_RECURSION} --steps 1 2 --seeds 10",
    )
    yield Claim(
        id="18-depth-stationary",
        source="synthetic study",
        statement="With an RBF kernel T = 4 is the best depth and T = 8 slightly worse.",
        formula="RMSE(4) < RMSE(T) for T = 1, 2, 8",
        proof=(
            "To be measured: the ratios on the same functions, with intervals that exclude 1. Depth also scales the "
            "step: at equal step size eight steps go further than four, so the step size should be tuned at each "
            "depth."
        ),
        study=f"{_RECURSION} --prior rbf --steps 1 2 4 8 --seeds 10",
    )
    yield Claim(
        id="18-depth-non-stationary",
        source="synthetic study",
        statement="On a non-stationary process T = 8 is the best depth.",
        formula="RMSE(8) < RMSE(T) for T = 1, 2, 4",
        proof=(
            "To be measured as on the stationary process. The non-stationary process here is an RBF kernel on a "
            "warped input and need not be the paper's."
        ),
        study=f"{_RECURSION} --prior warped --steps 1 2 4 8 --seeds 10",
    )
    yield Claim(
        id="18-depth-two-language",
        source="Fig. 2c, 2d",
        statement="In language modelling T = 2 improves on T = 1.",
        formula="validation loss (T = 2) < validation loss (T = 1)",
        proof=(
            "To be measured: both losses at equal tokens, over several seeds (--seed), at the better learning rate "
            "of each. The study named has attention and MLP recursive together, models about a hundred times smaller "
            "than the paper's, and far less text."
        ),
        study=_LANGUAGE,
    )
    yield Claim(
        id="18-depth-unstable",
        source="text on recursion",
        statement="Training with three or more recursion steps is unstable.",
        formula="T >= 3: the loss diverges or spikes",
        proof=(
            "To be measured: how many of several trainings diverge at T = 3 and 4, over learning rates, in a "
            "language model. The study named counts diverged trainings of a regressor with deep recursions, without "
            "norm. That the energies are unbounded below (§17) fits such an instability and does not prove it."
        ),
        study=f"{_RECURSION} --steps 1 2 4 8 --seeds 10",
    )
    yield Claim(
        id="18-plain-reuse",
        source="Fig. 3c, 4",
        statement="Using a layer twice in a row, as a whole, does not help, unlike the recursion inside it.",
        formula="validation loss (layer twice) >= validation loss (layer once) > validation loss (T = 2)",
        proof=(
            "To be measured: a third model whose layers are each applied twice, keys recomputed, at equal parameters "
            "and operations. The study named has the first and the last of the three. The two maps are different "
            "(§12)."
        ),
        study=_LANGUAGE,
    )


def _language_claims() -> Iterator[Claim]:
    yield Claim(
        id="18-attention-one-step",
        source="Fig. 2a",
        statement="CEM attention at T = 1 is close to Llama's, with half of its parameters.",
        formula="validation loss (CEM attention, T = 1) - validation loss (Llama) is small",
        proof=(
            "To be measured: Llama with its attention alone replaced, at equal tokens, over several seeds and "
            "learning rates, and a margin named beforehand. The study named replaces attention and MLP together."
        ),
        study=_LANGUAGE,
    )
    yield Claim(
        id="18-attention-two-steps",
        source="Fig. 2a, 2c",
        statement="CEM attention at T = 2 is better than Llama's.",
        formula="validation loss (CEM attention, T = 2) < validation loss (Llama)",
        proof=(
            "To be measured as at T = 1. At T = 2 it costs about half as many operations again as Llama's (§14), so "
            "that equal operations should be compared beside equal tokens."
        ),
        study=_LANGUAGE,
    )
    yield Claim(
        id="18-mlp",
        source="Fig. 2b, 2d",
        statement="CEM MLPs are somewhat worse than Llama's, and the gap narrows at T = 2.",
        formula="validation loss (CEM MLP, T = 1) > validation loss (CEM MLP, T = 2) > validation loss (Llama)",
        proof=(
            "To be measured: Llama with its MLP alone replaced, at equal width and at equal parameters, M' = 1.5 M, "
            "over several seeds. The study named replaces attention and MLP together, at about equal parameters of "
            "the MLP."
        ),
        study=_LANGUAGE,
    )
    yield Claim(
        id="18-diagonal-matters",
        source="Fig. 3b",
        statement="Attention with a diagonal in A_k is better than without.",
        formula="validation loss (diagonal) < validation loss (no diagonal), T = 1, diagonal preconditioner",
        proof=(
            "To be measured: the same model with and without the diagonal, and which of two diagonals it is: the "
            "exact gradient's, or the printed one in the scores only (§7, §14). The study named always has the exact "
            "shared one."
        ),
        study=_LANGUAGE,
    )
    yield Claim(
        id="18-diagonal-shared",
        source="Fig. 3b",
        statement="A diagonal shared by the heads is about as good as one per head.",
        formula="validation loss (shared) = validation loss (per head), nearly",
        proof=(
            "To be measured: both, over several seeds, and a margin named beforehand. With its exact gradient one "
            "per head costs several times as many operations as a shared one (§14). The study named has the shared "
            "one."
        ),
        study=_LANGUAGE,
    )
    yield Claim(
        id="18-preconditioners",
        source="Fig. 2c, 2d",
        statement="Learned preconditioners help little.",
        formula="validation loss (identity) - validation loss (diagonal plus low rank) is small",
        proof=(
            "To be measured: identity, diagonal, and diagonal plus low rank at T = 1 and 2, over several seeds, and "
            "a margin named beforehand. The study named has the diagonal one."
        ),
        study=_LANGUAGE,
    )
