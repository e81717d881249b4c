"""The outcome of a run: the payload of its result file, and the tables for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING, shown_share
from synthetic.corpora.corpus import CorpusPart
from synthetic.figures.sheets import plain
from synthetic.studies.side_by_side.rows import LanguageConfig
from synthetic.studies.side_by_side.tables import models
from synthetic.studies.side_by_side.trainings import Ground, ModelResult
from synthetic.training.cost import Paths, on_meta, paths
from synthetic.training.steps import warning


@dataclass(frozen=True)
class TrainingFindings:
    """The outcome of a run."""

    config: LanguageConfig
    ground: Ground
    results: Sequence[ModelResult]

    @cached_property
    def reasons(self) -> list[str]:
        """Why it does not pass, one sentence each; [] if it passes."""
        return reasons_to_fail(self.results, self.ground.yardsticks.bigram, self.config.band, self.ground.floor)

    @property
    def passed(self) -> str:
        """What a run that passes has shown, in a sentence."""
        sentence = "every loss falls, and every model needs fewer bits than a bigram model"
        baselines = [result.contender.baseline for result in self.results]
        if math.isfinite(self.config.band) and any(baselines) and not all(baselines):
            sentence += (
                f", none more than {self.config.band:g} times those of Llama with the same positions"
                f" ({self.config.why_band})"
            )
        if any(layer.promised is not None for result in self.results for layer in result.probes):
            sentence += "; every energy falls where it must"
        return sentence

    @cached_property
    def paths(self) -> dict[str, Paths]:
        """The paths that the layers of each contender take, by its name."""
        recipe, here = self.config.recipe, self.ground.machine
        models = {c.name: on_meta(c.model) for c in self.config.contenders}
        return {name: paths(m, recipe, device=here.device, compiled=here.compiled) for name, m in models.items()}


def payload(findings: TrainingFindings) -> dict[str, Any]:
    """What the result file holds beside its tables."""
    config, ground, reasons = findings.config, findings.ground, findings.reasons
    corpus = ground.corpus
    per_byte = {name: bits * ground.per_byte for name, bits in asdict(ground.yardsticks).items()}
    sentence = warning({result.contender.name: result.start for result in findings.results})
    return {
        "notes": [sentence] if sentence else [],
        "corpus": {
            **corpus.describe(),
            "train": _part(corpus.train),
            "validation": {**_part(corpus.validation), "scored_tokens": ground.windows[:, 1:].numel()},
            "bits_per_byte": per_byte,
            "floor_bits_per_byte": None if ground.floor is None else float(ground.floor.mean()) * ground.per_byte,
        },
        "peak_flops_per_second": ground.peak_flops,
        "compiled": ground.machine.compiled,
        "models": [
            {**_model(result, ground), "paths": findings.paths[result.contender.name]} for result in findings.results
        ],
        "verdict": {"pass": not reasons, "reasons": reasons, "band": config.band, "why_band": config.why_band},
    }


def tables(findings: TrainingFindings, content: Mapping[str, Any]) -> list[Table]:
    """The tables for people: the models, the yardsticks, and the layers if any has an energy.

    Args:
        content: the result as in its file.
    """
    made = [plain(models(content)), _yardsticks_table(findings.ground)]
    if any(result.probes for result in findings.results):
        made.append(_layers_table(findings.results))
    return made


def _part(part: CorpusPart) -> dict[str, Any]:
    return {"tokens": len(part.tokens), "bytes": part.bytes, "documents": part.documents}


def _model(result: ModelResult, ground: Ground) -> Mapping[str, Any]:
    bits, error = result.bits, result.standard_error
    reached = result.cost.training * result.training.tokens_per_second
    return {
        "name": result.contender.name,
        "config": asdict(result.contender.model),
        "parameters": result.parameters,
        "flops_per_token": asdict(result.cost),
        "tokens_per_second": result.training.tokens_per_second,
        # MFU: the share of the measured peak that the matrix products of training reach
        "utilisation": reached / ground.peak_flops,
        "peak_bytes": result.peak_bytes,
        "batches_digest": result.training.batches,
        "training_bits_per_token": list(result.training.bits),
        "diverged_at": result.training.diverged_at,
        "diverged_where": result.training.where,
        "validation_bits_per_byte": None if bits is None else bits * ground.per_byte,
        "validation_standard_error": None if error is None else error * ground.per_byte,
        "layers": [asdict(layer) for layer in result.probes],
        "steps": {"start": [asdict(s) for s in result.start], "trained": [asdict(s) for s in result.trained]},
    }


def _yardsticks_table(ground: Ground) -> Table:
    corpus, unit, scored = ground.corpus, ground.corpus.unit, ground.windows[:, 1:].numel()
    train, validation = corpus.train, corpus.validation
    title = (
        f"Yardsticks of the {corpus.name}: {train.bytes:,} {unit}s in {train.documents:,} document(s) to learn from,"
        f" {validation.bytes:,} {unit}s in {validation.documents:,} other(s) to validate on"
    )
    models = f"the {scored:,} {corpus.token}s that the models predict"
    rows: list[list[Cell]] = [
        [name, f"{bits * ground.per_byte:.3f}", "any" if name == "uniform" else models]
        for name, bits in asdict(ground.yardsticks).items()
    ]
    if ground.floor is not None:
        rows.append(["floor, exact", f"{float(ground.floor.mean()):.4f}", models])
    return Table(title, ("yardstick", f"bits/{unit}", f"on which {corpus.token}s"), rows)


def _layers_table(results: Sequence[ModelResult]) -> Table:
    rows: list[list[Cell]] = [
        [
            result.contender.name,
            f"{layer.layer} {layer.kind}",
            " > ".join(f"{energy:.1f}" for energy in layer.energies) or NOTHING,
            ", ".join(f"{share:.1%}" for share in layer.falls) or NOTHING,
            shown_share(layer.promised, 1),
            NOTHING if layer.smallest_eigenvalue is None else f"{layer.smallest_eigenvalue:.3f}",
        ]
        for result in results
        for layer in result.probes
    ]
    columns = (
        "model",
        "layer",
        "mean energy, step by step",
        "tokens whose energy falls",
        "falls where it must",
        "least eigenvalue of P",
    )
    return Table("Layers after training, on validation tokens", columns, rows)


# --- when a run passes ------------------------------------------------------------------------------


def reasons_to_fail(results: Sequence[ModelResult], bigram: float, band: float, floor: Tensor | None) -> list[str]:
    """One sentence for each thing that is wrong; [] if the run passes.

    A run passes if every loss is finite and falls; every model needs fewer bits per token than a bigram model, but
    not fewer than mathematics allows; energies fall for every token where they must; and every model stays within the
    band of the baseline.

    Args:
        bigram: bits per token of a bigram model on the same validation windows.
        floor: the least possible bits per token of each of these windows, (W,); None for most corpora.
        band: how many times the bits of the best baseline a model may need.
    """
    reasons = []
    for result in results:
        name, training = result.contender.name, result.training
        if training.diverged_at is not None:
            at = f", first in {training.where}" if training.where else ""
            reasons.append(f"{name} diverged at step {training.diverged_at}: a value is not finite{at}")
        elif result.bits is None:
            reasons.append(f"{name} diverged at its last step: its validation loss is not finite")
        else:
            reasons += _reasons_of_one(result, result.bits, bigram, floor)
    for result in results:
        best = _best_baseline(result, results)
        if result.bits is not None and best is not None and result.bits > band * best:
            reasons.append(
                f"{result.contender.name} needs {result.bits:.3f} bits per token, more than {band:g} times the"
                f" {best:.3f} of the best baseline"
            )
    return reasons


def _best_baseline(result: ModelResult, results: Sequence[ModelResult]) -> float | None:
    """The fewest bits of a baseline with this model's positions, or of any baseline if none has these.

    How soon a model learns to look at its neighbours depends on its positions, which are not under comparison.
    """
    if result.contender.baseline:
        return None
    finished = [(e.contender.model.block.attention.position, e.bits) for e in results if e.contender.baseline]
    bits = [(position, b) for position, b in finished if b is not None]
    alike = [b for position, b in bits if position == result.contender.model.block.attention.position]
    return min(alike or [b for _, b in bits], default=None)


def _reasons_of_one(result: ModelResult, bits: float, bigram: float, floor: Tensor | None) -> list[str]:
    name, losses = result.contender.name, result.training.bits
    reasons = []
    tenth = math.ceil(len(losses) / 10)
    first, last = (math.fsum(part) / tenth for part in (losses[:tenth], losses[-tenth:]))
    if len(losses) > 1 and not last < first:
        reasons.append(f"the loss of {name} does not fall: {first:.3f} bits per token at first, {last:.3f} at last")
    if not bits < bigram:
        reasons.append(
            f"{name} needs {bits:.3f} bits per token, not fewer than the {bigram:.3f} of a bigram model; it may need"
            " more --steps"
        )
    if floor is not None and result.validation is not None:
        above = result.validation - floor  # (W,); its expected mean is never negative, but that of a sample may be
        error = float(above.std(correction=1)) / math.sqrt(len(above)) if len(above) > 1 else 0.0
        if float(above.mean()) < -4 * error:
            reasons.append(
                f"{name} needs {bits:.3f} bits per token, fewer than the floor of {float(floor.mean()):.3f}:"
                " something leaks"
            )
    reasons += [
        f"{name}: the energy of the {layer.kind} in layer {layer.layer} rises where it must fall, for"
        f" {1 - layer.promised:.2%} of the tokens"
        for layer in result.probes
        if layer.promised is not None and layer.promised < 1
    ]
    return reasons
