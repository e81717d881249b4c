"""Corpora are split without leakage, tokenised once, and refused when damaged; batches are pure functions."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import resource
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from cemverify.console.errors import UsageError
from synthetic.corpora import chains, sources
from synthetic.corpora.choice import CorpusChoice, PinnedCorpus, TextFiles, chain_of, open_corpus
from synthetic.corpora.corpus import tokenised
from synthetic.corpora.hub import DatasetSpec, dataset
from synthetic.corpora.tokenisers import Subwords, Symbols, subwords
from synthetic.corpora.tokens import Batches, Tokens, read_tokens, spread_windows
from synthetic.corpora.yardsticks import yardsticks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty small modules, some in a package."""
    root = tmp_path / "texts"
    for i in range(40):
        path = root / ("package" if i % 3 else ".") / f"module_{i}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value_{i} = {i}\n")
    return root


def parts(source: sources.DocumentSource) -> dict[str, list[str]]:
    """The names of the documents of each part."""
    names: dict[str, list[str]] = {"train": [], "validation": []}
    for document in source.documents():
        names[document.part].append(document.name)
    return names


def tokens_of(text: str) -> Tokens:
    return Tokens(np.frombuffer(text.encode(), np.uint8).astype(np.uint16))


# --- where text comes from ------------------------------------------------------------------------


def test_each_part_is_its_files_one_after_another(folder: Path, tmp_path: Path) -> None:
    source = sources.text_files([folder])
    corpus = tokenised(source, Symbols(), tmp_path / "corpora")
    for part, of in (("train", corpus.train), ("validation", corpus.validation)):
        written = b"".join(d.content for d in source.documents() if d.part == part)
        assert bytes(of.tokens.head(10**6).astype(np.uint8)) == written
    assert corpus.train.documents + corpus.validation.documents == 40


def test_a_file_keeps_its_part_when_others_come_and_go(folder: Path) -> None:
    before = parts(sources.text_files([folder]))
    (folder / "a_new_one.py").write_text("new = True\n")
    after = parts(sources.text_files([folder]))
    assert set(before["train"]) <= set(after["train"])
    assert set(before["validation"]) <= set(after["validation"])


def test_copies_tests_installed_packages_and_hidden_or_binary_files_are_left_out(folder: Path) -> None:
    texts, library = sources.text_files([folder]).key, sources.python_source(folder, "library").key
    for i in range(30):  # enough for copies to fall into both parts
        (folder / f"zz_copy_{i}.py").write_bytes((folder / "module_0.py").read_bytes())
    (folder / ".hidden").write_text("hidden")
    (folder / "binary").write_bytes(b"a\0b")
    assert sources.text_files([folder]).key == texts
    for name in ("test", "site-packages", "encodings"):
        (folder / name).mkdir()
        (folder / name / "module.py").write_text(f"{name!r}\n")
    (folder / "_sysconfigdata_linux.py").write_text("build = 1\n")
    assert sources.python_source(folder, "library").key == library


