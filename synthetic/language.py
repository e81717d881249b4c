"""The language study: Llama against CEM at T = 1 and T = 2, on the same bytes in the same order.

Thin but real: a byte-level model of Python source, trained for a minute or two, beside yardsticks of the same
validation bytes. It shows that these layers train, what they cost and whether their energies fall. It is one
seed of an untuned recipe at a tiny size, and no claim about quality.

On the CPU a run repeats bit for bit; on a GPU, where sums are taken in any order, it does not.

It passes if every loss is finite and every model needs fewer bits per byte than a bigram model.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from cemverify.cem.models import LanguageModel
from cemverify.results import Cell, Maker, Table, check_writable, result, write
from reports.render import terminal
from synthetic import text
from synthetic.errors import UsageError
from synthetic.language_measures import Cost, Falls, cost, falling_energies
from synthetic.language_presets import PRESETS, Contender, Study, preset
from synthetic.language_training import Training, score, train

DESCRIPTION = """\
Trains three byte-level models on the source of the standard library, Llama, CEM at T = 1 and CEM at T = 2, on the
same batches, and sets their validation bits per byte beside those of unigram and bigram models, gzip and xz.
"""

EPILOG = """\
presets:
  smoke   a minute or two on one CPU core (D = 128, 4 layers); larger, in bfloat16, on a GPU
  tiny    seconds; whether everything works

columns of the table:
  MFLOPs/byte             matrix products of one forward pass; causal attention counts as if dense
  training MFLOPs/byte    of a forward and a backward pass
  minus bigram            bits per byte less than a bigram model needs, if negative

exit code: 0 if every loss is finite and every model beats the bigram model, 1 if not, 2 for bad arguments.
"""

SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True)
class Entry:
    """What the study found out about one model.

    Attributes:
        parameters: how many it has.
        validation: mean bits per byte over the validation windows; None if it diverged.
        standard_error: of that mean over the windows, for this one trained model.
        falls: of its energies after training; () for Llama and for a model that diverged.
    """

    contender: Contender
    parameters: int
    cost: Cost
    training: Training
    validation: float | None
    standard_error: float | None
    falls: tuple[Falls, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m synthetic language`."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("--preset", default="smoke", help=f"{', '.join(PRESETS)}; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches; default: %(default)s")
    parser.add_argument(
        "--device", default="auto", help="auto (a GPU if there is one), cpu, cuda; default: %(default)s"
    )
    parser.add_argument(
        "--steps", type=int, help="optimiser steps, one batch each, instead of the preset's; T belongs to the models"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("out/language.json"), help="the result file; default: %(default)s"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the study, prints its tables and writes its result file; 0 if it passes, 1 if not.

    Raises:
        UsageError: an option makes no sense here, or this Python has no source to learn from.
        ResultError: the result file cannot be written.
    """
    device = _device(options.device)
    study = _study(options, device)
    check_writable(options.output)
    command = (
        f"python -m synthetic language --preset {options.preset} --seed {options.seed} --device {device}"
        f" --steps {study.recipe.steps}"
    )
    maker = Maker.now(command, asdict(study), options.seed, device)
    corpus = text.standard_library()
    windows = text.windows(corpus.validation, study.validation_windows, study.recipe.context)
    yardsticks = text.yardsticks(corpus, windows)
    with _one_thread():
        entries = [_enter(c, study, corpus, windows, options.seed, device) for c in study.contenders]
        content = compose(maker, study, corpus, windows, yardsticks, entries)
    print(terminal([Table(**table) for table in content["tables"]]))
    verdict = content["verdict"]
    print("\n" + ("pass: every model needs fewer bits per byte than a bigram model" if verdict["pass"] else "fail:"))
    print("".join(f"  {reason}\n" for reason in verdict["reasons"]), end="")
    write(options.output, content)
    print(f"written to {options.output}")
    return 0 if verdict["pass"] else 1


