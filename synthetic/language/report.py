"""The result of a language study: the file's payload and the tables that a person reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from cemverify.results import Cell, Table
from synthetic.corpora.chains import Rate
from synthetic.corpora.corpus import Corpus
from synthetic.corpora.yardsticks import Yardsticks
from synthetic.language.entries import Entry
from synthetic.language.presets import Study
from synthetic.language.verdict import reasons_to_fail


@dataclass(frozen=True)
class Ground:
    """What the models are measured on and against.

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


def payload(study: Study, ground: Ground, entries: Sequence[Entry]) -> dict[str, Any]:
    """What the result file holds beside its tables."""
    corpus, y = ground.corpus, ground.yardsticks
    reasons = reasons_to_fail(entries, y.bigram, study.band, ground.floor)
    per_byte = {name: bits * ground.per_byte for name, bits in asdict(y).items()} | dict(corpus.validation.compressed)
    return {
        "corpus": {
            **corpus.describe(),
            "train": _part(corpus, "train"),
            "validation": {**_part(corpus, "validation"), "scored_tokens": ground.windows[:, 1:].numel()},
            "bits_per_byte": per_byte,
            "floor_bits_per_byte": None if ground.floor is None else float(ground.floor.mean()) * ground.per_byte,
            "entropy_rate": None if ground.rate is None else asdict(ground.rate),
        },
        "peak_flops_per_second": ground.peak_flops,
        "compiled": ground.compiled,
        "models": [_model(entry, ground) for entry in entries],
        "verdict": {"pass": not reasons, "reasons": reasons, "band": study.band, "why_band": study.why_band},
    }


def tables(study: Study, ground: Ground, entries: Sequence[Entry]) -> list[Table]:
    """What a person reads: the models, the yardsticks, and the layers if any has an energy."""
    found = [_models_table(study, ground, entries), _yardsticks_table(ground)]
    if any(entry.probes for entry in entries):
        found.append(_layers_table(entries))
    return found


def utilisation(entry: Entry, ground: Ground) -> float:
    """The share of the measured peak that the matrix products of training reach (MFU)."""
    reached = entry.cost.training * entry.training.tokens_per_second
    return reached / (ground.peak_flops * ground.processes)


def _part(corpus: Corpus, name: str) -> dict[str, Any]:
    part = corpus.train if name == "train" else corpus.validation
    return {"tokens": len(part.tokens), "bytes": part.bytes, "documents": part.documents}


def _model(entry: Entry, ground: Ground) -> Mapping[str, Any]:
    bits = entry.bits
    return {
        "name": entry.contender.name,
        "config": asdict(entry.contender.model),
        "parameters": entry.parameters,
        "flops_per_token": asdict(entry.cost),
        "tokens_per_second": entry.training.tokens_per_second,
        "utilisation": utilisation(entry, ground),
        "peak_bytes": entry.peak_bytes,
        "batches_digest": entry.training.batches,
        "training_bits_per_token": list(entry.training.bits),
        "diverged_at": entry.training.diverged_at,
        "diverged_where": entry.training.where,
        "validation_bits_per_byte": None if bits is None else bits * ground.per_byte,
        "validation_standard_error": None if entry.standard_error is None else entry.standard_error * ground.per_byte,
        "layers": [layer.record() for layer in entry.probes],
    }


def _models_table(study: Study, ground: Ground, entries: Sequence[Entry]) -> Table:
    recipe, token, unit = study.recipe, ground.corpus.token, ground.corpus.unit
    title = (
        f"Models after {recipe.steps} steps of {recipe.batch} x {recipe.context} {token}s, the same batches for all,"
        f" one seed, {recipe.precision}{', compiled' if ground.compiled else ''} (FLOPs: matrix products, causal"
        f" attention as if dense; MFU: of"
        f" {ground.peak_flops / 1e9:,.0f} GFLOP/s measured; ± over validation windows, not seeds)"
    )
    columns = [
        "model",
        "parameters",
        f"MFLOPs/{token}",
        f"training MFLOPs/{token}",
        f"{token}s/s",
        "MFU",
        "peak memory",
        f"validation bits/{unit}",
        "minus bigram",
        "minus unigram",
    ]
    if ground.floor is not None:
        columns.append("above floor")
    return Table(title, columns, [_models_row(entry, ground, len(columns)) for entry in entries])


