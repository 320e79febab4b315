"""Values of the parameters of environments: constants, ranges and choices, and the numbers drawn from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the configuration of a process is read before numpy is imported
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The values of one parameter: uniform from `low` to `high`, or one of `choices` if there are any."""

    low: float = 0.0
    high: float = 0.0
    choices: tuple[float, ...] = ()

    @classmethod
    def constant(cls, number: float) -> ValueRange:
        """Return the values of a parameter that has only this one."""
        return cls(number, number)

    def at(self, share: float) -> float:
        """Return the value at `share`, 0 to 1, of the values in order."""
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        return self.low + share * (self.high - self.low)

    def __str__(self) -> str:
        if self.choices:
            return " | ".join(f"{choice:g}" for choice in self.choices)
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Draw:
    """The identity of an episode's numbers: they depend on nothing else, except on the values of its lesson.

    seed: the run's. joined: the global step at which the environment's connection was registered. actor: the actor
    index of the environment. number: of the environment's episode on its connection, from 0.
    """

    seed: int
    joined: int
    actor: int
    number: int


def draw(values: Mapping[str, ValueRange], of: Draw) -> Numbers:
    """Return a number for each parameter, in order, float64 [P].

    Parameters whose values are constant use up a random number too, so that the numbers of the others do not change if
    a range becomes a constant.
    """
    import numpy as np

    shares = np.random.default_rng([of.seed, of.joined, of.actor, of.number]).random(len(values))
    return np.array([one.at(share) for one, share in zip(values.values(), shares.tolist(), strict=True)], np.float64)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The numbers of one episode, float64 [P], and the number of the edition whose values they are of."""

    of: Draw
    edition: int
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Edition:
    """The values of all parameters at one time. `number` increases with each change.

    lesson: index of the lesson, from 0; 0 without a curriculum. values: by name.
    """

    number: int
    lesson: int
    values: Mapping[str, ValueRange]

    @property
    def names(self) -> Sequence[str]:
        """The names of the parameters, in order."""
        return tuple(self.values)

    def __str__(self) -> str:
        return ", ".join(f"{name} {values}" for name, values in self.values.items())