def reasons_to_fail(entries: Sequence[Entry], bigram: float) -> list[str]:
    """One sentence for each model that diverged or does not beat the bigram model; [] is a pass."""
    reasons = []
    for entry in entries:
        name = entry.contender.name
        if entry.training.diverged_at is not None:
            reasons.append(f"{name} diverged at step {entry.training.diverged_at}: its loss is not finite")
        elif entry.validation is None:
            reasons.append(f"{name} diverged at its last step: its validation loss is not finite")
        elif not entry.validation < bigram:
            reasons.append(
                f"{name} needs {entry.validation:.3f} bits per byte, not fewer than the {bigram:.3f} of a bigram"
                " model; it may need more --steps"
            )
    return reasons


def compose(
    maker: Maker,
    study: Study,
    corpus: text.Corpus,
    windows: Tensor,
    yardsticks: text.Yardsticks,
    entries: Sequence[Entry],
) -> dict[str, Any]:
    """The result file: corpus, models, verdict and the tables that a person reads."""
    reasons = reasons_to_fail(entries, yardsticks.bigram)
    payload = {
        "corpus": {
            "source": "standard library of the running Python, without tests, encodings and build settings",
            "digest": corpus.digest,
            "train": {"bytes": len(corpus.train), "files": len(corpus.train_files)},
            "validation": {
                "bytes": len(corpus.validation),
                "files": len(corpus.validation_files),
                "scored_bytes": windows[:, 1:].numel(),
            },
            "bits_per_byte": asdict(yardsticks),
        },
        "models": [_model_record(entry) for entry in entries],
        "verdict": {"pass": not reasons, "reasons": reasons},
    }
    tables = [_models_table(study, yardsticks, entries), _yardsticks_table(corpus, windows, yardsticks)]
    if any(entry.falls for entry in entries):
        tables.append(_energies_table(entries))
    return result("language", maker, tables, payload)


# --- one model ----------------------------------------------------------------------------------


def _enter(contender: Contender, study: Study, corpus: text.Corpus, windows: Tensor, seed: int, device: str) -> Entry:
    recipe = study.recipe
    model = LanguageModel(contender.model, torch.Generator().manual_seed(seed)).to(device)
    batches = text.Batches(corpus.train, seed, recipe.batch, recipe.context)
    training = train(model, recipe, batches, device, _Progress(contender.name, study, sys.stderr))
    validation, standard_error = None, None
    falls: tuple[Falls, ...] = ()
    if training.diverged_at is None:
        bits = score(model, windows, recipe, device)  # (W,)
        if bits.isfinite().all():
            validation = float(bits.mean())
            standard_error = float(bits.std(correction=1)) / math.sqrt(len(bits)) if len(bits) > 1 else None
            falls = falling_energies(model, windows[: recipe.batch, :-1].to(device))
    return Entry(
        contender,
        sum(parameter.numel() for parameter in model.parameters()),
        cost(contender.model, recipe.context),
        training,
        validation,
        standard_error,
        falls,
    )


class _Progress:
    """A line on stderr every few seconds and at the end."""

    def __init__(self, name: str, study: Study, stream: TextIO) -> None:
        self.name = name
        self.recipe = study.recipe
        self.stream = stream
        self.last = -math.inf

    def __call__(self, step: int, bits: float, rate: float) -> None:
        done = step == self.recipe.steps
        if not done and time.monotonic() - self.last < SECONDS_BETWEEN_LINES:
            return
        self.last = time.monotonic()
        left = (self.recipe.steps - step) * self.recipe.batch * self.recipe.context / rate
        print(
            f"{self.name:8} step {step}/{self.recipe.steps}  {bits:.3f} bits/byte  {rate:,.0f} bytes/s"
            + ("" if done else f"  {left:.0f} s left"),
            file=self.stream,
            flush=True,
        )


# --- options ------------------------------------------------------------------------------------


def _device(name: str) -> str:
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"no device {name!r}; there are: auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda needs a CUDA device, and torch sees none; use --device cpu")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def _study(options: argparse.Namespace, device: str) -> Study:
    study = preset(options.preset, device)
    if not 0 <= options.seed < 2**32:
        raise UsageError(f"--seed must be from 0 to 2^32 - 1, not {options.seed}")
    if options.steps is None:
        return study
    if options.steps < 1:
        raise UsageError(f"--steps must be at least 1, not {options.steps}")
    return replace(study, recipe=replace(study.recipe, steps=options.steps))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Computes on one CPU thread: two are at best 1.6 times as fast, and many times slower on a busy machine.

    It also makes a run on the CPU the same bit for bit: on two, gradients of the embedding add up in any order.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- the result ---------------------------------------------------------------------------------


