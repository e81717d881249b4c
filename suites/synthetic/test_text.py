"""The corpus is split without leakage, batches are reproducible, and the yardsticks are what they are called."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from synthetic import text
from synthetic.errors import UsageError


@pytest.fixture(scope="module")
def library() -> text.Corpus:
    return text.standard_library()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty small modules, some in a package."""
    for i in range(40):
        path = tmp_path / ("package" if i % 3 else ".") / f"module_{i}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"value_{i} = {i}\n")
    return tmp_path


def as_bytes(string: str) -> Tensor:
    return torch.tensor(list(string.encode()), dtype=torch.uint8)


def test_no_file_is_in_both_parts(library: text.Corpus) -> None:
    assert not set(library.train_files) & set(library.validation_files)
    assert len(library.train_files) > 5 * len(library.validation_files) > 0


def test_each_part_is_its_files_one_after_another(folder: Path) -> None:
    corpus = text.read(folder)
    for names, part in ((corpus.train_files, corpus.train), (corpus.validation_files, corpus.validation)):
        assert list(names) == sorted(names)
        assert bytes(part.numpy()) == b"".join((folder / name).read_bytes() for name in names)
    assert len(corpus.train_files) + len(corpus.validation_files) == 40


def test_a_file_keeps_its_part_when_others_come_and_go(folder: Path) -> None:
    before = text.read(folder)
    (folder / "a_new_one.py").write_text("new = True\n")
    after = text.read(folder)
    assert set(before.train_files) <= set(after.train_files)
    assert set(before.validation_files) <= set(after.validation_files)
    assert before.digest != after.digest


def test_a_copy_of_a_file_is_left_out(folder: Path) -> None:
    before = text.read(folder)
    for i in range(30):  # enough for copies to fall into either part
        (folder / f"zz_copy_{i}.py").write_bytes((folder / before.train_files[0]).read_bytes())
    assert text.read(folder).digest == before.digest


def test_tests_and_installed_packages_are_no_part_of_it(folder: Path) -> None:
    before = text.read(folder)
    for name in ("test", "site-packages", "encodings"):
        (folder / name).mkdir()
        for i in range(20):
            (folder / name / f"{i}.py").write_text(f"{name!r}, {i}\n")
    (folder / "_sysconfigdata_linux.py").write_text("build = 1\n")
    assert text.read(folder).digest == before.digest


def test_a_python_without_source_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no Python source"):
        text.read(tmp_path)


def test_a_batch_is_a_pure_function_of_seed_and_step(library: text.Corpus) -> None:
    batches = text.Batches(library.train, seed=3, size=4, context=16)
    later_first = [batches(step) for step in (7, 0, 7)]
    assert torch.equal(later_first[0], later_first[2])
    assert torch.equal(later_first[1], text.Batches(library.train, seed=3, size=4, context=16)(0))
    assert not torch.equal(batches(0), batches(1))
    assert not torch.equal(batches(1), text.Batches(library.train, seed=4, size=4, context=16)(0))


def test_a_batch_is_made_of_windows_of_the_text_and_reaches_both_ends() -> None:
    batches = text.Batches(torch.arange(20, dtype=torch.uint8), seed=0, size=64, context=4)
    tokens = torch.cat([batches(step) for step in range(10)])  # (640, 5)
    assert torch.equal(tokens, tokens[:, :1] + torch.arange(5))
    assert set(tokens[:, 0].tolist()) == set(range(16))


@pytest.mark.parametrize(("count", "context"), [(5, 10), (9, 10), (1000, 10), (1, 99)])
def test_validation_windows_do_not_overlap_in_what_they_predict(count: int, context: int) -> None:
    predicted = text.windows(torch.arange(100, dtype=torch.uint8), count, context)[:, 1:].flatten()
    assert len(set(predicted.tolist())) == len(predicted) == min(count, 99 // context) * context


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="no window"):
        text.windows(torch.zeros(10, dtype=torch.uint8), 1, 10)


def test_the_yardsticks_are_right_on_a_corpus_small_enough_to_count() -> None:
    corpus = text.Corpus(as_bytes("abab"), as_bytes("aab"), ("train.py",), ("validation.py",))
    found = text.yardsticks(corpus, text.windows(corpus.validation, 1, 2))
    # Of 4 training bytes 2 are a and 2 are b; a is followed by b twice, and never by a.
    unigram = (2 + 1 / 256) / 5
    after_a = {"a": unigram / 3, "b": (2 + unigram) / 3}
    assert found.uniform == 8
    assert found.unigram == pytest.approx(-math.log2(unigram), rel=1e-12)
    assert found.bigram == pytest.approx(-(math.log2(after_a["a"]) + math.log2(after_a["b"])) / 2, rel=1e-12)


def test_the_yardsticks_find_the_entropies_of_a_markov_chain() -> None:
    stay, length = 0.9, 400_000
    generator = torch.Generator().manual_seed(0)
    switches = torch.rand(length, generator=generator) > stay
    chain = (switches.cumsum(0) % 2).to(torch.uint8)
    corpus = text.Corpus(chain[: length // 2], chain[length // 2 :], ("train.py",), ("validation.py",))
    found = text.yardsticks(corpus, text.windows(corpus.validation, length, 100))
    entropy_rate = -stay * math.log2(stay) - (1 - stay) * math.log2(1 - stay)
    # the mean of n draws of -log2 p, one of two values, log2(9) apart: four standard errors
    margin = 4 * math.log2(stay / (1 - stay)) * math.sqrt(stay * (1 - stay) / (length // 2))
    assert found.bigram == pytest.approx(entropy_rate, abs=margin)
    assert found.unigram == pytest.approx(1, abs=0.01)
    assert found.gzip > found.bigram  # no code beats the entropy rate of its source


def test_every_row_of_the_yardsticks_is_a_distribution(library: text.Corpus) -> None:
    one = torch.ones((), dtype=torch.float64)
    torch.testing.assert_close(text.unigram(library.train).sum(), one)
    rows = text.bigram(library.train)
    torch.testing.assert_close(rows.sum(1), one.expand(256))
    assert rows.min() > 0


def test_the_yardsticks_of_the_library_are_in_their_order(library: text.Corpus) -> None:
    found = text.yardsticks(library, text.windows(library.validation, 64, 128))
    assert found.uniform > found.unigram > found.bigram > found.gzip > found.xz > 0
