"""Finds the wrong part of a layer, of its cache or stated energy, or of a block."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from cemverify.cem.models import BlockConfig
from cemverify.conformance.asking.calls import Caller, prefilled
from cemverify.conformance.implementations.faults import Fault
from cemverify.conformance.implementations.features import PREFILL
from cemverify.conformance.judging.localisation.attention import wrong_in_attention
from cemverify.conformance.judging.localisation.bare import in_float32
from cemverify.conformance.judging.localisation.bench import Bench, Half, Undecided, WrongPart, only_rows, two_answers
from cemverify.conformance.judging.localisation.mixing import mixing_tokens
from cemverify.conformance.judging.localisation.mlp import wrong_in_mlp
from cemverify.conformance.judging.localisation.options import needed_options, wrong_in_options
from cemverify.conformance.judging.verdicts import HALVES
from cemverify.conformance.oracle.budgets import energy_budget, output_budget
from cemverify.conformance.oracle.golden import energies_at, golden, norm_into
from cemverify.conformance.questions.cases import Case


def localise(caller: Caller, case: Case) -> WrongPart | None:
    """The part of the layer that is wrong, if the case or dense cases of its kind show it; otherwise None.

    The case is asked again before and after all else, because no experiment can explain answers that change.

    Args:
        case: one that was found to violate a property.
    """
    bench = Bench(caller)
    try:
        if case.layer == "attention" and bench.decodes_only:
            case = replace(case, x=case.h)
        case = bench.rounded(case)
        first = bench.got(case)
        part = _asked_again(bench, case, first) or (_block if case.layer == "block" else _layer)(bench, case)
        return part and (_asked_again(bench, case, first) or part)
    except Undecided:
        return None


def _asked_again(bench: Bench, case: Case, first: Tensor | None) -> WrongPart | None:
    now = None if first is None else bench.got(case)
    return None if first is None or now is None else two_answers(first, now, bench.tolerance(case))


def _layer(bench: Bench, case: Case) -> WrongPart | None:
    if not bench.wrong(case):
        wrong = next((dense for dense in bench.dense(case.layer_config) if bench.wrong(dense)), None)
        if wrong is None:
            return _beside(bench, case)
        case = wrong
    if (precision := in_float32(bench, case)) is not None:
        return precision
    if (mixing := mixing_tokens(bench, case)) is not None:
        return mixing
    case, needed = needed_options(bench, case)
    case = bench.rounded(case)
    if needed:
        return wrong_in_options(bench, case, needed)
    rows = case.x.shape[0]
    if rows > 1 and not any(bench.wrong(only_rows(case, [i])) for i in range(rows)):
        return WrongPart("batch rows", "each batch row alone is right, but together they are wrong")
    return wrong_in_attention(bench, case) if case.layer == "attention" else wrong_in_mlp(bench, case)


def _beside(bench: Bench, case: Case) -> WrongPart | None:
    """For a correct layer: whether the cache or the stated energy is wrong."""
    for candidate in (case, *bench.dense(case.layer_config, batch=2)):
        try:
            if how := _wrong_from_a_cache(bench, candidate):
                return WrongPart("cache", f"the whole row at once is right, but {how} is wrong")
            if _stated_energy_is_wrong(bench, candidate):
                return WrongPart("stated energy", "the update is right, but the energy is wrong")
        except Fault:
            continue
    return None


def _wrong_from_a_cache(bench: Bench, case: Case) -> str | None:
    """What is wrong with decoding a row that is right as a whole."""
    row, functions = replace(case, x=case.h), bench.caller.functions
    if case.layer != "attention" or not {"decode", PREFILL} & functions.keys() or bench.wrong(row):
        return None
    expected, budget = golden(row), output_budget(row, bench.caller.dtype)

    def wrong(got: Tensor) -> bool:
        return bool(((got - expected).abs() > budget).any())

    if "decode" in functions and wrong(bench.caller.decoded(row)):
        return "decoding token by token"
    if PREFILL in functions and row.h.shape[1] > 2 and wrong(prefilled(bench.caller, [row], [1])[0]):
        return "reading several tokens that follow a cache"
    return None


def _stated_energy_is_wrong(bench: Bench, case: Case) -> bool:
    if f"{case.layer}_energy" not in bench.caller.functions or not bool(bench.tolerance(case).isfinite().all()):
        return False
    off = (bench.caller.energy(case) - energies_at(case, case.x)).abs()
    return bool((off > energy_budget(case, case.x, bench.caller.dtype)).any())


def _block(bench: Bench, case: Case) -> WrongPart | None:
    """For a block: either one of its two layers is wrong by itself, or their combination is."""
    assert isinstance(case.config, BlockConfig)
    if not bench.wrong(case):
        return None
    attention = case.part("attention")
    attention = replace(attention, h=norm_into(attention, case.h))
    middle = golden(attention)
    mlp = case.part("mlp")
    mlp = replace(mlp, x=middle, h=norm_into(mlp, middle))
    alone = bench.offers("attention", "mlp", "start")
    for layer in (attention, mlp) if alone else ():
        if bench.wrong(layer):
            wrong = _layer(bench, layer)
            return wrong and WrongPart(wrong.name, f"the block's {layer.layer} alone is wrong too: {wrong.because}")
    halves = [(half := Half(bench.caller, config=case.config), half.rounded(part)) for part in (attention, mlp)]
    found = [one for half, part in halves for one in ((half, c) for c in (part, *half.dense(part.layer_config)))
             if half.wrong(one[1])]  # fmt: skip
    layers = {part.layer: (half, part) for half, part in reversed(found)}
    if len(layers) == 1 or (layers and not alone):
        name = min(layers)
        because = "it is wrong where the other half has zero weights and so takes no step"
        part = _layer(*layers[name]) or WrongPart(HALVES[name], because)
        also = "; the other half is wrong, too" * (len(layers) > 1)
        return WrongPart(part.name, f"in {HALVES[name]}: {part.because}{also}")
    return WrongPart("block", "its attention and its MLP are each right for the inputs that the block gives them")
