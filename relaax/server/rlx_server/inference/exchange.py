"""Messages and shared memory between a worker and the inference process.

They use one Unix socket of type SOCK_SEQPACKET for each actor, so that messages need no framing. The worker sends
`HELLO` with two descriptors: a file with its `ActorDescription`, and memory for inputs and outputs. Then it sends the
number of rows that it has written to the memory, and the process answers when it has written the outputs.
"""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from relaax.nn.specification import NetworkSpec
from relaax.transport.segments import FlatVector

HELLO = b"hello"
REQUEST = struct.Struct("<I")
"""Number of rows."""
ANSWER = struct.Struct("<BIQ")
"""Kind, rows of the pass that computed the outputs, version of the parameters. A refusal's text follows."""
COMPUTED, UNAVAILABLE, REFUSED, ENDED = 0, 1, 2, 3
"""Kinds of answers. `ENDED`: training has ended at the global step that is in the place of the version."""
MAX_BYTES = 8192
_NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True)
class ActorDescription:
    """The description of an actor.

    spec: the network. dtype: `uint8` or `float32`, of its inputs. first: index of its first parameter in the vector of
    the parameter server. rows: maximum rows of a request. fingerprint: as for a registration.
    """

    spec: NetworkSpec
    dtype: str
    first: int
    rows: int
    fingerprint: str


DESCRIPTION = TypeAdapter(ActorDescription)


class Workspace:
    """Views of the memory that a worker and the inference process share.

    inputs: [rows, *spec.inputs]. state, after: float32 [rows, spec.state_size], before and after the step. outputs:
    head name -> float32 [rows, width].
    """

    def __init__(self, memory: FlatVector, description: ActorDescription) -> None:
        """`memory`: float32 [`workspace_size`]."""
        spec, rows = description.spec, description.rows
        dtype, shape = np.dtype(description.dtype), (rows, *spec.inputs)
        numbers = _input_numbers(description)
        given = memory[:numbers].view(np.uint8)[: math.prod(shape) * dtype.itemsize]
        self.inputs: npt.NDArray[np.generic] = given.view(dtype).reshape(shape)
        rest, state = memory[numbers:], rows * spec.state_size
        self.state = rest[:state].reshape(rows, spec.state_size)
        self.after = rest[state : 2 * state].reshape(rows, spec.state_size)
        self.outputs: dict[str, FlatVector] = {}
        at = 2 * state
        for head, width in spec.heads.items():
            self.outputs[head] = rest[at : at + rows * width].reshape(rows, width)
            at += rows * width

    def write(self, outputs: Mapping[str, FlatVector], after: FlatVector, first: int, count: int) -> None:
        """Write the outputs of the rows `first` to `first + count` of a pass."""
        for head, output in outputs.items():
            self.outputs[head][:count] = output[first : first + count]
        self.after[:count] = after[first : first + count]


def workspace_size(description: ActorDescription) -> int:
    """Return the length of a workspace's memory in float32 numbers."""
    spec = description.spec
    return _input_numbers(description) + description.rows * (2 * spec.state_size + sum(spec.heads.values()))


def _input_numbers(description: ActorDescription) -> int:
    size = description.rows * math.prod(description.spec.inputs) * np.dtype(description.dtype).itemsize
    return -(-size // _NUMBER_BYTES)


def new_socket() -> socket.socket:
    """Return a socket of the type that both sides use. Raises OSError."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
