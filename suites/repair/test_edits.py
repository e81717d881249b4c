"""Single edits of a text: they include the ones that fix usual mistakes, and leave the rest of the text alone."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from cemverify.conformance.implementations.edited import edited
from cemverify.repair.edits import KINDS, Vocabulary, edits
from suites.kit.source import ROOT

RIGHT = '''\
import numpy as np

from cemverify import implementation

SCALE = 2.0


def attention(x, h, weights, config):
    """Steps down."""
    W_Q, W_K = weights["W_Q"], weights["W_K"]  # (K, R, D)
    keys = np.einsum("krd,bjd->bkjr", W_K, h)
    for _ in range(config.steps):
        scores = SCALE * np.einsum("krd,bid,bkjr->bkij", W_Q, x, keys) / config.temperature
        if scores.size > 4:
            scores = scores - scores.max(axis=-1, keepdims=True)
        x = x + config.step_size * np.triu(scores, 1) @ keys
    return x


mine = implementation(attention=attention, arrays="numpy", not_offered=("diagonal",))
'''
WORDS = Vocabulary(("W_Q", "W_K"), {"config": ("steps", "step_size", "temperature")})

WEIGHTS = '    W_Q, W_K = weights["W_Q"], weights["W_K"]  # (K, R, D)\n'
KEYS = '    keys = np.einsum("krd,bjd->bkjr", W_K, h)\n'
STEP = "    x = x + config.step_size * np.triu(scores, 1) @ keys\n"
MISTAKES = {
    "another name that is assigned": ("        scores = SCALE", "        keys = SCALE"),
    "a name that nothing binds": ("        scores = SCALE", "        score = SCALE"),
    "another name": ("W_Q, x, keys)", "W_K, x, keys)"),
    "another weight": ('weights["W_Q"]', 'weights["W_K"]'),
    "another attribute": ("/ config.temperature", "/ config.step_size"),
    "another operator": ("x = x + config", "x = x - config"),
    "another letter": ("krd,bid,bkjr->bkij", "krd,bid,bkjr->bkji"),
    "two letters exchanged": ("bjd->bkjr", "bjd->bjkr"),
    "another axis": ("axis=-1", "axis=-2"),
    "another offset of the mask": ("np.triu(scores, 1)", "np.triu(scores, 0)"),
    "no offset of the mask": ("np.triu(scores, 1)", "np.triu(scores)"),
    "another triangle": ("np.triu", "np.tril"),
    "a sign too many": ("range(config.steps)", "range(-(config.steps))"),
    "a factor too few": ("x + config.step_size * np.triu(scores, 1) @ keys", "x + np.triu(scores, 1) @ keys"),
    "a factor too many": ("config.step_size * np.triu", "2 * config.step_size * np.triu"),
    "another constant of the module": ("SCALE = 2.0", "SCALE = 1.0"),
    "another comparison": ("scores.size > 4", "scores.size < 4"),
    "the state forgotten": ("x = x + config.step_size", "x = config.step_size"),
    "arguments exchanged": ("W_Q, x, keys)", "x, W_Q, keys)"),
    "a name of a loop that is one of its values": ("for _ in range", "for x in range"),
    "a product of elements": ("1) @ keys", "1) * keys"),
    "a quotient in place of a sum": ("x = x + config", "x = x / config"),
    "a line after its neighbour": (f"{WEIGHTS}{KEYS}", f"{KEYS}{WEIGHTS}"),
    "a line out of its loop": (f"    {STEP}", STEP),
}


def normal(text: str) -> str:
    """The program without its layout."""
    return ast.dump(ast.parse(text))


def reached(text: str, *words: Any) -> set[str]:
    """The programs that single edits reach."""
    return {normal(edit.applied(text)) for edit in edits(text, *words)}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_usual_mistake_is_undone_by_one_of_the_edits(mistake: str) -> None:
    assert normal(RIGHT) in reached(edited(RIGHT, MISTAKES[mistake]), WORDS)


def test_an_edit_is_python_and_changes_what_it_says_and_neither_declarations_imports_nor_docstrings() -> None:
    every_edit, declared = edits(RIGHT, WORDS), RIGHT.splitlines()[-1]
    for edit in every_edit:
        text = edit.applied(RIGHT)
        ast.parse(text)
        assert text.splitlines()[-1] == declared
        assert text.startswith("import numpy as np\n\nfrom cemverify import implementation\n")
        assert '"""Steps down."""' in text
        if edit.kind != "line":
            assert text.startswith("".join(RIGHT.splitlines(keepends=True)[: edit.line - 1]))
            assert edit.before in RIGHT
            assert edit.after in text
            assert len(text) == len(RIGHT) - len(edit.before) + len(edit.after)
    assert len({edit.changes for edit in every_edit}) == len(every_edit)
    assert [KINDS.index(edit.kind) for edit in every_edit] == sorted(KINDS.index(edit.kind) for edit in every_edit)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("self.down(", "x.down("),
        ("for p in (self", "for x in (self"),
        ("keys, scale =", "x, scale ="),
        ("return -self", "return +self"),
        ("keys, scale =", "scale, keys ="),
    ],
)
def test_mistakes_in_a_method_are_undone(right: str, wrong: str) -> None:
    text = """\
