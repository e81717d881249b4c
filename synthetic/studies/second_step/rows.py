"""The rows of the study: the recursion, the controls that it must beat, and rows beyond the paper."""

from __future__ import annotations

from dataclasses import dataclass, replace

from synthetic.studies.engine.designs import Option, Row, as_costly
from synthetic.studies.engine.plan import Setting

# c of §18c: the temperature of the second step over that of the first.
COOLING = 0.5
# Far from any seed that judges or tunes.
OTHER_WEIGHTS = 1_000_000


@dataclass(frozen=True)
class Key:
    """Identifies a row."""

    kind: str  # how it differs from the plain row, in a word
    steps: int = 1  # T


PLAIN, LONGER, AGAIN, WIDER, TWICE, LLAMA = map(Key, ("plain", "longer", "again", "wider", "twice", "llama"))
UNIT, LEARNED = "unit", "learned"  # kinds: steps of size 1, and of a size that is learned


def several(depth: int) -> Key:
    """The key of T = depth with steps of 1/T, which together are as long as the single step of `PLAIN`."""
    return replace(PLAIN, steps=depth)


def rows(setting: Setting) -> tuple[Row, ...]:
    """All rows, the indispensable ones first."""
    return (*usual(setting), *beyond(setting))


def usual(setting: Setting) -> tuple[Row, ...]:
    """The rows of every study: the paper's, and the controls."""
    depth, plain = setting.depth, setting.design()
    steps, short, learned = ("steps", depth), ("step_size", 1 / depth), ("step", "learned")

    def row(name: str, why: str, key: Key, *layer: Option) -> Row:
        return Row(name, setting.design(*layer), why=why, key=key)

    deep = row(f"T = {depth}, eta 1/{depth}", "the recursion", several(depth), steps, short)
    wider, why = as_costly(plain, deep.design, setting.context), f"as many training FLOPs per token as T = {depth}"
    again = row("T = 1 again", "T = 1 with other first weights, tuned anew: should come out equal", AGAIN)
    twice = row("T = 1, twice", "the layer applied twice: its memory is read anew", TWICE)
    unit, own, size = Key(UNIT, depth), Key(LEARNED, depth), "one learned step size per layer, at first 1"
    return (
        row("T = 1", "the model without recursion", PLAIN),
        row(f"T = 1, eta {depth}", "the longer update without recursion", LONGER, ("step_size", float(depth))),
        deep,
        replace(again, weights=OTHER_WEIGHTS),
        Row("T = 1, wider", wider, why=why, key=WIDER),
        replace(twice, design=replace(plain, times=depth)),
        row(f"T = {depth}, eta 1", "the paper's step size, as far as it gives one", unit, steps),
        row(f"T = {depth}, eta learned", f"{size}/{depth}", own, steps, short, learned),
        row("T = 1, eta learned", size, Key(LEARNED), learned),
        Row("Llama", setting.llama, why="nothing replaced", key=LLAMA),
    )


def beyond(setting: Setting) -> tuple[Row, ...]:
    """Rows beyond the paper (§18): steps that differ from one another, joint steps, and other norms.

    All start with steps of 1/T, like T = depth. Those that learn something new start where it has no effect.
    """
    depth = setting.depth
    deep: tuple[Option, ...] = (("steps", depth), ("step_size", 1 / depth))
    learned: tuple[Option, ...] = (("step", "learned"), ("own_steps", True))
    momentum: tuple[Option, ...] = (("learn_momentum", True),)
    own: tuple[Option, ...] = (("own_preconditioners", True),)
    cooled: tuple[Option, ...] = () if setting.replaced == "mlp" else (("cooling", COOLING),)

    def row(name: str, why: str, *layer: Option, T: int = depth, rounds: int = 1) -> Row:
        design = replace(setting.design(*layer), rounds=rounds)
        return Row(f"T = {T}, {name}", design, why=why, beyond=True, key=Key(name, T))

    rows_ = [
        row("momentum", "heavy ball, mu learned, at first 0", *deep, *momentum),
        row("P per step", "each step learns its own preconditioner", *deep, *own),
        row("eta per step", f"each step learns its own size, at first 1/{depth}", *deep, *learned),
    ]
    if cooled:
        rows_.append(row("temperature per step", f"step t has tau {COOLING}^t", *deep, *cooled))
    rows_.append(row("all of these", "momentum, and all that is per step", *deep, *momentum, *own, *learned, *cooled))
    if setting.replaced == "full":
        why = f"attention and MLP take {depth} turns on the sum of their energies, memories fixed"
        rows_.append(row("joint", why, ("step_size", 1 / depth), rounds=depth))
    if setting.replaced == "mlp":
        rows_.append(row("signs moved", "the signs of gates stand inside sigma (App. B)", ("signs", "moved"), T=1))
    for norm in ("scalar", "folded"):
        rows_.append(row(f"{norm} norm", f"the norm inside is {norm}", *deep, ("norm", norm)))
        rows_.append(row(f"{norm} norm", "its control", ("norm", norm), T=1))
    return tuple(rows_)
