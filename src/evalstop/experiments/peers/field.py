"""What a library is given to judge, and what it gives back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "ITEMS",
    "TRIALS",
    "Array",
    "Field",
    "Peer",
    "RowByRow",
    "Stops",
    "experiments",
    "first_of",
    "items",
]

Array = NDArray[np.float64]
Stops = NDArray[np.int64]

ITEMS = 64
"""Items of an evaluation, where a library compares item by item."""

TRIALS = 20
"""Runs of one experiment, where a library compares runs with each other."""


class Field(Struct, frozen=True, kw_only=True, eq=False):
    """Runs to judge; higher scores are better.

    Attributes:
        scores: (runs, evals).
        declines: whether each run declines, (runs,). It only sees to it that experiments hold
            both kinds; no library learns it.
        sigma: standard deviation of an evaluation's noise, in the metric's units.
        seed: of the order of trials and of item scores.
    """

    scores: Array
    declines: NDArray[np.bool_]
    sigma: float
    seed: int


class Peer(Protocol):
    """A rule of another library, with its settings."""

    def stops(self, field: Field) -> Stops:
        """Return the index at which each run is stopped, -1 if never: (runs,)."""
        ...


class RowByRow(ABC):
    """A rule that judges a run by its own scores alone, evaluation after evaluation."""

    def stops(self, field: Field) -> Stops:
        """Return the index at which each run is stopped, -1 if never: (runs,)."""
        return np.array([first_of(self.answers(row)) for row in field.scores.tolist()])

    @abstractmethod
    def answers(self, scores: list[float]) -> Iterator[bool]:
        """Yield after each of a run's scores whether the library would stop it now."""


def first_of(stops: Iterable[bool]) -> int:
    """Return the index of the first true value, -1 if there is none; nothing is asked after it."""
    return next((index for index, stop in enumerate(stops) if stop), -1)


def experiments(field: Field) -> list[NDArray[np.intp]]:
    """Return the runs of each experiment, in the order in which its trials start.

    Experiments have about `TRIALS` trials each, and declining runs are spread evenly over them.
    """
    generator = np.random.default_rng([field.seed, 1])
    runs = field.declines.size
    count = -(-runs // TRIALS)
    declining = generator.permutation(np.flatnonzero(field.declines))
    healthy = generator.permutation(np.flatnonzero(~field.declines))
    dealt = np.concatenate([declining, healthy])
    return [generator.permutation(dealt[start::count]) for start in range(count)]


def items(field: Field, run: int) -> Array:
    """Return item scores of each evaluation of a run whose means are its scores: (evals, ITEMS).

    An item has its own difficulty, the same at each evaluation (standard deviation 0.3), and noise
    of sigma sqrt(ITEMS), so that a mean of items has the noise that the score has. Differences
    between two evaluations are free of the difficulties, as in Miller, arXiv:2411.00640.
    """
    generator = np.random.default_rng([field.seed, 2, run])
    scores = field.scores[run]
    difficulty = 0.3 * generator.standard_normal(ITEMS)
    noise = field.sigma * np.sqrt(ITEMS) * generator.standard_normal((scores.size, ITEMS))
    spread = difficulty + noise
    table: Array = scores[:, None] + spread - spread.mean(axis=1, keepdims=True)
    return table
