"""What a study of language models runs, except its corpus: rows, lengths, seeds, and their cells."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Literal

from cemverify.cem import presets as paper
from cemverify.runs.plain import digest, plain
from synthetic.corpora.choice import CorpusChoice, PinnedCorpus
from synthetic.studies.engine.designs import EMBEDDING_STD, Design, Option, Positions, Replaced, Row
from synthetic.studies.engine.trials import Part, TrialCell
from synthetic.training.frames import (
    TINY,
    TINY_SIZE,
    Frame,
    PreconditionerName,
    check_size,
    paper_recipe,
    tiny_frame,
)
from synthetic.training.recipe import Recipe

# Stands for the corpus in the name of a plan, which must not depend on it.
_NO_CORPUS = PinnedCorpus(CorpusChoice(), "")
# Seeds for tuning are far from those for judging.
TUNING_SEED = 1000
# With D = 64, a training of 5,200 steps takes 90 to 130 seconds on a core, and scoring these windows less than one.
JUDGING_WINDOWS, TUNING_WINDOWS = 1024, 512
# For the paper's experiments: windows, and how often models are scored during training.
WHOLE_WINDOWS, VALIDATIONS = 128, 20
SMALL = "small"
# About a million parameters with bytes as tokens; the only small size whose context is long enough to matter.
SMALL_SIZE = paper.Size(dim=160, layers=4, heads=5, hidden=432)
SIZES = (TINY, SMALL, *paper.SIZES)


@dataclass(frozen=True)
class Setting:
    """What the rows of a study have in common."""

    replaced: Replaced  # which layers are CEM's
    frame: Frame  # what all models share
    context: int  # J
    depth: int  # the study's T
    embedding_std: float = EMBEDDING_STD  # of the first embedding
    # P of CEM's layers, positions of all models; None means the usual ones (`Design`)
    P: PreconditionerName | None = None
    positions: Positions | None = None

    def design(self, *layer: Option) -> Design:
        """The model whose CEM layers have these options."""
        frame = self.frame
        model = Design(self.replaced, frame.size, frame.vocabulary, self.embedding_std, frame.init_std, tuple(layer))
        # usual values are not stored, so that studies share trainings
        if self.P not in (None, model.preconditioner):
            model = replace(model, layer=(*model.layer, ("preconditioner", self.P)))
        return model if self.positions in (None, model.position) else replace(model, positions=self.positions)

    @property
    def llama(self) -> Design:
        """Llama with the positions of the study's models."""
        usual = self.design()
        name: Literal["llama-rotary", "llama-alibi"] = "llama-rotary" if usual.position == "rotary" else "llama-alibi"
        return replace(usual, replaced=name, layer=(), positions=None)


@dataclass(frozen=True)
class Plan:
    """The study of one kind of layer at one size."""

    replaced: Replaced  # which layers are CEM's
    size: str  # a name
    frame: Frame  # what all models of the size share
    depth: int  # T
    per_parameter: float  # tokens per parameter of Llama; all rows see equally many
    recipe: Recipe  # of the judged trainings, except the learning rate
    rows: tuple[Row, ...] = field(repr=False)  # the models
    # seeds, seed: the number of seeds for judging, and the first
    seeds: int = 8
    seed: int = 0
    tuning_seeds: int = 1  # the number of seeds for tuning
    tuning: int = 2  # the rate is chosen at 1/this of the full length, after a search at half of that
    compiled: bool = False  # whether all trainings go through torch.compile
    # depths, stops: a judged model is also scored with these
    depths: tuple[int, ...] = ()
    stops: tuple[float, ...] = ()
    # whether rows may differ in which layers are CEM's, rates are given, and models are scored during training
    # (`Study.papers`)
    papers: bool = False
    rounded: bool = True  # whether rates are rounded to quarters of an octave
    registered: bool = False  # whether judged trainings carry the `name` of this plan

    @property
    def name(self) -> str:
        """Twelve digits that identify the plan; they change with everything that they cover.

        They cover the rows in their order, each with its name, model and length; the recipe; the first seed and the
        number of seeds for judging; the number of seeds for tuning, their lengths, and whether rates are rounded; the
        windows for judging; and the depths and stops with which a judged model is scored. They do not cover the
        corpus, whose digest each training carries, nor the device, nor whether models are compiled, nor what is fixed
        in the code: the windows and the first seed for tuning, the rates that are tried (`rates`), the margin
        (`comparisons`), and how a study's answer follows from its comparisons.
        """
        unbound = replace(self, registered=False, compiled=False)
        cells = [unbound.cell(row, self.seed, "judging", 1.0, 1.0, _NO_CORPUS, "cpu") for row in self.rows]
        rules = [self.seeds, self.tuning_seeds, list(self.shares), self.rounded]
        return digest([[row.name for row in self.rows], plain(cells), rules])[:12]

    @property
    def shares(self) -> tuple[float, ...]:
        """The lengths of tuning, as shares of the full length."""
        return 1 / (2 * self.tuning), 1 / self.tuning

    def row(self, key: Hashable) -> Row | None:
        """The row with that key, if the study has it."""
        return next((row for row in self.rows if row.key == key), None)

    def cell(
        self, row: Row, seed: int, part: Part, share: float, learning_rate: float, corpus: PinnedCorpus, device: str
    ) -> TrialCell:
        """The cell of one training: a row with a seed, at a share of the full length and a learning rate."""
        steps = math.ceil(share * row.length * self.recipe.steps)
        recipe = replace(self.recipe, steps=steps, learning_rate=learning_rate)
        count, depths, stops, every = JUDGING_WINDOWS, self.depths, self.stops, 0
        if part == "tuning":
            count, depths, stops = TUNING_WINDOWS, (), ()
        elif self.papers:
            part, count, every = "whole", WHOLE_WINDOWS, math.ceil(steps / VALIDATIONS)
        weights = seed + row.weights
        name = self.name if self.registered and part == "judging" else ""
        return TrialCell(
            corpus, row.design, recipe, seed, weights, part, count, device, self.compiled, depths, stops, every, name
        )


def sized(size: str, vocabulary: int, dims: paper.Size | None, *, papers: bool) -> tuple[Frame, Recipe]:
    """The frame and the recipe of a size; for the paper's experiments, the paper's.

    No other recipe decays the embedding: at the rates that tuning finds, decay would shrink N(0, 1) to a tenth in one
    training. The first step would then be longer than the stream, and the second would be computed far from the state
    that the memory was read from.
    """
    check_size(size, vocabulary, (TINY, *paper.SIZES) if papers else SIZES)
    if size == TINY:  # half a million bytes in small batches: 17 to 45 seconds a model on one CPU core
        dims, recipe = dims or TINY_SIZE, Recipe(steps=1000, batch=8, context=64, learning_rate=4e-3)
    elif size == SMALL:
        dims, recipe = SMALL_SIZE, Recipe(steps=1, batch=16, context=256)
    else:
        dims, recipe = paper.SIZES[size], paper_recipe(size)
    frame = Frame(dims, vocabulary, 0.02) if papers and size != TINY else tiny_frame(vocabulary, dims)
    return frame, recipe if papers else replace(recipe, embedding_decay=0.0)
