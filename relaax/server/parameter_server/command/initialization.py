"""The parameters with which a new training starts, from a checkpoint of another one."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from relaax.algorithm_base import ParameterServerBase
from relaax.algorithm_base.network import IMAGE, OBSERVATION
from relaax.checkpoint import Checkpoint, CheckpointManager, Damaged, StoreError
from relaax.checkpoint.checkpoint import full_vector
from relaax.checkpoint.location import open_location
from relaax.configuration import ConfigurationError, ParameterServerSection
from relaax.hosting.fingerprint import SPACES, parse_fingerprint, space_text
from relaax.hosting.loader import load_algorithm
from relaax.libraries import missing
from relaax.optim.vector import FlatVector
from relaax.parameters.moments import Moments, from_arrays
from relaax.server.parameter_server.shard.model import ModelRefused

_log = logging.getLogger(__name__)

INPUT_STATISTICS = (IMAGE, OBSERVATION)
"""The statistics that belong to the network: it has learned from inputs that were normalised by them."""
Layout = Mapping[str, tuple[int, ...]]


class OtherTraining:
    """A checkpoint of another training, whose parameters a new model starts with."""

    def __init__(self, checkpoint: Checkpoint, location: str) -> None:
        self._checkpoint, self._location = checkpoint, location

    def parameters(self, declared: ParameterServerBase, initial: FlatVector) -> FlatVector:
        """Return the checkpoint's parameters for a model, whose own initial ones are `initial`.

        Raises ModelRefused, with the first difference, if the spaces or the network differ.
        """
        where = f"{self._location}/{self._checkpoint.checkpoint_id}"
        try:
            difference = self._difference(declared, initial)
            if difference is None:
                _log.info("the new model starts with the parameters of %s", where)
                return np.asarray(full_vector(self._checkpoint, "parameters"), np.float32)
        except (Damaged, LookupError, ValueError, TypeError, AttributeError) as error:
            difference = f"it cannot be read: {error}"
        raise ModelRefused(
            f"initialize-from: {where} does not fit the new model: {difference}. Use the same network and spaces, or "
            "omit initialize-from"
        )

    def statistics(self, lengths: Mapping[str, int]) -> dict[str, Moments]:
        """Return the checkpoint's statistics of inputs that the new model has too, with their `lengths`."""
        arrays = {name: array for part in self._checkpoint.parts.values() for name, array in part.items()}
        found = from_arrays(arrays)
        return {
            name: found[name]
            for name in INPUT_STATISTICS
            if name in found and name in lengths and found[name].size == lengths[name]
        }

    def _difference(self, declared: ParameterServerBase, initial: FlatVector) -> str | None:
        there, observation_space, action_space = parse_fingerprint(json.dumps(self._checkpoint.manifest["fingerprint"]))
        for name, other, own in zip(
            SPACES,
            (observation_space, action_space),
            (declared.observation_space, declared.action_space),
            strict=True,
        ):
            if str(other) != str(own):
                return f"its {name.replace('_', ' ')} is {space_text(there[name])}, not {own}"
        layout = declared.layout()
        if layout:
            try:
                algorithm = load_algorithm(there["algorithm"], Path())
                config = algorithm.configure({**there["configuration"], "path": there["algorithm"]})
                other_layout = algorithm.ParameterServer(config, observation_space, action_space).layout()
            except ConfigurationError:  # of another version, or an own algorithm
                other_layout = {}
            if other_layout and (difference := _first_difference(other_layout, layout)):
                return difference
        size = len(full_vector(self._checkpoint, "parameters"))
        return None if size == len(initial) else f"it has {size} parameters, not {len(initial)}"


def _first_difference(other: Layout, own: Layout) -> str | None:
    for name in dict.fromkeys([*own, *other]):
        if other.get(name) != own.get(name):
            texts = [f"{list(shape)}" if shape is not None else "missing" for shape in (other.get(name), own.get(name))]
            return f"its array {name} is {texts[0]}, that of the new model is {texts[1]}"
    return None if list(other) == list(own) else "its arrays have another order"


def other_training(section: ParameterServerSection) -> OtherTraining | None:
    """Return the checkpoint that `initialize_from` names; None without one. Raises ConfigurationError.

    A location stands for its newest checkpoint. A folder may also be a single checkpoint.
    """
    where = section.initialize_from
    if where is None:
        return None
    key = f"relaax-parameter-server.initialize-from: {where}"
    location, wanted = where, None
    if not where.startswith("s3://") and (Path(where) / "manifest.json").is_file():
        location, wanted = str(Path(where).parent), Path(where).name
    try:
        manager = CheckpointManager(open_location(location, section.aws_keys, section.aws_endpoint))
        for checkpoint_id in [wanted] if wanted else manager.published():
            try:
                return OtherTraining(manager.load(checkpoint_id), manager.store.location)
            except Damaged as error:
                if wanted:
                    raise ConfigurationError(f"{key}: {error}") from None
                _log.warning("skipped unusable checkpoint %s: %s", checkpoint_id, error)
    except (StoreError, ModuleNotFoundError) as error:
        raise ConfigurationError(f"{key}: {missing(error) or error}") from None
    raise ConfigurationError(f"{key}: there is no usable checkpoint")
