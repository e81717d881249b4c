"""What models are measured on, and what they are measured against."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, from_numpy

from synthetic.corpora.batches import spread_windows
from synthetic.corpora.chains import Chain, Rate
from synthetic.corpora.corpus import Corpus
from synthetic.corpora.yardsticks import Yardsticks, yardsticks
from synthetic.side_by_side.presets import LanguageConfig
from synthetic.training.machine import Machine, peak_flops


@dataclass(frozen=True)
class Ground:
    """A corpus, the windows that are scored, and what simpler models and the device reach.

    Attributes:
        windows: (W, J+1), of the validation part.
        floor: the least bits per token there can be on each window, (W,). rate: of the source. None of most corpora;
            a hidden chain may be too short to estimate its rate from.
        peak_flops: FLOP/s of matrix products on this device. processes: that train a model together.
        compiled: whether through torch.compile.
    """

    corpus: Corpus
    windows: Tensor
    yardsticks: Yardsticks
    floor: Tensor | None
    rate: Rate | None
    peak_flops: float
    processes: int = 1
    compiled: bool = False

    @property
    def per_byte(self) -> float:
        """Tokens per byte: what turns bits per token into bits per byte; over all of the validation part."""
        return self.corpus.validation.tokens_per_byte


def survey(config: LanguageConfig, corpus: Corpus, chain: Chain | None, machine: Machine) -> Ground:
    """The ground of a run; measures the speed of the device, which takes half a second.

    Args:
        chain: behind the corpus, if it is one.

    Raises:
        UsageError: the validation part is shorter than a window.
    """
    windows = spread_windows(corpus.validation.tokens, config.validation_windows, config.recipe.context)
    return Ground(
        corpus,
        windows,
        yardsticks(corpus.train.tokens, corpus.vocabulary, windows),
        None if chain is None else from_numpy(chain.surprisals(windows).mean(1)),
        None if chain is None else chain.rate(),
        peak_flops(machine.device, config.recipe.precision),
        machine.world,
        machine.compiled,
    )
