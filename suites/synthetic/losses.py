"""The losses of small models, step by step: what they are on every machine, and a check that they are so here.

`losses.json` holds the float64 losses of small trainings on a source that is drawn from a seed, in bits per token by
model and step, and how far float32 came from them, at worst over the ways of computing that were tried: vector
instructions of three ages, one thread and two. A run is checked against the former within budgets made of the latter:
training amplifies rounding, so no constant will do. The budget of a step is four times the most seen up to it, as
another order of the same sums may be unluckier, and never less than the rounding of a single loss.

    python -m suites.synthetic.losses           check: exit code 0 or 1
    python -m suites.synthetic.losses --write   make the file anew, after a change that changes losses
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from cemverify.cem.models import LanguageModel
from cemverify.console.errors import UsageError
from cemverify.processes.cores import on_one_thread
from cemverify.results.envelope import write_text
from synthetic.corpora.chains import ChainSpec, draw, source
from synthetic.corpora.corpus import Corpus, tokenised
from synthetic.corpora.tokenisers import Symbols
from synthetic.corpora.tokens import Batches
from synthetic.studies.side_by_side.rows import Contender, contenders
from synthetic.training.recipe import Recipe
from synthetic.training.training import train

FILE = Path(__file__).with_name("losses.json")
CHAIN = ChainSpec("hidden", vocabulary=32, states=8, train=2**14, validation=2**10)
RECIPE = Recipe(steps=40, batch=4, context=32, learning_rate=1e-2)
SEED = 0

UNLUCKIER = 4.0
ROUNDINGS = 8.0  # of a single loss: units in the last place of float32, for the products of a few layers

# How float32 may be computed; the environment decides it before torch is imported.
_ONE, _TWO = {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
WAYS: Sequence[Mapping[str, str]] = (
    {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", **_ONE},
    {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", **_ONE},
    {"ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512", **_ONE},
    {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", **_TWO},
)


def budgets(exact: Sequence[float], rounding: Sequence[float]) -> list[float]:
    """What each step may differ by.

    Args:
        exact: the float64 curve. rounding: how far float32 curves were from it, at each step.
    """
    eps = torch.finfo(torch.float32).eps
    so_far = accumulate(rounding, max)
    return [UNLUCKIER * most + ROUNDINGS * eps * abs(bits) for bits, most in zip(exact, so_far, strict=True)]


def models() -> tuple[Contender, ...]:
    """The models whose losses the file holds."""
    return contenders(CHAIN.vocabulary, dim=32, layers=2, heads=2, depths=(1, 2, 3))


def curves(recipe: Recipe, steps: int | None = None) -> dict[str, tuple[float, ...]]:
    """The losses of all models in the recipe's precision, of the first steps only if asked."""
    batches = Batches(_corpus().train.tokens, SEED, recipe.batch, recipe.context)
    losses = {}
    for contender in models():
        model = LanguageModel(contender.model, torch.Generator().manual_seed(SEED))
        model = model.double() if recipe.precision == "float64" else model
        losses[contender.name] = train(model, recipe, batches, until=steps).bits
    return losses


def check(steps: int | None = None) -> dict[str, float]:
    """Of each model, the largest share of its budget that a loss in float32 on one thread takes up.

    Args:
        steps: how many to train; all of the file's if not given. A curve that stops early exceeds any budget.

    Raises:
        UsageError: the tokens are not those of the file.
    """
    reference = json.loads(FILE.read_text())
    if _corpus().digest != reference["corpus"]:
        raise UsageError(
            "the corpus of the regression file is no longer drawn as it was: its losses cannot be compared"
        )
    with on_one_thread():
        losses = curves(RECIPE, steps)
    shares = {}
    for name, exact in reference["exact"].items():
        allowed = budgets(exact, reference["rounding"][name])[:steps]
        each = [abs(a - b) / c for a, b, c in zip(losses[name], exact, allowed, strict=False)]
        shares[name] = math.inf if len(each) < len(allowed) or any(map(math.isnan, each)) else max(each)
    return shares


def make() -> None:
    """Makes the file: float64 here, float32 in a process for each way of computing."""
    with on_one_thread():
        exact = curves(replace(RECIPE, precision="float64"))
    worst = {name: [0.0] * RECIPE.steps for name in exact}
    for way in WAYS:
        print(f"training with {', '.join(f'{k}={v}' for k, v in way.items())}", file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "suites.synthetic.losses", "--curves"],
            env={**os.environ, **way},
            check=True,
            capture_output=True,
            text=True,
        )
        for name, bits in json.loads(done.stdout).items():
            worst[name] = [max(w, abs(a - b)) for w, a, b in zip(worst[name], bits, exact[name], strict=True)]
    content: dict[str, Any] = {"corpus": _corpus().digest, "exact": exact, "rounding": worst}
    write_text(FILE, json.dumps(content, indent=1) + "\n")


def main(arguments: Sequence[str]) -> int:
    """Checks the losses, or makes the file; the exit code."""
    if list(arguments) == ["--curves"]:
        json.dump(curves(RECIPE), sys.stdout)
        return 0
    if list(arguments) == ["--write"]:
        make()
        return 0
    if arguments:
        print(f"error: {' '.join(arguments)} is no option; there is --write", file=sys.stderr)
        return 2
    shares = check()
    print(f"Losses of {RECIPE.steps} steps in float32 beside those on file, as shares of what they may differ by")
    for name, share in shares.items():
        print(f"{name:<12} {share:.2f}: {'agrees' if share <= 1 else 'disagrees'}")
    return 0 if max(shares.values()) <= 1 else 1


def _corpus() -> Corpus:
    with TemporaryDirectory() as folder:
        return tokenised(source(draw(CHAIN)), Symbols(CHAIN.vocabulary), Path(folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
