"""A reference of the loss of an actor-critic, with or without LSTM, in numpy and float64: slow and obvious."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from support.reference_a3c import cut

Outputs = dict[str, np.ndarray]
Memory = list[tuple[np.ndarray, np.ndarray]]
"""h and c of each trunk."""


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@dataclass(frozen=True)
class Network:
    """A network. Each trunk has a hidden layer of tanh, an LSTM if `cells` > 0, and linear heads."""

    features: int
    hidden: int
    cells: int
    trunks: Sequence[Mapping[str, int]]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        shapes: list[tuple[int, ...]] = []
        for heads in self.trunks:
            shapes += [(self.features, self.hidden), (self.hidden,)]
            if self.cells:
                shapes += [(self.hidden + self.cells, 4 * self.cells), (4 * self.cells,)]
            for width in heads.values():
                shapes += [(self.cells or self.hidden, width), (width,)]
        return shapes

    @property
    def size(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def nothing(self) -> Memory:
        """Return the memory at the start of an episode."""
        return [(np.zeros(self.cells), np.zeros(self.cells)) for _ in self.trunks]

    def run(
        self, theta: np.ndarray, inputs: Sequence[Any], memory: Memory | None = None
    ) -> tuple[list[Outputs], Memory]:
        """Return the outputs for a sequence of inputs, and the memory after it."""
        memory = self.nothing() if memory is None else memory
        every = []
        for x in inputs:
            outputs: Outputs = {}
            parts = iter(cut(theta.astype(np.float64), *self.shapes))
            left: Memory = []
            for heads, (h, c) in zip(self.trunks, memory, strict=True):
                y = np.tanh(np.asarray(x, np.float64) @ next(parts) + next(parts))
                if self.cells:
                    gates = np.concatenate([y, h]) @ next(parts) + next(parts)
                    i, f, g, o = gates.reshape(4, self.cells)
                    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                    y = h = sigmoid(o) * np.tanh(c)
                left.append((h, c))
                for head in heads:
                    outputs[head] = y @ next(parts) + next(parts)
            memory = left
            every.append(outputs)
        return every, memory

    def value(self, theta: np.ndarray, inputs: Sequence[Any], memory: Memory | None = None) -> float:
        """Return the value of the last input."""
        return float(self.run(theta, inputs, memory)[0][-1]["value"][0])


@dataclass
class Stretch:
    """Steps of one environment within one episode. `advantages` defaults to the targets minus the values."""

    inputs: Sequence[Any]
    actions: Sequence[Any]
    targets: Sequence[float]
    memory: Memory | None = None
    advantages: Sequence[float] | None = field(default=None)


def likelihood(outputs: Outputs, action: Any, entropy_weights: Sequence[float] = ()) -> tuple[float, float]:
    """Return the log-probability of the action, and the entropy.

    If the action has several leaves, the heads of the second are `policy.1`, and `entropy_weights` has one for each.
    """
    if entropy_weights:
        sums = np.zeros(2)
        for i, weight in enumerate(entropy_weights):
            own = {head.removesuffix(f".{i}"): z for head, z in outputs.items() if head.endswith(f".{i}")}
            log_probability, entropy = likelihood(own, action[i])
            sums += log_probability, weight * entropy
        return float(sums[0]), float(sums[1])
    if "policy" in outputs:
        pi = np.exp(outputs["policy"]) / np.exp(outputs["policy"]).sum()
        return float(np.log(pi[action])), float(-(pi * np.log(pi)).sum())
    mean = outputs["mean"]
    variance = np.broadcast_to(np.log1p(np.exp(outputs["variance"])) + 1e-6, mean.shape)
    density = np.exp(-((action - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    return float(np.log(density).sum()), float(0.5 * np.log(2 * np.pi * np.e * variance).sum())


def loss_gradient(
    network: Network,
    theta: np.ndarray,
    stretches: Sequence[Stretch],
    *,
    environments: int,
    value_weight: float,
    beta: float,
    entropy_weights: Sequence[float] = (),
) -> np.ndarray:
    """Return the gradient [P] of the loss by central differences. `entropy_weights`: see `likelihood`.

    Advantages and the memory at a stretch's start are constants.
    """
    theta = theta.astype(np.float64)
    for stretch in stretches:
        if stretch.advantages is None:
            outputs, _ = network.run(theta, stretch.inputs, stretch.memory)
            stretch.advantages = [t - o["value"][0] for t, o in zip(stretch.targets, outputs, strict=True)]

    def loss(at: np.ndarray) -> float:
        total = 0.0
        for stretch in stretches:
            outputs, _ = network.run(at, stretch.inputs, stretch.memory)
            assert stretch.advantages is not None
            for out, action, target, advantage in zip(
                outputs, stretch.actions, stretch.targets, stretch.advantages, strict=True
            ):
                log_probability, entropy = likelihood(out, action, entropy_weights)
                total -= log_probability * advantage
                total += value_weight * (target - out["value"][0]) ** 2
                total -= beta * entropy
        return total / environments

    step = 1e-6
    moves = step * np.eye(theta.size)
    return np.array([(loss(theta + move) - loss(theta - move)) / (2 * step) for move in moves])
