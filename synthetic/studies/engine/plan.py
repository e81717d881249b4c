"""What a study of language models runs, but for its corpus: rows, lengths, seeds, and the cells that they ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cemverify.cem import presets as paper
from cemverify.console.errors import UsageError
from synthetic.corpora.choice import PinnedCorpus
from synthetic.studies.engine.designs import EMBEDDING_STD, Design, Option, Replaced, Row, chosen, parameters
from synthetic.studies.engine.rates import rate
from synthetic.studies.engine.trials import Part, TrialCell
from synthetic.training.frames import TINY, Frame, check_size, paper_recipe, tiny_frame, tiny_recipe
from synthetic.training.recipe import Recipe, RecipeChanges

# Seeds that tune are far from those that judge.
TUNING_SEED = 1000
# With D = 64, a training of 5,200 steps costs 90 to 130 seconds of a core, and scoring these windows less than one.
JUDGING_WINDOWS, TUNING_WINDOWS = 1024, 512
SMALL = "small"
# About a million parameters with bytes as tokens, and the only size with a context long enough to matter.
SMALL_SIZE = paper.Size(dim=160, layers=4, heads=5, hidden=432)
NO_CHANGES = RecipeChanges()
SIZES = (TINY, SMALL, *paper.SIZES)


@dataclass(frozen=True)
class Setting:
    """What the rows of a study are made for.

    Attributes:
        replaced: which layers are CEM's. frame: what all models share. context: J. depth: the study's T.
    """

    replaced: Replaced
    frame: Frame
    context: int
    depth: int

    def design(self, *layer: Option) -> Design:
        """The model with these options of its CEM layers."""
        frame = self.frame
        return Design(self.replaced, frame.size, frame.vocabulary, EMBEDDING_STD, frame.init_std, tuple(layer))

    @property
    def llama(self) -> Design:
        """Llama with the positions that the study's models have."""
        return replace(self.design(), replaced="llama-rotary" if self.replaced == "mlp" else "llama-alibi")


@dataclass(frozen=True)
class Plan:
    """The study of one kind of layer at one size.

    Attributes:
        replaced: which layers are CEM's. size: a name. frame: what all models of the size share. depth: T.
        per_parameter: tokens for each parameter of Llama; all rows see equally many.
        recipe: of the judged trainings, but for the rate. rows: the models.
        seeds, seed: how many judge, and the first. tuning_seeds: how many tune.
        tuning: 1/this of the full length is what the rate is chosen at, and half of that what it is sought at.
        compiled: whether all trainings go through torch.compile.
        depths, stops: with which a judged model is scored beside its own (`TrialCell`).
    """

    replaced: Replaced
    size: str
    frame: Frame
    depth: int
    per_parameter: float
    recipe: Recipe
    rows: tuple[Row, ...] = field(repr=False)
    seeds: int = 8
    seed: int = 0
    tuning_seeds: int = 1
    tuning: int = 2
    compiled: bool = False
    depths: tuple[int, ...] = ()
    stops: tuple[float, ...] = ()

    @property
    def shares(self) -> tuple[float, ...]:
        """The lengths of tuning, as shares of the full one."""
        return 1 / (2 * self.tuning), 1 / self.tuning

    def row(self, name: str) -> Row | None:
        """The row of that name, if the study has it."""
        return next((row for row in self.rows if row.name == name), None)

    def cell(
        self, row: Row, seed: int, part: Part, share: float, learning_rate: float, corpus: PinnedCorpus, device: str
    ) -> TrialCell:
        """The cell of one training: a row with a seed, at a share of the full length and a learning rate."""
        steps = math.ceil(share * self.recipe.steps)
        recipe = replace(self.recipe, steps=steps, learning_rate=learning_rate, base=row.base)
        windows, depths, stops = JUDGING_WINDOWS, self.depths, self.stops
        if part == "tuning":
            windows, depths, stops = TUNING_WINDOWS, (), ()
        weights = seed + row.weights
        return TrialCell(
            corpus, row.design, recipe, seed, weights, part, windows, device, self.compiled, depths, stops
        )

    def tuning_cells(
        self, row: Row, share: float, numbers: Sequence[int], corpus: PinnedCorpus, device: str
    ) -> list[TrialCell]:
        """The trainings of one row at one length at these rates, all seeds of a rate after each other."""
        seeds = [TUNING_SEED + i for i in range(self.tuning_seeds)]
        return [self.cell(row, s, "tuning", share, rate(k), corpus, device) for k in numbers for s in seeds]


def plan(
    rows: Callable[[Setting], Sequence[Row]],
    replaced: Replaced,
    vocabulary: int,
    *,
    size: str = TINY,
    dims: paper.Size | None = None,
    depth: int = 2,
    per_parameter: float = 20.0,
    changes: RecipeChanges = NO_CHANGES,
    names: Sequence[str] = (),
    with_beyond: bool = False,
    seeds: int = 8,
    seed: int = 0,
    tuning_seeds: int = 1,
    tuning: int = 2,
    compiled: bool = False,
    depths: tuple[int, ...] = (),
    stops: tuple[float, ...] = (),
) -> Plan:
    """The study.

    Args:
        rows: makes all rows of the study. vocabulary: V; the paper's sizes need its 32,000.
        dims: instead of the size's, at "tiny". names: of the rows to run; if (), all that are usual.
        with_beyond: and all rows that are beyond the paper.

    Raises:
        UsageError: there is no such size or row, or a number is out of its range.
    """
    frame, recipe = _size(size, vocabulary, dims)
    if depth < 2:
        raise UsageError(f"the study is about several steps: give a depth of 2 or more, not {depth}")
    if changes.learning_rate is not None:
        raise UsageError("the study finds the learning rate of each row itself: give none")
    recipe = changes.of(recipe)
    setting = Setting(replaced, frame, recipe.context, depth)
    every, llama = rows(setting), parameters(setting.llama)
    if changes.steps is None:
        recipe = replace(recipe, steps=math.ceil(per_parameter * llama / (recipe.batch * recipe.context)))
    else:
        per_parameter = recipe.tokens / llama
    usual = names or [row.name for row in every if not row.beyond]
    also = [row.name for row in every if row.beyond and with_beyond]
    return Plan(
        *(replaced, size, frame, depth, per_parameter, recipe, chosen(every, [*usual, *also])),
        *(seeds, seed, tuning_seeds, tuning, compiled, depths, stops),
    )


def _size(size: str, vocabulary: int, dims: paper.Size | None) -> tuple[Frame, Recipe]:
    """The frame and the recipe of a size.

    No recipe decays the embedding: at the rates that tuning finds, decay would shrink N(0, 1) to a tenth in one
    training, the first step would be longer than the stream, and the second asked far from what the memory was read
    from.
    """
    check_size(size, vocabulary, SIZES)
    if size == TINY:
        frame = tiny_frame(vocabulary, dims) if dims else tiny_frame(vocabulary)
        return frame, replace(tiny_recipe(), embedding_decay=0.0)
    if size == SMALL:
        return tiny_frame(vocabulary, SMALL_SIZE), Recipe(steps=1, batch=16, context=256, embedding_decay=0.0)
    dims = paper.SIZES[size]
    return Frame(dims, vocabulary, dims.dim**-0.5), replace(paper_recipe(size), embedding_decay=0.0)