class Layer:
    def forward(self, x):
        keys, scale = (p(x) for p in (self.k, self.v))
        return -self.down(keys * scale)
"""
    assert normal(text) in reached(edited(text, (right, wrong)))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("k.repeat(1, G, 1, 1)", "torch.repeat_interleave(k, G, -3)"),
        ("np.tile(k, (1, G, 1))", "np.repeat(k, G, -2)"),
        ("k.repeat_interleave(G, dim=-2)", "torch.tile(k, [G, 1])"),
        ("np.repeat(k, G, axis=1)", "np.tile(k, [1, G, 1])"),
        ("k.reshape(B, K, J, -1)", "k.reshape(B, J, K, -1).swapaxes(1, 2)"),
        ("k.view(B, J, K, R).transpose(1, 2)", "k.view(B, K, J, R)"),
        ("k.reshape(B, J, -1)", "k.swapaxes(1, 2).reshape(B, J, -1)"),
        ("k.permute(0, 3, 2, 1)", "k.permute(0, 2, 1, 3)"),
        ("(k[..., ::2], k[..., 1::2])", "(k[..., : k.shape[-1] // 2], k[..., k.shape[-1] // 2 :])"),
        ("(k[..., :R // 2], k[..., R // 2:])", "(k[..., ::2], k[..., 1::2])"),
        ("F.linear(k, W.data.T)", "F.linear(k, W.T)"),
        ("nn.Parameter(W.detach().clone())", "W"),
        ("k.masked_fill(later, -5e4)", 'k.masked_fill(later, float("-inf"))'),
        ("k.masked_fill(later, torch.finfo(k.dtype).min)", 'k.masked_fill(later, float("-inf"))'),
        ("k + 1e-6", "k + 0.0"),
        ("torch.eye(3) + A", "torch.eye(3) + (ETA * A)"),
        ("torch.rand() + k", "torch.rand() - k"),
        ("k * W - A.sum(-1) / (G * B)", "(k * W - A.sum(-1)) / (G * B)"),
        ("(k - W) / A", "k - W / A"),
        ("-(k - W**2) @ A", "-(k - W**2 @ A)"),
        ("self.down(self.up(k))", "self.up(self.up(k))"),  # one sub-module for another
    ],
)
def test_a_layout_a_tie_a_scale_or_a_constant_is_mended(wrong: str, right: str) -> None:
    text = "import numpy as np\nimport torch\n\nETA = 0.5\n\n\ndef f(k, W, A, G, B, K, J, R, later):\n    return {}\n"
    assert normal(text.format(right)) in reached(text.format(wrong))


def test_pairs_that_are_stacked_are_halves_that_are_joined() -> None:
    text = """\
import torch


def f(z, cos, sin):
    a, b = z[..., ::2], z[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
"""
    halves = text.replace("::2]", ": z.shape[-1] // 2]", 1).replace("1::2]", "z.shape[-1] // 2 :]")
    halves = halves.replace("stack", "cat").replace(".flatten(-2)", "")
    pairs = text.replace("flatten(-2)", "reshape(z.shape)")
    assert normal(halves) in reached(text)
    assert normal(pairs) in reached(halves)


def test_only_statements_with_one_of_the_lines_are_edited() -> None:
    line = 1 + RIGHT.splitlines().index('    keys = np.einsum("krd,bjd->bkjr", W_K, h)')
    assert {edit.line for edit in edits(RIGHT, WORDS, {line}) if edit.kind not in ("line", "constant")} == {line}


def test_line_ends_and_letters_of_any_alphabet_stay() -> None:
    text = "def f(x, h):\r\n    y = x + h  # η, größer\r\n    return y\r\n"
    every_edit = edits(text)
    assert any("y = x - h" in edit.applied(text) for edit in every_edit)
    for edit in every_edit:
        after = edit.applied(text)
        assert after.count("\r\n") == after.count("\n")
        assert "größer" in after or edit.kind == "line"


@pytest.mark.parametrize("example", ["einsum_torch.py", "loops_numpy.py", "attention_module.py", "energies_jax.py"])
def test_edits_of_a_whole_example_are_python(example: str) -> None:
    text = (ROOT / "examples" / example).read_text()
    every_edit = edits(text, WORDS)
    assert len(every_edit) > 300
    for edit in every_edit[::97]:
        ast.parse(edit.applied(text))