def test_a_single_file_is_split_into_two_blocks_at_the_end_of_a_line(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("".join(f"line {i}\n" for i in range(100)))
    train, validation = sources.text_files([tmp_path / "one.txt"]).documents()
    assert train.content + validation.content == (tmp_path / "one.txt").read_bytes()
    assert train.content.endswith(b"\n")
    assert 0.05 < len(validation.content) / len(train.content) < 0.2


@pytest.mark.parametrize(
    ("content", "sentence"), [(None, "no file or folder"), (b"", "no text in"), (b"a", "too few")]
)
def test_a_missing_empty_or_tiny_text_is_refused(content: bytes | None, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        sources.text_files([path])


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The progress lines printed while a corpus is made."""
    lines: list[str] = []
    monkeypatch.setattr("synthetic.corpora.corpus.note", lines.append)
    return lines


def test_two_files_give_two_parts_whatever_their_names(tmp_path: Path) -> None:
    for i in range(20):
        for name in (f"{i}-a.txt", f"{i}-b.txt"):
            (tmp_path / name).write_text(name)
        halves = parts(sources.text_files([tmp_path / f"{i}-a.txt", tmp_path / f"{i}-b.txt"]))
        assert [len(names) for names in halves.values()] == [1, 1]


# --- tokenised once -------------------------------------------------------------------------------


def test_a_corpus_is_made_once_and_found_again(folder: Path, tmp_path: Path, notes: list[str]) -> None:
    first = tokenised(sources.text_files([folder]), Symbols(), tmp_path / "corpora")
    assert notes[0] == f"tokenising the text of {folder}"  # the name reads well after "the"
    notes.clear()
    again = tokenised(sources.text_files([folder]), Symbols(), tmp_path / "corpora")
    assert not notes
    assert again.digest == first.digest
    assert [path.name.startswith(".") for path in (tmp_path / "corpora").iterdir()] == [False]


def test_tokens_are_verified_once_and_again_when_their_file_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, content = tmp_path / "train.tokens", np.array((3, 65535, 1), np.uint16).tobytes()
    path.write_bytes(content)
    described = path, 3, hashlib.sha256(content).hexdigest()  # as in corpus.json
    tokens = read_tokens(*described)
    assert isinstance(tokens.codes, np.memmap)
    assert (first := tokens.codes.tolist()) == [3, 65535, 1]
    with monkeypatch.context() as patch:
        patch.setattr("synthetic.corpora.tokens.hashlib.sha256", None)  # verifying now fails
        assert read_tokens(*described).codes.tolist() == first
    time_ns = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    os.utime(path, ns=(time_ns + 1, time_ns + 1))
    for _ in range(2):
        with pytest.raises(UsageError, match=r"train.tokens is corrupt"):
            read_tokens(*described)


def test_a_full_disk_is_a_sentence_that_names_the_folder_asked_for_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("word " * 10_000)
    sentence = f"cannot write a corpus to {tmp_path / 'corpora'}: File too large; make room, or"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64_000, hard))  # like a full disk for a writer
    try:
        with pytest.raises(UsageError, match=sentence):
            tokenised(sources.text_files([tmp_path / "one.txt"]), Symbols(), tmp_path / "corpora")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "corpora").iterdir()) == []


def test_a_corpus_of_which_a_file_is_missing_says_to_delete_its_folder(folder: Path, tmp_path: Path) -> None:
    tokenised(sources.text_files([folder]), Symbols(), tmp_path / "corpora")
    [path] = (tmp_path / "corpora").glob("*/train.tokens")
    path.unlink()
    with pytest.raises(UsageError, match=f"the tokens {path}: No such file or directory; delete its folder"):
        tokenised(sources.text_files([folder]), Symbols(), tmp_path / "corpora")


def test_what_a_killed_process_left_aside_is_swept_a_day_later(folder: Path, tmp_path: Path) -> None:
    abandoned = tmp_path / "corpora" / f".{'0' * 24}.{'1' * 32}"
    abandoned.mkdir(parents=True)
    os.utime(abandoned, (0, 0))
    tokenised(sources.text_files([folder]), Symbols(), tmp_path / "corpora")
    assert not abandoned.exists()


# --- which corpus ---------------------------------------------------------------------------------


def test_a_choice_of_files_means_the_same_in_another_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    choice = CorpusChoice(TextFiles((folder.name,))).anywhere
    first = open_corpus(choice, folder.parent / "corpora")
    monkeypatch.chdir("/")
    assert open_corpus(choice, folder.parent / "corpora").digest == first.digest


def test_a_pinned_corpus_refuses_other_tokens_than_it_began_with(folder: Path, tmp_path: Path) -> None:
    choice = CorpusChoice(TextFiles((str(folder),)))
    pinned = PinnedCorpus(choice, open_corpus(choice, tmp_path / "corpora").digest)
    assert pinned.open(tmp_path / "elsewhere").digest == pinned.digest
    (folder / "module_0.py").write_text("edited\n")
    with pytest.raises(UsageError, match="is not the one the study began with; keep all machines on one folder"):
        pinned.open(tmp_path / "corpora")


def test_a_chain_is_its_own_tokeniser() -> None:
    spec = chains.ChainSpec("markov", 4, order=1)
    assert CorpusChoice(spec).vocabulary == 4
    assert chain_of(CorpusChoice(spec)) is not None
    assert chain_of(CorpusChoice()) is None
    with pytest.raises(UsageError, match="the symbols of a chain are its tokens: leave out --tokeniser"):
        CorpusChoice(spec, "owner/name")


# --- batches --------------------------------------------------------------------------------------


def test_a_batch_is_made_of_windows_and_reaches_both_ends() -> None:
    batches = Batches(Tokens(np.arange(20, dtype=np.uint16)), seed=0, size=64, context=4)
    drawn = torch.cat([batches(step) for step in range(10)])  # (640, 5)
    assert torch.equal(drawn, drawn[:, :1] + torch.arange(5))
    assert set(drawn[:, 0].tolist()) == set(range(16))


@pytest.mark.parametrize(("count", "context"), [(5, 10), (9, 10), (1000, 10), (1, 99)])
def test_validation_windows_do_not_overlap_in_what_they_predict(count: int, context: int) -> None:
    predicted = spread_windows(Tokens(np.arange(100, dtype=np.uint16)), count, context)[:, 1:].flatten()
    assert len(set(predicted.tolist())) == len(predicted) == min(count, 99 // context) * context


# --- yardsticks -----------------------------------------------------------------------------------


def test_the_yardsticks_are_right_on_a_corpus_small_enough_to_count() -> None:
    bits = yardsticks(tokens_of("abab"), 256, spread_windows(tokens_of("aab"), 1, 2))
    # Of 4 training bytes 2 are a and 2 are b; a is followed by b twice, and never by a.
    unigram = (2 + 1 / 256) / 5
    after_a = {"a": unigram / 3, "b": (2 + unigram) / 3}
    assert bits.uniform == 8
    assert bits.unigram == pytest.approx(-math.log2(unigram), rel=1e-12)
    assert bits.bigram == pytest.approx(-(math.log2(after_a["a"]) + math.log2(after_a["b"])) / 2, rel=1e-12)


# --- sources whose entropy is known ---------------------------------------------------------------

MARKOV = chains.ChainSpec("markov", vocabulary=3, order=2, train=1000, validation=20_000)
HIDDEN = chains.ChainSpec("hidden", vocabulary=4, states=3, train=1000, validation=20_000)


@pytest.mark.parametrize("spec", [MARKOV, HIDDEN], ids=["markov", "hidden"])
def test_a_chain_is_a_function_of_its_seed_and_its_stationary_distribution_stays(spec: chains.ChainSpec) -> None:
    chain = chains.draw(spec)
    assert chain.symbols("train") == chains.draw(spec).symbols("train")
    assert chain.symbols("train") != chain.symbols("validation")[:1000]
    np.testing.assert_allclose(chain.stationary @ chain.transition, chain.stationary, atol=1e-14)
    np.testing.assert_allclose(chain.transition.sum(1), 1)
    np.testing.assert_allclose(chain.emission.sum(1), 1)


def test_the_forward_algorithm_gives_the_probability_that_all_paths_add_up_to() -> None:
    chain = chains.draw(HIDDEN)
    window = torch.tensor([[1, 3, 0, 2]])

    def probability(symbols: list[int]) -> float:
        """The sum over all state sequences, one at a time."""
        total = 0.0
        for path in np.ndindex(*[3] * len(symbols)):
            p = chain.stationary[path[0]] * chain.emission[path[0], symbols[0]]
            for before, state, symbol in zip(path[:-1], path[1:], symbols[1:], strict=True):
                p *= chain.transition[before, state] * chain.emission[state, symbol]
            total += p
        return total

    symbols = window[0].tolist()
    expected = [-math.log2(probability(symbols[: t + 1]) / probability(symbols[:t])) for t in (1, 2, 3)]
    np.testing.assert_allclose(chain.surprisals(window)[0], expected, rtol=1e-12)


def test_a_markov_chain_shows_the_entropy_rate_of_its_closed_form() -> None:
    chain = chains.draw(MARKOV)
    symbols = torch.tensor(list(chain.symbols("validation"))).view(20, 1000)
    bits = chain.surprisals(symbols)[:, 2:]  # after the first word
    error = bits.std() / math.sqrt(bits.size)
    A = chain.transition  # each state's row has one entry for each symbol that may follow
    rate = chain.stationary @ -(A * np.log2(np.where(A > 0, A, 1))).sum(1)
    assert abs(bits.mean() - rate) < 4 * error


def test_no_yardstick_is_below_the_floor(tmp_path: Path) -> None:
    chain = chains.draw(MARKOV)
    corpus = tokenised(chains.source(chain), Symbols(3), tmp_path)
    windows = spread_windows(corpus.validation.tokens, 10_000, 100)
    bits = yardsticks(corpus.train.tokens, 3, windows)
    floor = chain.surprisals(windows).mean()
    assert min(bits.bigram, bits.unigram) > floor
    assert (corpus.token, corpus.unit) == ("symbol", "symbol")


@pytest.mark.parametrize(
    ("kind", "numbers", "sentence"),
    [
        ("markov", {"order": 0}, "--order must be 1 to 12, not 0"),
        ("hidden", {"states": -2}, "--states must be 1 to 4,096, not -2"),
        ("hidden", {"states": 5000}, "--states must be 1 to 4,096, not 5,000"),
        ("hidden", {"vocabulary": 1}, "--symbols must be 2 to 256, not 1"),
        ("markov", {"order": 4}, "65,536 states, more than 4,096; choose a lower --order or fewer --symbols"),
        ("markov", {"order": 10**9}, "--order must be 1 to 12, not 1,000,000,000"),
    ],
)
def test_a_chain_out_of_range_names_the_option_and_what_is_allowed(
    kind: Literal["markov", "hidden"], numbers: dict[str, int], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        chains.ChainSpec(kind, **numbers)


# --- the hub, from local files in its formats -----------------------------------------------------

TEXTS = [f"the {word} of number {i} is said to be {i % 7}\n" for i in range(60) for word in ("cat", "sum")]


def write_texts(path: Path, texts: Sequence[str] = TEXTS) -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text, "meta": {}}) + "\n" for text in texts))
    else:
        arrow = pytest.importorskip("pyarrow", reason="the extra 'hub' is not installed")
        import pyarrow.parquet

        pyarrow.parquet.write_table(arrow.table({"text": texts}), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["texts.jsonl", "texts.parquet"])
def test_a_dataset_is_streamed_and_tokenised_as_the_tokeniser_says(name: str, tmp_path: Path) -> None:
    path = write_texts(tmp_path / "here" / name)
    known = ["?", "<s>", *sorted(set(" ".join(TEXTS).split()))]
    words({word: i for i, word in enumerate(known)}, mark=1).tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokeniser = subwords(str(tmp_path / "tokenizer.json"))
    corpus = tokenised(dataset(DatasetSpec(str(path.parent))), tokeniser, tmp_path / "corpora")
    train = [text for text in TEXTS if sources.part_of(text) == "train"]
    expected = [i for encoding in tokeniser.tokenizer.encode_batch(train) for i in encoding.ids]
    assert corpus.train.tokens.head(10**6).tolist() == expected
    assert expected[0] == 1  # the start mark
    assert corpus.vocabulary == tokeniser.vocabulary == len(known)
    assert corpus.train.bytes == sum(len(text) for text in train)
    assert (corpus.token, corpus.unit) == ("token", "byte")
    few = dataset(DatasetSpec(str(path.parent), megabytes=0.001))  # a stream ends when there is enough text
    assert sum(len(document.content) for document in few.documents()) in range(1000, 1060)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "damage", "sentence"),
    [
        (DatasetSpec("here", column="content"), "", "no column 'content'; its columns: text, meta"),
        (DatasetSpec("./nowhere"), "", "nowhere is not available"),
        (DatasetSpec("here"), "changed", "here changed while it was read"),
        (DatasetSpec("here"), "cut", r"cannot be read on from about row 0 \(.*\); mend the file"),
    ],
)
def test_a_dataset_that_cannot_be_read_is_one_sentence_and_becomes_no_corpus(
    spec: DatasetSpec, damage: str, sentence: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("datasets", reason="the extra 'hub' is not installed")
    path = write_texts(here / "here" / "texts.jsonl")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match=sentence):  # noqa: PT012 -- it may change after it was opened
        source = dataset(spec)
        if damage == "changed":
            write_texts(path, TEXTS[:-1])
        tokenised(source, Symbols(), here / "corpora")
    assert list((here / "corpora").glob("*")) == []
    assert [line for line in capfd.readouterr().err.splitlines() if not line.startswith("tokenising")] == []


@pytest.mark.slow
def test_what_a_local_dataset_holds_decides_its_corpus_and_not_where_it_lies(here: Path, notes: list[str]) -> None:
    pytest.importorskip("datasets", reason="the extra 'hub' is not installed")
    path = write_texts(here / "here" / "texts.jsonl")

    def digest_of(folder: Path | str) -> str:
        notes.clear()
        return tokenised(dataset(DatasetSpec(str(folder))), Symbols(), here / "corpora").digest

    first = digest_of(path.parent)
    shutil.copytree(path.parent, here / "there")
    for place in (path.parent, here / "there", "there"):
        assert digest_of(place) == first
        assert not notes
    write_texts(path, [text.replace("sum", "mus") for text in TEXTS])  # of the same length as before
    assert digest_of(path.parent) != first
    assert notes


def test_an_error_in_mid_stream_counts_the_rows_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra 'hub' is not installed")

    def rows(*_of: object, **_how: object) -> Iterator[dict[str, str]]:
        yield from ({"text": text} for text in TEXTS[:70])
        raise ConnectionError("the hub\nwent away")

    monkeypatch.setattr(datasets, "load_dataset", rows)
    with pytest.raises(UsageError, match=r"row 70 \(ConnectionError: the hub went away\); .*, or end before"):
        list(dataset(DatasetSpec("owner/name")).documents())


def words(vocabulary: dict[str, int], mark: int | None = None) -> Subwords:
    """A tokeniser that knows a few words, and may put a mark before each document."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'hub' is not installed")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))  # noqa: S106 - no secret
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if mark is not None:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", mark)])
    return Subwords(tokenizer)


