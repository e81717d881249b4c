"""The rows of the study: the recursion, the controls that a gain must beat, and what is beyond the paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from synthetic.studies.engine.designs import Option, Row, as_costly
from synthetic.studies.engine.plan import Setting
from synthetic.training.frames import TINY_SIZE
from synthetic.training.recipe import Base

# c of §18c: the second step is this much colder than the first.
COOLING = 0.5
# Far from any seed that judges or tunes.
OTHER_WEIGHTS = 1_000_000

AGAIN, WIDER, TWICE, LEARNED_ONE, LLAMA = "T = 1 again", "T = 1, wider", "T = 1, twice", "T = 1, eta learned", "Llama"


def one(depth: int = 1) -> str:
    """The name of T = 1, or of T = 1 with a step so many times as long."""
    return "T = 1" if depth == 1 else f"T = 1, eta {depth}"


def several(depth: int) -> str:
    """The name of T = depth with steps of 1/T."""
    return f"T = {depth}, eta 1/{depth}"


def rows(setting: Setting) -> tuple[Row, ...]:
    """All rows, those first without which nothing can be said."""
    return (*usual(setting), *beyond(setting))


def usual(setting: Setting) -> tuple[Row, ...]:
    """The rows of every study: what the paper has, and the controls."""
    depth, design = setting.depth, setting.design
    plain, deep = design(), design(("steps", depth), ("step_size", 1 / depth))
    wider = as_costly(plain, deep, setting.context)
    return (
        Row(one(), plain, why="the model without recursion"),
        Row(one(depth), design(("step_size", float(depth))), why="the longer update without recursion"),
        Row(several(depth), deep, why="the recursion"),
        Row(AGAIN, plain, OTHER_WEIGHTS, why="T = 1 with other first weights, tuned anew: should come out equal"),
        Row(WIDER, wider, why=f"as many training FLOPs a token as T = {depth}"),
        Row(TWICE, replace(plain, times=depth), why="plain reuse: the memory is read anew"),
        Row(f"T = {depth}, eta 1", design(("steps", depth)), why="the paper's step size, as far as it says one"),
        Row(
            f"T = {depth}, eta learned",
            design(("steps", depth), ("step_size", 1 / depth), ("step", "learned")),
            why=f"one step size a layer, learned from 1/{depth}",
        ),
        Row(LEARNED_ONE, design(("step", "learned")), why="one step size a layer, learned from 1"),
        Row(LLAMA, setting.llama, why="nothing replaced"),
    )


def beyond(setting: Setting) -> tuple[Row, ...]:
    """Rows of T steps that differ from one another, or are taken jointly: what the paper does not have (§18).

    All begin with steps of 1/T, as T = depth does. Those that learn what is new begin where it is nothing.
    """
    depth = setting.depth
    deep: tuple[Option, ...] = (("steps", depth), ("step_size", 1 / depth))
    learned: tuple[Option, ...] = (("step", "learned"), ("own_steps", True))
    momentum: tuple[Option, ...] = (("learn_momentum", True),)
    own: tuple[Option, ...] = (("own_preconditioners", True),)
    cooled: tuple[Option, ...] = () if setting.replaced == "mlp" else (("cooling", COOLING),)

    def row(name: str, why: str, *layer: Option, T: int = depth, rounds: int = 1) -> Row:
        return Row(f"T = {T}, {name}", replace(setting.design(*layer), rounds=rounds), why=why, beyond=True)

    rows_ = [
        row("momentum", "heavy ball, mu learned from 0", *deep, *momentum),
        row("P per step", "each step learns a preconditioner of its own", *deep, *own),
        row("eta per step", f"each step learns a size of its own, from 1/{depth}", *deep, *learned),
    ]
    if cooled:
        rows_.append(row("temperature per step", f"step t has tau {COOLING}^t", *deep, *cooled))
    rows_.append(row("all of these", "all that is above", *deep, *momentum, *own, *learned, *cooled))
    if setting.replaced == "full":
        why = f"attention and MLP take {depth} turns on the sum of their energies, memories fixed"
        rows_.append(row("joint", why, ("step_size", 1 / depth), rounds=depth))
    if setting.replaced == "mlp":
        rows_.append(row("signs moved", "the signs of gates stand inside sigma (App. B)", ("signs", "moved"), T=1))
    for norm in ("scalar", "folded"):
        rows_.append(row(f"{norm} norm", f"the norm inside is {norm}", *deep, ("norm", norm)))
        rows_.append(row(f"{norm} norm", "its control", ("norm", norm), T=1))
    return (*rows_, *_scaled(setting))


def _scaled(setting: Setting) -> Iterator[Row]:
    """T = 1 and T = depth by maximal-update scaling from "tiny"; none at "tiny", where nothing would be scaled."""
    base = Base(TINY_SIZE.dim, TINY_SIZE.layers, TINY_SIZE.heads)
    size = setting.frame.size
    if (size.dim, size.layers, size.heads) == (base.dim, base.layers, base.heads):
        return
    eta, tau = base.step_share(size.layers), base.temperature(size.dim // size.heads)
    for T in (1, setting.depth):
        design = setting.design(("steps", T), ("step_size", eta / T), ("temperature", tau))
        design = replace(design, head_std=base.head_std(size.dim))
        why = f"maximal-update scaling from D = {base.dim}, L = {base.layers}"
        yield Row(f"T = {T}, mu-scaled", design, why=why, beyond=True, base=base)
