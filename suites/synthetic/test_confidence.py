"""Energy as confidence: what entropy and energies tell of tokens is found where it is, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cemverify.cem.layers import CEMAttention
from cemverify.cem.models import Block
from synthetic.__main__ import main
from synthetic.studies.confidence import STUDY
from synthetic.studies.confidence.rows import ONE
from synthetic.studies.engine import told
from synthetic.studies.engine.told import BACKWARDS, LOSS, PIECES, PIECES_OF_ONE, Seen, pieces, seen
from synthetic.training.looped import LoopedModel, paired

N = 4000


def model() -> LoopedModel:
    return paired(STUDY.plan("full", 8).rows[1].design.looped, 0)


def tokens(seed: int) -> tuple[np.random.Generator, Seen]:
    """Tokens whose entropy, energies and loss are noise."""
    draw = np.random.default_rng(seed)
    return draw, Seen(
        (np.arange(N) % 64).astype(np.float64),
        draw.exponential(size=N),
        draw.normal(size=(N, 4)),
        draw.exponential(size=N),
    )


def unexplained(known: Seen) -> dict[str, float]:
    half = np.arange(N) < N // 2
    return {name: told._unexplained(x, known.loss, half) for name, x in known.known().items()}


def unseparated(own: Seen, theirs: Seen) -> dict[str, float]:
    half = np.tile(np.arange(N) < N // 2, 2)
    others = theirs.known()
    return {name: told._unseparated(x, others[name], half) for name, x in own.known().items()}


def test_a_loss_that_hangs_on_energies_is_told_by_them_alone() -> None:
    _, known = tokens(0)
    found = unexplained(replace(known, loss=known.energies[:, 1] ** 2))
    assert found["energies"] < 0.1
    assert found["both"] < 0.1
    assert found["entropy"] > 0.9


def test_a_loss_that_is_a_curve_of_the_entropy_gains_nothing_by_energies_that_are_one_too() -> None:
    draw, known = tokens(1)
    of_it = np.stack([known.entropy**2, np.sin(known.entropy)], 1) + 0.3 * draw.normal(size=(N, 2))
    loss = np.exp(-known.entropy) + 0.1 * draw.normal(size=N)
    found = unexplained(replace(known, loss=loss, energies=of_it))
    assert found["entropy"] < 0.4
    assert found["both"] > 0.95 * found["entropy"]


def test_noise_tells_nothing() -> None:
    _, known = tokens(2)
    assert min(unexplained(known).values()) > 0.95
    _, others = tokens(3)
    assert min(unseparated(known, others).values()) > 0.9


def test_text_from_elsewhere_is_told_by_what_differs_in_it() -> None:
    _, known = tokens(4)
    _, others = tokens(5)
    found = unseparated(known, replace(others, energies=others.energies + 2.0))
    assert found["energies"] < 0.1
    assert found["both"] < 0.1
    assert found["entropy"] > 0.9


def test_texts_that_are_told_apart_at_every_token_have_a_finite_ratio() -> None:
    _, known = tokens(6)
    found = unseparated(replace(known, entropy=np.zeros(N)), replace(known, entropy=np.ones(N)))
    assert found["entropy"] == 4 / N**2


def test_energies_are_those_that_each_layer_starts_with_and_how_far_its_steps_lower_them() -> None:
    exact = model().double()
    windows = torch.randint(8, (3, 17), generator=torch.Generator().manual_seed(0))
    found = seen(exact, windows)
    assert found.energies.shape == (3 * 16, 2 * 2 * len(exact.blocks))
    h = exact.embedding[windows[:, :-1]]
    block = exact.blocks[0]
    assert isinstance(block, Block)
    layer = block.attention
    assert isinstance(layer, CEMAttention)
    energy, u = layer.energy, layer.norm().into(h)
    memory = energy.remember(u)
    first = energy(u, memory)
    last = energy(layer.norm().into(layer.residual(h)[0]), memory)
    assert np.allclose(found.energies[:, 0], first.detach().flatten(), rtol=1e-10)
    assert np.allclose(found.energies[:, 1], (first - last).detach().flatten(), rtol=1e-8, atol=1e-10)
    logits = exact(windows[:, :-1])
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    assert np.allclose(found.entropy, entropy.detach().flatten(), atol=1e-5)
    assert found.place.tolist() == list(range(16)) * 3


def test_windows_in_pieces_keep_their_tokens_and_each_piece() -> None:
    windows = torch.arange(2 * 35).view(2, 35)
    moved = pieces(windows, 0)
    assert not torch.equal(moved, windows)
    assert torch.equal(moved, pieces(windows, 0))
    assert torch.equal(moved.sort(1).values, windows)
    assert torch.equal(moved[:, 32:], windows[:, 32:])
    found = moved[:, :32].reshape(2, PIECES_OF_ONE, 4)
    assert torch.equal(found - found[:, :, :1], torch.arange(4).expand_as(found))


@pytest.mark.slow
def test_the_command_goes_from_the_tuning_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = "--corpus hidden --symbols 8 --length 20000 --dim 8 --heads 2 --layers 1 --steps 16 --batch 4 --context 8"
    many = "--seeds 6 --tuning-seeds 1 --workers 0 --page page.md --output result.json"
    assert main(["language", "confidence", *words.split(), *many.split()]) == 0
    page = (tmp_path / "page.md").read_text()
    for question in (LOSS, PIECES, BACKWARDS):
        assert f"| {ONE}" in page
        assert question in page
    assert "The entropy of the softmax leaves" in page
    assert (tmp_path / "page-ratios.svg").exists()
