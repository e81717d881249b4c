"""What the recursion study runs: plain functions that return a complete, frozen configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cemverify.console.errors import UsageError
from cemverify.results.envelope import Cell, Table
from synthetic.gp.priors import canonical
from synthetic.gp.tasks import TaskConfig
from synthetic.studies.engine.rates import rate
from synthetic.studies.engine.stopping import STOPS
from synthetic.studies.recursion.cells import ModelCell, Replicate, TaskCell
from synthetic.studies.recursion.contenders import FAMILIES, INPUTS, OF_SEQUENCES, Contender, Family, family
from synthetic.studies.recursion.ensembles import Recipe
from synthetic.studies.recursion.regressors import DrawnSpec
from synthetic.studies.recursion.rows import SAME_AT_1

# The rates that a search begins with, by number (`engine.rates`): 4e-3 to 3.2e-2, where most models are best.
FIRST_RATES = (1, 2, 3, 4)
# Not added to the standard study: already in it, or with a study of their own (step sizes, drawn T).
NOT_STANDARD = ("cem", "again", "shared-step", "normed-shared-step", "normed-learned-step", "drawn")
# Non-stationary and yet positive semi-definite in ten dimensions.
NON_STATIONARY = "warped"

_DEEPEST = 256  # steps; training keeps every one, and even counting their FLOPs takes a minute


@dataclass(frozen=True)
class RecursionConfig:
    """Everything that a recursion study runs; checked on creation."""

    priors: tuple[str, ...] = ("rbf",)  # what functions are drawn from, as text
    depths: tuple[int, ...] = (1, 2, 4, 8)  # the recursion depths T
    seeds: int = 3  # functions per prior
    seed: int = 0  # the root of every random stream
    families: tuple[str, ...] = ("cem",)  # names that `contenders.family` knows, compared on every prior
    more_families: tuple[str, ...] = ()  # only on the first and the last prior
    # learning rates at which every contender is trained; without any, a search finds one for each contender
    rates: tuple[float, ...] = ()
    # 4096, since with 1024 training points every depth beyond 1 only learns the noise faster
    # train_points, test_points: sizes of each function's two sets
    train_points: int = 4096
    test_points: int = 1024
    dimensions: int = INPUTS
    # J: a model sees J points, one after the other, of each of `train_points` and `test_points` functions; 0: it
    # learns one function
    sequence: int = 0
    tuning: int = 0  # number of functions (or sets of them) on which a search trains at all its rates; 0: all
    noise: float = 0.1  # standard deviation on training targets
    recipe: Recipe = field(default_factory=Recipe)  # how everything is trained; its learning rate is replaced

    def __post_init__(self) -> None:
        object.__setattr__(self, "priors", tuple(canonical(prior, self.dimensions) for prior in self.priors))
        for name, values in (
            ("prior", self.priors),
            ("T", self.depths),
            ("model family", self.families),
            ("learning rate", self.rates),
        ):
            if twice := sorted({str(v) for v in values if list(values).count(v) > 1}):
                raise UsageError(f"{name} {', '.join(twice)} is given twice; name each once")
        if max(self.depths) > _DEEPEST:
            raise UsageError(f"a recursion depth T is at most {_DEEPEST}, not {max(self.depths)}")
        for prior in self.priors:
            self.task(prior)
        for name in (*self.families, *self.more_families):
            self.family(name).contenders(self.depths)

    def task(self, prior: str) -> TaskConfig:
        """The task of one prior: what its functions are drawn from, and how many points each has."""
        sizes = self.dimensions, self.train_points, self.test_points
        return TaskConfig(prior, *sizes, self.noise, sequence=self.sequence)

    def family(self, name: str) -> Family:
        """The family of models with this name, for functions or for sequences."""
        return family(name, of_sequences=self.sequence > 0)

    def replicates(self, prior: str) -> tuple[Replicate, ...]:
        """The functions that are drawn from one prior, one for each seed."""
        return tuple(Replicate(self.task(prior), self.seed, seed) for seed in range(self.seeds))

    def contenders(self, prior: str) -> list[Contender]:
        """The models that are compared on one prior, each once."""
        edge = prior in (self.priors[0], self.priors[-1])
        names = dict.fromkeys((*self.families, *(self.more_families if edge else ())))
        named = [contender for name in names for contender in self.family(name).contenders(self.depths)]
        of_one = {contender.family for contender in named if contender.depth == 1}
        return [c for c in named if c.depth != 1 or SAME_AT_1.get(c.family) not in of_one]

    def task_cells(self, prior: str) -> list[TaskCell]:
        """The functions of one prior, with their references."""
        return [TaskCell(replicate) for replicate in self.replicates(prior)]

    def parts(self, prior: str) -> tuple[tuple[Replicate, ...], tuple[Replicate, ...]]:
        """The functions on which models are trained at every rate tried, and those for the best rate alone."""
        functions, n = self.replicates(prior), self.seeds if self.rates else self.tuning or self.seeds
        return functions[:n], functions[n:]

    def model_cell(self, prior: str, contender: Contender, rate: float, *, rest: bool = False) -> ModelCell:
        """A contender on one prior at one rate; with stops by energy in a study of one model for every depth.

        Args:
            rest: whether to take the second of the `parts`.
        """
        stops = STOPS if any(isinstance(c.spec, DrawnSpec) for c in self.contenders(prior)) else ()
        return ModelCell(self.parts(prior)[rest], contender, replace(self.recipe, learning_rate=rate), stops)

    @property
    def first_rates(self) -> tuple[float, ...]:
        """The given learning rates, or those that a search begins with."""
        return self.rates or tuple(map(rate, FIRST_RATES))

    def model_cells(self, prior: str) -> list[ModelCell]:
        """Every contender on one prior at its first rates."""
        return [self.model_cell(prior, c, r) for c in self.contenders(prior) for r in self.first_rates]


@dataclass(frozen=True)
class Preset:
    """A recursion study under a name of its own."""

    about: str  # one line for `--help`
    config: RecursionConfig  # the complete configuration


def _context_recipe(steps: int) -> Recipe:
    return Recipe(steps, batch=32, learning_rate=8e-3, held_out=1 / 32, check_every=50)


_CONTEXT = RecursionConfig(
    priors=("rbf(lengthscale=0.5)",),
    seeds=6,
    families=tuple(OF_SEQUENCES),
    train_points=16384,
    test_points=512,
    dimensions=1,
    sequence=16,
    tuning=2,
    recipe=_context_recipe(400),
)

PRESETS: Mapping[str, Preset] = {
    "smoke": Preset(
        "checks that everything works, in well under a minute; too small to conclude anything from",
        RecursionConfig(
            depths=(1, 2), seeds=2, rates=(1e-2,), train_points=1024, test_points=512, recipe=Recipe(steps=300)
        ),
    ),
    "quick": Preset("a first look; four minutes on two cores", RecursionConfig(seeds=6, families=("cem", "again"))),
    "standard": Preset(
        "every family on the first prior and the last; under an hour on two cores",
        RecursionConfig(
            priors=("rbf", "matern52", "periodic", NON_STATIONARY),
            seeds=10,
            families=("cem", "again"),
            more_families=tuple(name for name in FAMILIES if name not in NOT_STANDARD),
        ),
    ),
    "step-sizes": Preset(
        "T = 1 to 8 at three step sizes, with a norm inside and without: an hour on two cores",
        RecursionConfig(
            priors=("rbf", NON_STATIONARY),
            seeds=10,
            families=(
                *("cem", "shared-step", "learned-step", "again"),
                *("normed", "normed-shared-step", "normed-learned-step"),
            ),
        ),
    ),
    "dial": Preset(
        "depth as a dial: one model for all T, against models for each; a quarter of an hour",
        RecursionConfig(seeds=6, families=("cem", "shared-step", "drawn", "again")),
    ),
    "context-smoke": Preset(
        "functions from context, to check that everything works: ten seconds",
        replace(_CONTEXT, depths=(1, 2), seeds=2, rates=(8e-3,), train_points=512, recipe=_context_recipe(30)),
    ),
    "context-quick": Preset(
        "functions from context, a first look: minutes",
        replace(_CONTEXT, depths=(1, 2), train_points=4096, recipe=_context_recipe(150)),
    ),
    "context": Preset(
        "functions from context: attention predicts each next value of a function from the points before",
        _CONTEXT,
    ),
    "paper": Preset(
        "every prior and every family, longer training, compiled: for a GPU machine or a cluster",
        RecursionConfig(
            priors=(
                *("rbf", "matern32", "matern52", "rational-quadratic", "periodic", "additive"),
                *("gibbs", "changepoint", "modulated", NON_STATIONARY),
            ),
            seeds=20,
            families=tuple(FAMILIES),
            recipe=Recipe(steps=6000, compiled=True),
        ),
    ),
}


# --- what a study will take ---------------------------------------------------------------------------

# Rates that a search tries on average, mostly the first four: the standard study found 100 rates in 412 trainings.
USUAL_RATES = 4.1


def estimate(config: RecursionConfig) -> Table:
    """For each prior its functions, models and trainings, and the time on one core, from the seconds of its cells."""
    rates = float(len(config.rates) or USUAL_RATES)
    rows: list[list[Cell]] = []
    total = 0.0
    for prior in config.priors:
        functions = config.task_cells(prior)
        models, rest = (
            [config.model_cell(prior, c, 1e-2, rest=r) for c in config.contenders(prior) if config.parts(prior)[r]]
            for r in (False, True)
        )
        seconds = sum(f.cost for f in functions) + rates * sum(m.cost for m in models) + sum(m.cost for m in rest)
        rows.append([prior, len(functions), len(models), round(rates * len(models)), _shown(seconds)])
        total += seconds
    rows.append(["all", "", "", "", _shown(total)])
    search = "" if config.rates else f", a search taken to try {USUAL_RATES:g} rates"
    title = (
        f"What the study takes: trainings of all functions of a prior at once{search}; time of one core of an Intel"
        " Xeon with AVX-512"
    )
    return Table(title, ("prior", "functions", "models", "trainings", "time"), rows)


def _shown(seconds: float) -> str:
    unit, size = next((u, s) for u, s in (("h", 3600), ("min", 60), ("s", 1)) if seconds >= s or s == 1)
    return f"{seconds / size:.2g} {unit}"