def _models_row(entry: Entry, ground: Ground, width: int) -> list[Cell]:
    known: list[Cell] = [
        entry.contender.name,
        f"{entry.parameters:,}",
        f"{entry.cost.forward / 1e6:.2f}",
        f"{entry.cost.training / 1e6:.2f}",
        _unless_nan(entry.training.tokens_per_second, ",.0f"),
        _unless_nan(utilisation(entry, ground), ".0%"),
        f"{entry.peak_bytes / 1e6:,.0f} MB",
    ]
    if entry.bits is None or entry.validation is None:
        at = entry.training.diverged_at
        said = "diverged at its last step" if at is None else f"diverged at step {at}"
        return [*known, said, *["-"] * (width - len(known) - 1)]
    bits, factor = entry.bits, ground.per_byte
    error = "" if entry.standard_error is None else f" ± {entry.standard_error * factor:.3f}"
    row: list[Cell] = [
        *known,
        f"{bits * factor:.3f}{error}",
        f"{(bits - ground.yardsticks.bigram) * factor:+.3f}",
        f"{(bits - ground.yardsticks.unigram) * factor:+.3f}",
    ]
    if ground.floor is not None:
        row.append(f"{float((entry.validation - ground.floor).mean()) * factor:+.4f}")
    return row


def _unless_nan(value: float, style: str) -> str:
    """A speed; a run that was finished before has none."""
    return "-" if math.isnan(value) else f"{value:{style}}"


def _yardsticks_table(ground: Ground) -> Table:
    corpus, unit, scored = ground.corpus, ground.corpus.unit, ground.windows[:, 1:].numel()
    train, validation = corpus.train, corpus.validation
    title = (
        f"Yardsticks of the {corpus.name}: {train.bytes:,} {unit}s in {train.documents:,} document(s) to learn from,"
        f" {validation.bytes:,} {unit}s in {validation.documents:,} other(s) to validate on"
    )
    models = f"the {scored:,} {corpus.token}s that the models predict"
    rows: list[list[Cell]] = [
        ["uniform", f"{ground.yardsticks.uniform * ground.per_byte:.3f}", "any"],
        ["unigram", f"{ground.yardsticks.unigram * ground.per_byte:.3f}", models],
        ["bigram", f"{ground.yardsticks.bigram * ground.per_byte:.3f}", models],
    ]
    rows += [
        [name, f"{bits:.3f}", "all of validation, untrained"] for name, bits in corpus.validation.compressed.items()
    ]
    if ground.floor is not None:
        rows.append(["floor, exact", f"{float(ground.floor.mean()):.4f}", models])
    if ground.rate is not None:
        exact = ground.rate.low == ground.rate.high
        interval = "" if exact else f" [{ground.rate.low:.4f}, {ground.rate.high:.4f}]"
        over = "the source, in closed form" if exact else "the source, estimated, 95 % interval"
        rows.append(["entropy rate", f"{ground.rate.bits:.4f}{interval}", over])
    elif ground.floor is not None:
        rows.append(["entropy rate", "-", "the source; its validation part is too short to estimate it"])
    return Table(title, ("yardstick", f"bits/{unit}", f"on which {corpus.token}s"), rows)


def _layers_table(entries: Sequence[Entry]) -> Table:
    rows: list[list[Cell]] = []
    for entry in entries:
        for layer in entry.probes:
            if not layer.energies and layer.entropy is None:
                continue
            rows.append(
                [
                    entry.contender.name,
                    f"{layer.layer} {layer.kind}",
                    " > ".join(f"{energy:.1f}" for energy in layer.energies) or "-",
                    ", ".join(f"{share:.1%}" for share in layer.falls) or "-",
                    "-" if layer.promised is None else f"{layer.promised:.1%}",
                    "-" if layer.smallest_eigenvalue is None else f"{layer.smallest_eigenvalue:.3f}",
                    "-" if layer.entropy is None else f"{layer.entropy:.2f}",
                ]
            )
    columns = (
        "model",
        "layer",
        "mean energy, step by step",
        "tokens whose energy falls",
        "falls where it must",
        "least eigenvalue of P",
        "attention entropy (bits)",
    )
    return Table("Layers after training, on validation tokens", columns, rows)
