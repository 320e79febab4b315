"""The worker's network on the host's own engine: without a call of TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.distributions import Policy
from relaax.nn.host.losses import value_gradient
from relaax.nn.host.network import Activations, HostNetwork
from relaax.nn.networks import NetworkSpec
from relaax.optim.recycled import Recycled, own_memory

from .config import Config
from .rollout import Batch

Array = npt.NDArray[np.float32]
Inputs = npt.NDArray[Any]

EXAMPLES = 256
"""So many go through the network at once for a gradient: more gain nothing, and memory would grow with the batch."""

KEPT_BYTES = 32 << 20
"""Bound on what is kept of what was acted on."""


class HostModel:
    """See `model.Model`.

    What the network computes when it acts on a row of a batch is what the gradient of that row begins with.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        policy: Policy,
        config: Config,
        input_dtype: Any,
        batch_shape: tuple[int | None, int | None],
    ) -> None:
        self._policy = policy
        self._config = config
        self._network = HostNetwork(spec)
        self._pixels = np.dtype(input_dtype) == np.uint8
        self._size = spec.layout().size
        self._gradients = Recycled(self._size, own_memory)
        self._acting = Activations(0, self._network.sizes)
        rows, environments = batch_shape
        self._rows = rows
        self._most = max(EXAMPLES, KEPT_BYTES // self._network.example_bytes)
        expected = 0 if rows is None or environments is None else rows * environments
        self._learning = Activations(min(expected, self._most), self._network.sizes)
        self._kept: set[int] = set()  # rows of `_learning`, of so many environments each
        self._environments = 0

    def set_parameters(self, parameters: Array) -> None:
        """See `Model`."""
        self._network.set_parameters(parameters, self._pixels)
        self._kept.clear()

    def act(self, inputs: Inputs, state: Array, keep: int | None = None) -> tuple[dict[str, Array], Array]:
        """See `Model`."""
        count = len(inputs)
        activations, at = self._place(count, keep)
        self._network.forward(inputs, activations, at)
        outputs = self._network.outputs(activations, at, at + count)
        return {head: output.copy() for head, output in outputs.items()}, state

    def gradient(self, batch: Batch, memory: Array | None = None) -> tuple[Array, Array]:
        """See `Model`. Mnih et al. 2016, Algorithm S3: sums over the rollout's steps, averaged over environments."""
        config, network = self._config, self._network
        rows, environments = batch.mask.shape
        count = rows * environments
        flat_inputs, actions = (part.reshape(count, *part.shape[2:]) for part in (batch.inputs, batch.actions))
        advantages, targets, mask = (part.reshape(count) for part in (batch.advantages, batch.targets, batch.mask))
        self._make_room(min(count, EXAMPLES))
        gradient = self._gradients.take() if memory is None else memory
        assert gradient.shape == (self._size,), "memory for a gradient is as long as that"
        statistics = np.zeros(4, np.float32)
        with np.errstate(all="ignore"):  # what is not finite is found where it is pushed to
            share = mask / np.float32(environments)
            shared_advantages, entropy_weights = share * advantages, share * np.float32(config.entropy_beta)
            for start in range(0, count, EXAMPLES):
                part = slice(start, min(start + EXAMPLES, count))
                inputs = flat_inputs[part]
                at = self._activated(flat_inputs, part, environments)
                outputs = network.outputs(self._learning, at, at + len(inputs))
                by_outputs, log_probability, entropy = self._policy.loss_gradient(
                    outputs, actions[part], shared_advantages[part], entropy_weights[part]
                )
                by_outputs["value"] = value_gradient(
                    outputs["value"],
                    targets[part],
                    mask[part],
                    2 * config.value_loss_weight / environments,
                    (advantages[part], log_probability, entropy),
                    statistics,
                )
                network.backward(inputs, self._learning, at, by_outputs, gradient, further=start > 0)
            norm = np.sqrt(np.dot(gradient, gradient))
            limit = config.gradient_norm_clipping
            if limit is not None and not norm <= limit:
                gradient *= np.float32(limit) / norm
            statistics /= max(mask.sum(), np.float32(1))
            statistics[3] = norm
        self._kept.clear()  # the next rows are others
        return gradient, statistics

    def _place(self, count: int, keep: int | None) -> tuple[Activations, int]:
        """Where the outputs for `count` inputs go."""
        if keep is not None and (self._rows is None or keep < self._rows):
            if count != self._environments:
                self._environments = count
                self._kept.clear()
            if (keep + 1) * count <= self._most:
                self._make_room((keep + 1) * count)
                self._kept.add(keep)
                return self._learning, keep * count
        if self._acting.count < count:
            self._acting = Activations(count, self._network.sizes)
        return self._acting, 0

    def _make_room(self, count: int) -> None:
        if self._learning.count < count:
            self._learning = Activations(min(max(count, 2 * self._learning.count), self._most), self._network.sizes)
            self._kept.clear()

    def _activated(self, inputs: Inputs, part: slice, environments: int) -> int:
        """Compute what was not kept of these examples; gives where they stand in `_learning`."""
        if environments != self._environments or part.stop > self._learning.count:
            # What stood there has had its turn, or was never kept.
            self._network.forward(inputs[part], self._learning, 0)
            return 0
        start = part.start
        while start < part.stop:
            row = start // environments
            kept = row in self._kept
            row += 1
            while row * environments < part.stop and (row in self._kept) == kept:
                row += 1
            stop = min(row * environments, part.stop)
            if not kept:
                self._network.forward(inputs[start:stop], self._learning, start)
            start = stop
        return int(part.start)
