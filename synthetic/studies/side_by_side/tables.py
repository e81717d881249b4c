"""Language models side by side: `python -m synthetic language train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from synthetic.figures.sheets import Column, Entry, Group, Quantity, Sheet


def headline(content: Mapping[str, Any]) -> str:
    """A sentence on the model with the fewest bits per byte, or that there is none."""
    scored = [m for m in content["models"] if m["validation_bits_per_byte"] is not None]
    if not scored:
        return "every language model diverged"
    best = min(scored, key=lambda m: float(m["validation_bits_per_byte"]))
    return f"{best['name']} reaches {best['validation_bits_per_byte']:.3f} bits per byte, the least of {len(scored)}"


def models(content: Mapping[str, Any]) -> Sheet:
    """Every model: its cost, its speed, and its bits beside those of simpler models and of the source."""
    corpus, recipe = content["corpus"], content["made_by"]["configuration"]["recipe"]
    unit, references, floor = corpus["unit"], corpus["bits_per_byte"], corpus.get("floor_bits_per_byte")
    token = unit if corpus["train"]["tokens"] == corpus["train"]["bytes"] else "token"
    against = [
        ("minus bigram", references.get("bigram")),
        ("minus unigram", references.get("unigram")),
        ("above floor", floor),
    ]
    against = [(name, bits) for name, bits in against if bits is not None]
    rows: list[list[Entry]] = []
    for model in content["models"]:
        bits, at = model["validation_bits_per_byte"], model["diverged_at"]
        diverged = "diverged at its last step" if at is None else f"diverged at step {at}"
        peak = model["peak_bytes"]
        rows.append(
            [
                *(model["name"], model["parameters"]),
                *(Quantity(model["flops_per_token"][name] / 1e6) for name in ("forward", "training")),
                *(Quantity(model["tokens_per_second"]), Quantity(model["utilisation"])),
                Quantity(None if peak is None else peak / 1e6),
                Quantity(bits, model["validation_standard_error"], note=diverged if bits is None else ""),
                *(Quantity(None if bits is None else bits - other) for _, other in against),
            ]
        )
    title = (
        f"Models after {recipe['steps']} steps of {recipe['batch']} x {recipe['context']} {token}s, the same batches"
        f" for all, one seed, {recipe['precision']}{', compiled' if content.get('compiled') else ''} (FLOPs: matrix"
        f" products, causal attention as if dense; MFU: of {content['peak_flops_per_second'] / 1e9:,.0f} GFLOP/s"
        " measured; ± over validation windows, not seeds)"
    )
    columns = (
        *(Column("model"), Column("parameters")),
        *(Column(f"{kind}MFLOPs/{token}") for kind in ("", "training ")),
        *(Column(f"{token}s/s"), Column("MFU", "%", 2), Column("peak memory", "MB")),
        *(Column(f"validation bits/{unit}", digits=4), *(Column(name) for name, _ in against)),
    )
    return Sheet(title, columns, [Group("models", rows)])


def sheets(content: Mapping[str, Any], _fold: bool) -> list[Sheet]:
    """The models, beside the yardsticks."""
    sheet, corpus = models(content), content["corpus"]
    bits = [column.name.startswith("validation bits") for column in sheet.columns]

    def line(name: str, value: float) -> list[Entry]:
        return [name, *(Quantity(value) if here else None for here in bits[1:])]

    references = [line(name, value) for name, value in corpus["bits_per_byte"].items()]
    floor = corpus.get("floor_bits_per_byte")
    groups = [*sheet.groups, Group("yardsticks", references)]
    if floor is not None:
        groups.append(Group("floor", [line("floor", floor)]))
    told = ["No model is marked: one seed leaves nothing to test in pairs.", *content.get("notes", ())]
    return [replace(sheet, groups=groups, legend=" ".join(told))]
