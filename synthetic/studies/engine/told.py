"""What is told of a token by the entropy of what a model predicts there, and by the energies of its layers.

Two questions are asked of a trained model. How large is the loss of a token? And is a token from elsewhere, from text
that the model was not trained on? Each is answered three times by gradient-boosted trees: from the entropy of the
softmax, from the energies, and from both. So what both tell and the entropy does not is what energies add. The place
of a token in its window is known to all three, because energies of attention and losses both depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from cemverify.cem.layers import CEMAttention, CEMGatedMLP
from cemverify.cem.models import Block, LanguageModel
from synthetic.training.steps import applications

LOSS, PIECES, BACKWARDS = "loss", "pieces in another order", "backwards"
PIECES_OF_ONE = 8  # into so many pieces is a window cut
TOLD_WINDOWS = 256  # a sample: they give 16,384 tokens at the size "tiny"
_AT_ONCE = 64

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Told:
    """How much of the answer to one question remains untold: 0 if all is told, 1 if nothing is.

    Attributes:
        question: the loss, or the kind of text from elsewhere.
        entropy, energies, both: by what is known of a token; of the loss, the share of its variance that remains; of
            text from elsewhere, twice the distance of the area under the ROC curve from 1.
    """

    question: str
    entropy: float
    energies: float
    both: float


@dataclass(frozen=True)
class Seen:
    """What is known of tokens, one row each, window after window.

    Attributes:
        place: in the window. entropy: of the prediction, in nats. loss: of the token that follows, in nats; all (N,).
        energies: of each CEM layer, before its first step and how far all steps lower it: (N, 2 L).
    """

    place: Array
    entropy: Array
    energies: Array
    loss: Array

    def known(self) -> Mapping[str, Array]:
        """The columns from which a question is answered, by the name of what is known."""
        place, entropy = self.place[:, None], self.entropy[:, None]
        return {
            "entropy": np.hstack([place, entropy]),
            "energies": np.hstack([place, self.energies]),
            "both": np.hstack([place, entropy, self.energies]),
        }


def told(model: LanguageModel, windows: Tensor, seed: int) -> tuple[Told, ...]:
    """What remains untold of each question on windows (W, J+1) of the text that the model was trained for.

    The trees are fitted to one half of the windows and asked about the other, both ways.

    Args:
        seed: of the other order of pieces.

    Raises:
        TypeError: attention and MLP take turns, so that no layer takes its steps in a row.
    """
    own = seen(model, windows)
    first_half = np.arange(len(own.loss)) < len(windows) // 2 * (windows.shape[1] - 1)
    found = [Told(LOSS, **{name: _unexplained(x, own.loss, first_half) for name, x in own.known().items()})]
    for question, elsewhere in ((PIECES, pieces(windows, seed)), (BACKWARDS, windows.flip(1))):
        theirs = seen(model, elsewhere)
        others = theirs.known()
        shares = {name: _unseparated(x, others[name], np.tile(first_half, 2)) for name, x in own.known().items()}
        found.append(Told(question, **shares))
    return tuple(found)


@torch.no_grad()
def seen(model: LanguageModel, windows: Tensor) -> Seen:
    """What is known of the tokens of windows (W, J+1) but the last of each.

    Raises:
        TypeError: attention and MLP take turns.
    """
    entropies, losses, energies = [], [], []
    for chunk in torch.split(windows.to(model.embedding.device), _AT_ONCE):
        logits = model(chunk[:, :-1]).float()  # (B, J, V)
        entropies.append(torch.special.entr(logits.softmax(-1)).sum(-1))
        losses.append(F.cross_entropy(logits.mT, chunk[:, 1:], reduction="none"))
        energies.append(_energies(model, chunk[:, :-1]))
    places = torch.arange(windows.shape[1] - 1).expand(len(windows), -1)
    return Seen(
        _column(places), _column(torch.cat(entropies)), _table(torch.cat(energies)), _column(torch.cat(losses))
    )


def pieces(windows: Tensor, seed: int) -> Tensor:
    """The windows (W, J+1), each cut into pieces that stand in another order; what fills no piece stays behind."""
    generator, count = torch.Generator().manual_seed(seed), PIECES_OF_ONE
    size = max(1, windows.shape[1] // count)
    order = torch.rand(len(windows), count, generator=generator).argsort(1)  # (W, P)
    whole = windows[:, : count * size].reshape(len(windows), count, size)  # (W, P, J / P)
    moved = whole.gather(1, order[:, :, None].expand_as(whole)).flatten(1)
    return torch.cat([moved, windows[:, count * size :]], 1)


def _energies(model: LanguageModel, tokens: Tensor) -> Tensor:
    """Of each CEM layer on tokens (B, J): its energy before the first step, and how far all steps lower it."""
    found: list[Tensor] = []
    for _, _, _, layer, h in applications(model, tokens):
        if isinstance(layer, Block):
            raise TypeError("where attention and MLP take turns, no layer takes its steps in a row")
        if isinstance(layer, CEMAttention | CEMGatedMLP):
            energies = layer.trajectory(h, layer.norm().into(h)).energies  # (T+1, B, J)
            found += [energies[0], energies[0] - energies[-1]]
    return torch.stack(found, -1)  # (B, J, 2 L)


def _unexplained(x: Array, y: Array, first_half: NDArray[np.bool_]) -> float:
    """1 - R^2 of y (N,) from x (N, F), each half by what was fitted to the other."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # takes a second, and few studies ask for it

    residuals = np.empty_like(y)
    for fitted in (first_half, ~first_half):
        trees = HistGradientBoostingRegressor(random_state=0, early_stopping=False).fit(x[fitted], y[fitted])
        residuals[~fitted] = y[~fitted] - trees.predict(x[~fitted])
    return float(np.square(residuals).mean() / y.var())


def _unseparated(own: Array, theirs: Array, first_half: NDArray[np.bool_]) -> float:
    """2 (1 - AUROC) of tokens of two texts (N, F) each, the mean over halves that the other half was fitted to.

    It is at least that of one pair of tokens in the wrong order, so that ratios of it are finite.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    x, y = np.vstack([own, theirs]), np.repeat([0, 1], [len(own), len(theirs)])
    areas = []
    for fitted in (first_half, ~first_half):
        trees = HistGradientBoostingClassifier(random_state=0, early_stopping=False).fit(x[fitted], y[fitted])
        areas.append(roc_auc_score(y[~fitted], trees.decision_function(x[~fitted])))
    return max(float(2 * (1 - np.mean(areas))), 4 / len(own) ** 2)


def _column(values: Tensor) -> Array:
    return values.double().flatten().cpu().numpy()


def _table(values: Tensor) -> Array:
    return values.double().flatten(0, 1).cpu().numpy()
