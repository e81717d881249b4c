"""Mistakes of one token in right implementations, made by a program that knows nothing of the edits that mend them.

Python's own tokens are exchanged: a variable for another one of the same function, an operator for another, a number
for one near it or its negative, a letter of an einsum or the key of a weight for another of the file.
"""

from __future__ import annotations

import ast
import io
import keyword
import random
import re
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Right implementations: the file, and the library that it is written in.
BASES = {
    "examples/attention_numpy.py": "NumPy",
    "examples/loops_numpy.py": "NumPy",
    "examples/einsum_torch.py": "torch",
    "examples/sdpa_torch.py": "torch",
    "examples/attention_module.py": "torch, an nn.Module",
    "examples/mlp_module.py": "torch, an nn.Module",
    "examples/energy_layer.py": "torch, an energy layer",
    "examples/energy_layers/hopfield_heads.py": "torch, an energy layer",
    "examples/energy_layers/cem_mlp.py": "torch, an energy layer",
    "examples/energy_layers/energy_transformer.py": "torch, an energy layer",
    "examples/energy_layers/nrgpt_step.py": "torch, an energy layer",
    "examples/energies_jax.py": "JAX",
    "examples/energy_layers/hopfield_jax.py": "JAX, an energy layer",
}

_OPERATORS = (("+", "-"), ("*", "/", "+"), ("<", "<=", ">", ">="), ("==", "!="), ("@", "*"), ("+=", "-="))


@dataclass(frozen=True)
class Mistake:
    """One token of a file exchanged."""

    base: str  # the file
    line: int  # of the token, from 1
    before: str
    after: str
    text: str  # the file's text with the mistake


def mistakes(base: str, number: int, seed: int) -> list[Mistake]:
    """So many different mistakes in a file, drawn by a seed; fewer if it has no more."""
    text = (ROOT / base).read_text()
    right = ast.dump(ast.parse(text))
    drawn = list(_exchanged(base, text))
    random.Random(f"{seed}/{base}").shuffle(drawn)  # noqa: S311
    chosen: list[Mistake] = []
    for mistake in drawn:
        if len(chosen) == number:
            break
        with suppress(SyntaxError):
            if ast.dump(ast.parse(mistake.text)) != right:
                chosen.append(mistake)
    return chosen


def _exchanged(base: str, text: str) -> Iterator[Mistake]:
    """Every exchange of a token inside a function; some are no Python any more."""
    lines = text.splitlines(keepends=True)
    inside = {
        line: function
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef)
        for line in range(function.body[0].lineno, (function.end_lineno or 0) + 1)
    }
    keys = sorted(set(re.findall(r'\["([A-Za-z_]+)"\]', text)))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        row, column = token.start
        function = inside.get(row)
        if function is None or function.name == "refuse" or token.string.startswith(('"""', "'''")):
            continue
        line = lines[row - 1]
        for other in _replacements(token, function, keys):
            changed = line[:column] + other + line[column + len(token.string) :]
            yield Mistake(base, row, token.string, other, "".join([*lines[: row - 1], changed, *lines[row:]]))


def _replacements(token: tokenize.TokenInfo, function: ast.FunctionDef, keys: Sequence[str]) -> Iterator[str]:
    """What may stand in the token's place by mistake."""
    word = token.string
    if token.type == tokenize.NAME and not keyword.iskeyword(word):
        names = sorted(_variables(function))
        if word in names and token.line[: token.start[1]].rstrip()[-1:] != ".":
            yield from (name for name in names if name != word)
    elif token.type == tokenize.NUMBER and re.fullmatch(r"\d+(\.\d*)?", word):
        value = float(word) if "." in word else int(word)
        yield from (repr(other) for other in (value + 1, 2 * value) if other != value)
        if value:
            yield repr(value - 1) if value > 0 else repr(value)
    elif token.type == tokenize.OP:
        yield from (other for row in _OPERATORS if word in row for other in row if other != word)
    elif token.type == tokenize.STRING:
        quote, inner = word[:1], word[1:-1]
        if "->" in inner:
            letters = sorted({letter for letter in inner if letter.isalpha()})
            for i, letter in enumerate(inner):
                if letter.isalpha():
                    yield from (f"{quote}{inner[:i]}{o}{inner[i + 1 :]}{quote}" for o in letters if o != letter)
        elif inner in keys:
            yield from (f"{quote}{key}{quote}" for key in keys if key != inner)


def _variables(function: ast.FunctionDef) -> set[str]:
    """Its arguments, and what it assigns."""
    assigned = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return assigned | {argument.arg for argument in function.args.args}
