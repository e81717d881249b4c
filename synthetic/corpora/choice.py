"""Which corpus: a frozen choice that a command line makes, a cell stores, and a worker opens.

The location of the tokens on a machine is not part of the choice. They are in the folder that the caller names, or in
the one that the environment variable CEMVERIFY_CORPORA names, which processes inherit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from cemverify.console.errors import UsageError
from synthetic.corpora.chains import Chain, ChainSpec, draw
from synthetic.corpora.chains import source as symbols_of
from synthetic.corpora.corpus import Corpus, tokenised
from synthetic.corpora.hub import DatasetSpec, dataset
from synthetic.corpora.sources import DocumentSource, standard_library, text_files
from synthetic.corpora.tokenisers import Symbols, Tokeniser, subwords

CORPORA_VARIABLE = "CEMVERIFY_CORPORA"
DEFAULT_CORPORA = Path("out/corpora")


@dataclass(frozen=True)
class Library:
    """The source text of the running Python's standard library."""


@dataclass(frozen=True)
class TextFiles:
    """Files and folders, as they were typed."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class CorpusChoice:
    """A source of documents and a tokeniser."""

    source: Library | TextFiles | DatasetSpec | ChainSpec = Library()  # where documents come from
    tokeniser: str | None = None  # a tokenizer.json or a name on the hub; None takes bytes

    def __post_init__(self) -> None:
        if isinstance(self.source, ChainSpec) and self.tokeniser is not None:
            raise UsageError("the symbols of a chain are its tokens: leave out --tokeniser")

    @property
    def vocabulary(self) -> int:
        """V, without opening the corpus."""
        return _tokeniser(self).vocabulary

    @property
    def anywhere(self) -> CorpusChoice:
        """This choice with absolute paths, for processes that run in another folder."""
        if not isinstance(self.source, TextFiles):
            return self
        paths = tuple(str(Path(path).expanduser().resolve()) for path in self.source.paths)
        return replace(self, source=TextFiles(paths))


@dataclass(frozen=True)
class PinnedCorpus:
    """A choice, and the digest of its tokens when a study began."""

    choice: CorpusChoice
    digest: str

    def open(self, folder: Path) -> Corpus:
        """The corpus, created in the folder if it is missing."""
        corpus = open_corpus(self.choice, folder)
        if corpus.digest != self.digest:
            raise UsageError(
                f"the {corpus.name} on this machine is not the one the study began with; keep all machines on one"
                f" folder, {CORPORA_VARIABLE}=DIR, or on one version of the text"
            )
        return corpus


def corpora_folder() -> Path:
    """The default folder for corpora on this machine."""
    return Path(os.environ.get(CORPORA_VARIABLE) or DEFAULT_CORPORA)


def open_corpus(choice: CorpusChoice, folder: Path) -> Corpus:
    """The corpus of a choice, created in the folder if it is missing, with progress on stderr."""
    return tokenised(_documents(choice), _tokeniser(choice), folder)


def chain_of(choice: CorpusChoice) -> Chain | None:
    """The chain behind a corpus; None for text."""
    return draw(choice.source) if isinstance(choice.source, ChainSpec) else None


def _documents(choice: CorpusChoice) -> DocumentSource:
    match choice.source:
        case TextFiles(paths):
            return text_files([Path(path) for path in paths])
        case DatasetSpec() as spec:
            return dataset(spec)
        case ChainSpec() as spec:
            return symbols_of(draw(spec))
        case Library():
            return standard_library()


def _tokeniser(choice: CorpusChoice) -> Tokeniser:
    if isinstance(choice.source, ChainSpec):
        return Symbols(choice.source.vocabulary)
    return subwords(choice.tokeniser) if choice.tokeniser else Symbols()