def test_a_vocabulary_reaches_to_its_largest_number_though_some_are_left_out(tmp_path: Path) -> None:
    tokeniser = words({"?": 0, "cat": 5, "sum": 72})
    assert tokeniser.vocabulary == 73
    (tmp_path / "one.txt").write_text("cat sum dog\n" * 50)
    corpus = tokenised(sources.text_files([tmp_path / "one.txt"]), tokeniser, tmp_path / "corpora")
    assert corpus.vocabulary == 73
    assert corpus.train.tokens.head(3).tolist() == [5, 72, 0]
    assert yardsticks(corpus.train.tokens, 73, spread_windows(corpus.validation.tokens, 1, 6)).unigram > 0


@pytest.mark.parametrize(
    ("mark", "sentence"), [(9, "a token 9 where each must be below 6"), (70_000, "70,000; corpora")]
)
def test_a_mark_that_is_in_no_vocabulary_is_refused(mark: int, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("cat\n" * 50)
    with pytest.raises(UsageError, match=sentence):
        tokenised(sources.text_files([tmp_path / "one.txt"]), words({"?": 0, "cat": 5}, mark), tmp_path / "corpora")


def test_an_unknown_tokeniser_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra 'hub' is not installed")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="no tokeniser"):
        subwords(str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize(
    "name", ["nope.json", "folder/nope.json", "./nope", "../nope", "~/nope", "/nope", "a/b/nope"]
)
def test_the_hub_is_not_asked_for_a_tokeniser_that_can_only_be_a_file(
    name: str, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'hub' is not installed")
    monkeypatch.setattr(tokenizers, "Tokenizer", None)
    with pytest.raises(UsageError, match=f"^no file {name}; --tokeniser takes"):
        subwords(name)


@pytest.mark.parametrize("name", ["gpt2", "owner/name"])
def test_the_hub_is_asked_for_a_name_and_its_retries_are_not_logged(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'hub' is not installed")

    logger = logging.getLogger("huggingface_hub.utils._http")

    class Hub:
        @staticmethod
        def from_pretrained(name: str) -> None:
            logger.warning("Retrying in 1s [Retry 1/5].")
            raise OSError(f"no {name}\nhere")

    monkeypatch.setattr(tokenizers, "Tokenizer", Hub)
    with pytest.raises(UsageError, match=f"it is not available from the Hugging Face hub .no {name} here"):
        subwords(name)
    logger.warning("afterwards")
    assert [record.message for record in caplog.records] == ["afterwards"]
