"""Sources with known entropy: Markov chains of any order and hidden Markov models, drawn from a seed.

Both consist of a sequence of states, each of which emits a symbol:

    s_t ~ A[s_{t-1}],   c_t ~ E[s_t],   s_1 ~ the stationary distribution

The states of a Markov chain of order k are the V^k words of k symbols, and a state emits the last symbol of its word.
No predictor needs fewer bits than -log2 p(c_t | c_1 ... c_{t-1}), which the forward algorithm computes exactly for
the windows that a model is scored on. This is the floor. In long windows it tends to the entropy rate.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cemverify.console.errors import UsageError
from synthetic.corpora.sources import Document, DocumentSource, PartName

Matrix = NDArray[np.float64]
LONGEST = 4096  # states; the transitions of more take gigabytes


@dataclass(frozen=True)
class ChainSpec:
    """What a chain is drawn from."""

    kind: Literal["markov", "hidden"]  # "markov" or "hidden"
    vocabulary: int = 16  # V
    order: int = 2  # k, of a Markov chain
    states: int = 24  # S, of a hidden Markov model
    peak: float = 3.0  # unevenness of the probabilities, e^peak normalised, e exponential; 1: uniform on the simplex
    seed: int = 0  # of the probabilities and of the symbols
    # train, validation: the number of symbols in each
    train: int = 2**21
    validation: int = 2**17

    def __post_init__(self) -> None:
        if not 2 <= self.vocabulary <= 256:
            raise UsageError(f"--symbols must be 2 to 256, not {self.vocabulary}")
        longest_word = LONGEST.bit_length() - 1  # with only two symbols
        for option, value, most in (("order", self.order, longest_word), ("states", self.states, LONGEST)):
            if not 1 <= value <= most:
                raise UsageError(f"--{option} must be 1 to {most:,}, not {value:,}")
        if self.hidden_states > LONGEST:
            raise UsageError(
                f"a Markov chain of order {self.order} over {self.vocabulary} symbols has {self.hidden_states:,}"
                f" states, more than {LONGEST:,}; choose a lower --order or fewer --symbols"
            )

    @property
    def hidden_states(self) -> int:
        """S, the number of hidden states."""
        return self.vocabulary**self.order if self.kind == "markov" else self.states


@dataclass(frozen=True)
class Chain:
    """A drawn chain."""

    spec: ChainSpec
    transition: Matrix = field(repr=False)  # A (S, S), rows sum to 1
    emission: Matrix = field(repr=False)  # E (S, V)
    stationary: Matrix = field(repr=False)  # (S,), with stationary A = stationary

    def symbols(self, part: PartName) -> bytes:
        """The symbols of a part, one byte each; the parts are independent stretches of the same chain."""
        length = self.spec.train if part == "train" else self.spec.validation
        draws = np.random.Generator(np.random.PCG64([self.spec.seed, 1, int(part == "validation")]))
        moves = [row.tolist() for row in self.transition.cumsum(1)]
        shows = [row.tolist() for row in self.emission.cumsum(1)]
        last_state, last_symbol = len(moves) - 1, self.spec.vocabulary - 1
        state = min(bisect_right(self.stationary.cumsum().tolist(), draws.random()), last_state)
        out = bytearray()
        # min, because cumulated probabilities may end slightly below 1
        for move, show in draws.random((length, 2)).tolist():
            out.append(min(bisect_right(shows[state], show), last_symbol))
            state = min(bisect_right(moves[state], move), last_state)
        return bytes(out)

    def surprisals(self, windows: Tensor) -> Matrix:
        """-log2 p(c_t | c_1 ... c_{t-1}) of every symbol but each window's first: windows (W, J+1) -> (W, J).

        The first state of a window is drawn from the stationary distribution, because the chain before it is not
        seen.
        """
        symbols = windows.numpy()
        likelihood = self.emission.T  # (V, S)
        belief = np.broadcast_to(self.stationary, (len(symbols), len(self.stationary)))  # p(s_t | c_<t)
        bits = np.empty(symbols.shape)
        for t in range(symbols.shape[1]):
            joint = belief * likelihood[symbols[:, t]]  # (W, S)
            evidence = joint.sum(1)  # p(c_t | c_<t)
            bits[:, t] = -np.log2(evidence)
            belief = (joint / evidence[:, None]) @ self.transition
        following: Matrix = bits[:, 1:]
        return following


def draw(spec: ChainSpec) -> Chain:
    """The chain of a specification. Its probabilities depend on the seed alone."""
    draws = np.random.Generator(np.random.PCG64([spec.seed, 0]))

    def rows(count: int, width: int) -> Matrix:
        # from uniforms, as their stream is the same in every version of the library
        weights: Matrix = (-np.log1p(-draws.random((count, width)))) ** spec.peak
        normalised: Matrix = weights / weights.sum(1, keepdims=True)
        return normalised

    states, V = spec.hidden_states, spec.vocabulary
    if spec.kind == "markov":
        following = rows(states, V)  # p(next symbol | word)
        transition = np.zeros((states, states))
        words = np.arange(states)
        for symbol in range(V):  # the word loses its first symbol and gains a last one
            transition[words, words * V % states + symbol] = following[:, symbol]
        emission = np.eye(V)[words % V]
    else:
        transition, emission = rows(states, states), rows(states, V)
    return Chain(spec, transition, emission, _stationary(transition))


def source(chain: Chain) -> DocumentSource:
    """The documents of a chain: one of each part."""
    spec = chain.spec
    if spec.kind == "markov":
        name = f"Markov chain of order {spec.order} over {spec.vocabulary} symbols"
    else:
        name = f"hidden Markov model of {spec.states} states over {spec.vocabulary} symbols"
    parts: tuple[PartName, ...] = ("train", "validation")
    names = ("kind", "vocabulary", "peak", "seed", "train", "validation")
    key = {**{name: getattr(spec, name) for name in names}, "states": spec.hidden_states}
    return DocumentSource(name, key, lambda: (Document(p, p, chain.symbols(p)) for p in parts), unit="symbol")


def _stationary(transition: Matrix) -> Matrix:
    """pi with pi A = pi: every state can be reached from every other, so there is one."""
    # one of the equations pi (A - I) = 0 is redundant; sum pi = 1 replaces the last
    equations = (transition - np.eye(len(transition))).T
    equations[-1] = 1.0
    constants = np.zeros(len(transition))
    constants[-1] = 1.0
    solution = np.linalg.solve(equations, constants)
    normalised: Matrix = solution.clip(0.0) / solution.clip(0.0).sum()
    return normalised