def _model_record(entry: Entry) -> Mapping[str, Any]:
    return {
        "name": entry.contender.name,
        "config": asdict(entry.contender.model),
        "parameters": entry.parameters,
        "flops_per_byte": asdict(entry.cost),
        "bytes_per_second": entry.training.bytes_per_second,
        "batches_digest": entry.training.batches,
        "training_bits_per_byte": list(entry.training.bits),
        "diverged_at": entry.training.diverged_at,
        "validation_bits_per_byte": entry.validation,
        "validation_standard_error": entry.standard_error,
        "energy_falls": [asdict(falls) for falls in entry.falls],
    }


def _models_table(study: Study, yardsticks: text.Yardsticks, entries: Sequence[Entry]) -> Table:
    recipe = study.recipe
    title = (
        f"Models of bytes after {recipe.steps} steps of {recipe.batch} x {recipe.context} bytes, the same batches for"
        " all, one seed (FLOPs: matrix products, causal attention as if dense; ± over validation windows, not seeds)"
    )
    columns = (
        "model",
        "parameters",
        "MFLOPs/byte",
        "training MFLOPs/byte",
        "bytes/s",
        "validation bits/byte",
        "minus bigram",
        "minus unigram",
    )
    return Table(title, columns, [_models_row(entry, yardsticks) for entry in entries])


def _models_row(entry: Entry, yardsticks: text.Yardsticks) -> list[Cell]:
    known: list[Cell] = [
        entry.contender.name,
        f"{entry.parameters:,}",
        f"{entry.cost.forward / 1e6:.2f}",
        f"{entry.cost.training / 1e6:.2f}",
        f"{entry.training.bytes_per_second:,.0f}",
    ]
    if entry.validation is None:
        at = entry.training.diverged_at
        return [*known, "diverged at its last step" if at is None else f"diverged at step {at}", "-", "-"]
    error = "" if entry.standard_error is None else f" ± {entry.standard_error:.3f}"
    return [
        *known,
        f"{entry.validation:.3f}{error}",
        f"{entry.validation - yardsticks.bigram:+.3f}",
        f"{entry.validation - yardsticks.unigram:+.3f}",
    ]


def _yardsticks_table(corpus: text.Corpus, windows: Tensor, yardsticks: text.Yardsticks) -> Table:
    scored = windows[:, 1:].numel()
    title = (
        f"Yardsticks: {len(corpus.train):,} bytes in {len(corpus.train_files)} files to learn from,"
        f" {len(corpus.validation):,} bytes in {len(corpus.validation_files)} other files to validate on"
    )
    rows: list[list[Cell]] = [
        ["uniform", f"{yardsticks.uniform:.3f}", "any"],
        ["unigram", f"{yardsticks.unigram:.3f}", f"the {scored:,} that the models predict"],
        ["bigram", f"{yardsticks.bigram:.3f}", f"the {scored:,} that the models predict"],
        ["gzip", f"{yardsticks.gzip:.3f}", "all of validation, untrained"],
        ["xz", f"{yardsticks.xz:.3f}", "all of validation, untrained"],
    ]
    return Table(title, ("yardstick", "bits/byte", "on which bytes"), rows)


def _energies_table(entries: Sequence[Entry]) -> Table:
    rows: list[list[Cell]] = []
    for entry in entries:
        for falls in entry.falls:
            for step, shares in enumerate(zip(*falls.shares, strict=True)):
                row: list[Cell] = [entry.contender.name, falls.kind, f"{step} to {step + 1}"]
                rows.append([*row, *(f"{share:.2%}" for share in shares)])
    columns = ("model", "energy", "step", *(f"layer {i + 1}" for i in range(len(rows[0]) - 3)))
    return Table("Share of validation tokens whose energy falls at a recursion step, after training", columns, rows)
