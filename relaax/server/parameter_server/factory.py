"""From a configuration and a fingerprint to a model: where the parameter server meets the algorithm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from relaax.algorithm_base import Algorithm, ConfigBase, fingerprint, first_difference, parse_fingerprint
from relaax.bridge.moments import check_lengths
from relaax.bridge.options import MAX_PARAMETERS
from relaax.rlx import Space
from relaax.server.parameter_server.model import ModelRefused, ModelSpec
from relaax.server.parameter_server.schedule import Schedule


class AlgorithmModels:
    """Makes the models of one algorithm in one configuration, for whatever spaces a worker or a checkpoint brings."""

    def __init__(self, algorithm: Algorithm, config: ConfigBase) -> None:
        self._algorithm = algorithm
        self._config = config

    def __call__(self, description: str) -> ModelSpec:
        """The model of a worker whose fingerprint this is.

        Raises ModelRefused where the worker has another algorithm or configuration, or spaces that cannot be used.
        """
        try:
            _, observation_space, action_space = parse_fingerprint(description)
            ours = self._fingerprint(observation_space, action_space)
            difference = first_difference(description, ours)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ModelRefused(f"the worker's fingerprint cannot be read: {error}") from None
        if difference:
            raise ModelRefused(f"the worker is set up otherwise than this parameter server: {difference}")
        return self._spec(observation_space, action_space)

    def for_checkpoint(self, manifest: Mapping[str, Any]) -> str:
        """The fingerprint of this algorithm, as configured now, in the spaces of a checkpoint.

        Raises ModelRefused where the checkpoint's description cannot be read.
        """
        try:
            _, observation_space, action_space = parse_fingerprint(json.dumps(manifest["fingerprint"]))
        except (ValueError, KeyError) as error:
            raise ModelRefused(f"the checkpoint's fingerprint cannot be read: {error}") from None
        return self._fingerprint(observation_space, action_space)

    def _fingerprint(self, observation_space: Space, action_space: Space) -> str:
        return fingerprint(self._algorithm.name, self._config, observation_space, action_space)

    def _spec(self, observation_space: Space, action_space: Space) -> ModelSpec:
        config = self._config
        try:
            declared = self._algorithm.ParameterServer(config, observation_space, action_space)
            initial = np.asarray(declared.initial_parameters(config.seed), np.float32)
            optimizer = declared.optimizer()
            statistics = check_lengths(declared.statistics())
        except ValueError as error:  # spaces that the algorithm cannot handle, in its own words
            raise ModelRefused(str(error)) from error
        except MemoryError as error:
            raise ModelRefused(f"the model does not fit into memory: {error}") from error
        if len(initial) > MAX_PARAMETERS:
            raise ModelRefused(f"the model has {len(initial)} parameters, one shard holds up to {MAX_PARAMETERS}")
        end = config.max_global_step if config.anneal_learning_rate else None
        return ModelSpec(
            initial=initial,
            optimizer=optimizer,
            schedule=Schedule(config.initial_learning_rate, end),
            max_global_step=config.max_global_step,
            max_staleness=config.max_staleness,
            statistics=statistics,
        )
