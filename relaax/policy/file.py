"""Policy files: one safetensors file with a description in its metadata.

Arrays: `parameters`, float32 [P], and for each statistic `statistics/NAME/count`, `/mean` and `/m2`, float64. Metadata,
all strings: `format`, `sha256` of the arrays, and `description`, JSON (see `Description`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.checkpoint import Checkpoint, Damaged
from relaax.checkpoint.array_file import Arrays, from_bytes, to_buffers
from relaax.checkpoint.checkpoint import full_vector, not_finite
from relaax.configuration import redacted
from relaax.parameters.moments import STATISTICS, Moments, from_arrays

FORMAT = "relaax-policy-1"
PARAMETERS = "parameters"


class PolicyError(Exception):
    """The file or its input cannot be used. The message gives the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a policy, without secrets.

    fingerprint: the algorithm, its configuration, and the spaces.
    configuration: of the whole run.
    checkpoint: the id of the source checkpoint.
    time: when the checkpoint was saved, Unix time in seconds.
    """

    fingerprint: Mapping[str, Any]
    configuration: Mapping[str, Any]
    seed: int
    global_step: int
    mean_return: float | None
    checkpoint: str
    time: float
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """The contents of a file. `parameters`: float32 [P], read-only."""

    description: Description
    parameters: npt.NDArray[np.float32]
    statistics: Mapping[str, Moments]


def to_file(description: Description, arrays: Arrays) -> list[memoryview]:
    """Return the file's contents as consecutive pieces."""
    texts = {"format": FORMAT, "description": json.dumps(asdict(description)), "sha256": _digest(arrays)}
    return to_buffers(arrays, texts)


def read(path: Path | str) -> PolicyFile:
    """Return the verified contents of a file. Raises PolicyError."""
    if Path(path).exists() and not Path(path).is_file():  # reading a pipe would block
        raise PolicyError(f"{path} cannot be read: a policy must be a regular file")
    try:
        arrays, metadata = from_bytes(np.fromfile(path, np.uint8))
    except OSError as error:
        raise PolicyError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise PolicyError(f"{path} is not a RELAAX policy: {error}; `relaax checkpoints export` writes one") from None
    found = metadata.get("format")
    if found != FORMAT:
        raise PolicyError(
            f"{path} is not a policy that this version can read: its format is {found!r}, not {FORMAT!r}; "
            "`relaax checkpoints export LOCATION FILE` writes one"
        )
    if metadata.get("sha256") != _digest(arrays):
        raise PolicyError(f"{path} is corrupt: its SHA-256 differs")
    try:
        return PolicyFile(Description(**json.loads(metadata["description"])), _parameters(arrays), from_arrays(arrays))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise PolicyError(f"{path} has no valid description: {error!r}") from None


def _parameters(arrays: Arrays) -> npt.NDArray[np.float32]:
    parameters = arrays[PARAMETERS]
    if parameters.dtype != np.float32 or parameters.ndim != 1:
        raise ValueError(f"the parameters are {parameters.dtype} of shape {list(parameters.shape)}")
    wrong = not_finite({PARAMETERS: parameters})
    if wrong is not None:
        raise ValueError(wrong)
    vector: npt.NDArray[np.float32] = np.asarray(parameters, np.float32)
    vector.flags.writeable = False
    return vector


def _digest(arrays: Arrays) -> str:
    sha256 = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        sha256.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode())
        sha256.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()


def description_of(checkpoint: Checkpoint) -> Description:
    """Return the description of a checkpoint, without secrets. Raises Damaged if the manifest is incomplete."""
    manifest = checkpoint.manifest
    try:
        fingerprint = manifest["fingerprint"]
        return Description(
            fingerprint={**fingerprint, "configuration": redacted(fingerprint["configuration"])},
            configuration=redacted(manifest.get("configuration", {})),
            seed=int(manifest.get("seed", 0)),
            global_step=int(manifest["global_step"]),
            mean_return=manifest.get("mean_return"),
            checkpoint=checkpoint.checkpoint_id,
            time=float(manifest["time"]),
            versions=manifest.get("versions", {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"its manifest is incomplete: {error!r}") from None


def policy_of(checkpoint: Checkpoint) -> list[memoryview]:
    """Return the policy file of a checkpoint: its parameters from all shards, and its statistics. Raises Damaged."""
    parameters = np.asarray(full_vector(checkpoint, PARAMETERS), np.float32)
    arrays = {
        name: array for part in checkpoint.parts.values() for name, array in part.items() if name.startswith(STATISTICS)
    }
    return to_file(description_of(checkpoint), {PARAMETERS: parameters, **arrays})
