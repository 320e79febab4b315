"""Models from a configuration and a fingerprint. No other module of the parameter server uses the algorithm."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from relaax.algorithm_base import ConfigBase
from relaax.checkpoint import Damaged
from relaax.hosting.errors import describe_error, is_deliberate, place_of_function
from relaax.hosting.fingerprint import changed_keys, fingerprint, first_difference, parse_fingerprint
from relaax.hosting.loader import Algorithm
from relaax.optim.learning_rates import check_rate_factors
from relaax.parameters.moments import check_lengths
from relaax.rlx import Space
from relaax.server.parameter_server.command.initialization import OtherTraining
from relaax.server.parameter_server.shard.model import ModelRefused, ModelSpec, differs_from_worker
from relaax.server.parameter_server.shard.shard import DelayCompensation
from relaax.server.parameter_server.shard.synchronous import Synchronization

_log = logging.getLogger(__name__)


class AlgorithmModels:
    """The factory of one algorithm's models in one configuration, for the spaces of a worker or a checkpoint."""

    def __init__(self, algorithm: Algorithm, config: ConfigBase, other: OtherTraining | None = None) -> None:
        """`other`: the training whose parameters new models start with."""
        self._algorithm = algorithm
        self._config = config
        self._other = other

    def __call__(self, description: str) -> ModelSpec:
        """Return the model of a worker with this fingerprint.

        Raises ModelRefused if the worker has another algorithm or configuration, or unsupported spaces.
        """
        try:
            _, observation_space, action_space = parse_fingerprint(description)
            ours = fingerprint(self._algorithm.name, self._config, observation_space, action_space)
            difference = first_difference(description, ours)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ModelRefused(f"the worker's fingerprint cannot be read: {error}") from None
        if difference:
            raise differs_from_worker(difference)
        return self._spec(observation_space, action_space)

    def for_checkpoint(self, manifest: Mapping[str, Any]) -> str:
        """Return the fingerprint of this algorithm with its current configuration and the spaces of a checkpoint.

        Raises Damaged if the checkpoint's description cannot be read. Raises ModelRefused if keys that are fixed when a
        run is resumed have changed; the message names all of them.
        """
        try:
            there, observation_space, action_space = parse_fingerprint(json.dumps(manifest["fingerprint"]))
            changed = changed_keys(there["configuration"], self._config)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise Damaged(f"the manifest's fingerprint cannot be read: {error!r}") from None
        if changed and there["algorithm"] == self._algorithm.name:  # `check_origin` refuses another algorithm
            raise ModelRefused(
                f"checkpoint {manifest.get('id')} was made with other values of keys that are fixed when a run is "
                f"resumed: {'; '.join(map(str, changed))}. Use the values that it was made with, or start a new "
                "training at another checkpoint location (relaax run --fresh)"
            )
        return fingerprint(self._algorithm.name, self._config, observation_space, action_space)

    def _spec(self, observation_space: Space, action_space: Space) -> ModelSpec:
        config = self._config
        try:
            declared = self._algorithm.ParameterServer(config, observation_space, action_space)
            initial = np.asarray(declared.initial_parameters(config.seed), np.float32)
            optimizer = declared.optimizer()
            statistics = check_lengths(declared.statistics())
            target = declared.target_interval()
            rate_factors = declared.learning_rates()
        except MemoryError as error:
            raise ModelRefused(f"the model does not fit into memory: {error}") from error
        except Exception as error:
            if isinstance(error, ValueError) and is_deliberate(error):  # spaces that the algorithm does not support
                raise ModelRefused(str(error)) from error
            _log.exception("the algorithm failed to make the model")
            why = describe_error(error, self._algorithm.source)
            raise ModelRefused(
                f"the model cannot be made: {why}; the parameter server's log has the traceback"
            ) from error
        if initial.ndim != 1:
            raise ModelRefused(
                f"{place_of_function(declared.initial_parameters)}: initial_parameters() returned an array of shape "
                f"{list(initial.shape)}, but must return a flat vector"
            )
        try:
            rate_factors = check_rate_factors(rate_factors, len(initial))
        except (ValueError, TypeError) as error:
            raise ModelRefused(f"{place_of_function(declared.learning_rates)}: {error}") from None
        moments = {}
        if self._other is not None:
            initial, moments = self._other.parameters(declared, initial), self._other.statistics(statistics)
        compensation = None
        if config.combine == "delay_compensated":
            compensation = DelayCompensation(config.delay_compensation, config.staleness_bound or 0)
        synchronization = None
        if config.update_patience is not None:
            synchronization = Synchronization(config.update_patience, config.gradient_norm_clipping)
        return ModelSpec(
            initial=initial,
            optimizer=optimizer,
            schedule=config.schedule,
            max_global_step=config.max_global_step,
            max_staleness=config.staleness_bound,
            statistics=statistics,
            moments=moments,
            compensation=compensation,
            target=target,
            rate_factors=rate_factors,
            synchronization=synchronization,
        )
