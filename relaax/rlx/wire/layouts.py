"""Encode and decode the most frequent messages, steps and actions, without a Protobuf library.

After the hello nearly all of those bytes are known: element types, shapes and sizes of arrays never change. So a
message is written by joining the known bytes with the arrays', and read by finding the known bytes where they must be.
A layout writes what `encoding` would write, byte for byte, and reads what `decoding` would read. If it does not
recognise a message it says so with None, and the general way has the last word.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relaax.rlx import rlx_pb2
from relaax.rlx.array_spaces import ElementarySpace, Leaf
from relaax.rlx.messages import Actions, Hello, Leaves, Mask, Step
from relaax.rlx.spaces import Space
from relaax.rlx.wire.arrays import dtype_number
from relaax.rlx.wire.framing import Piece
from relaax.rlx.wire.varint import varint

_LENGTH_DELIMITED = 2  # Protobuf's wire type of strings, messages and packed numbers
_DOUBLE = np.dtype("<f8")
_FALSE_AND_TRUE = b"\0\1"
_FEW_BYTES = 1024


class StepLayout:
    """Steps that report no episodes."""

    def __init__(self, hello: Hello) -> None:
        n = self._environments = hello.environments
        step = rlx_pb2.Step.DESCRIPTOR.fields_by_name
        self._envelope = _Envelope(rlx_pb2.ClientMessage.DESCRIPTOR.fields_by_name["step"].number)
        self._reward = _head(step["reward"].number, 8 * n)
        self._observation = _Arrays(step["observation"].number, hello.observation_space, n)
        self._terminated = _head(step["terminated"].number, n)
        self._truncated = _head(step["truncated"].number, n)
        self._final = _Arrays(step["final_observation"].number, hello.observation_space, n)
        self._first = _head(step["first"].number, n)
        self._least = len(self._reward) + 8 * n + self._observation.nbytes
        around = self._envelope.around(self._least)
        self._plain, self._plain_length = around + self._reward, len(around) + self._least

    def write(self, step: Step) -> tuple[list[Piece], int] | None:
        """Return the payload of `step`, whose arrays are those of the hello, in pieces, and its length in bytes.

        None for a step that reports episodes.
        """
        if step.episodes:
            return None
        pieces: list[Piece] = [self._plain, _in_order(step.reward)]
        self._observation.write(step.observation, pieces)
        if step.terminated is step.truncated is step.first is None and step.final_observation is None:
            return pieces, self._plain_length
        size = self._least + self._write_mask(self._terminated, step.terminated, pieces)
        size += self._write_mask(self._truncated, step.truncated, pieces)
        if step.final_observation is not None:
            self._final.write(step.final_observation, pieces)
            size += self._final.nbytes
        size += self._write_mask(self._first, step.first, pieces)
        around = self._envelope.around(size)
        pieces[0] = around + self._reward
        return pieces, len(around) + size

    def read(self, payload: bytes) -> Step | None:
        """Return the step in `payload`, or None. Arrays of one byte per element are views of it."""
        plain = payload.startswith(self._plain)
        at = len(self._plain) if plain else self._begin(payload)
        end = at + 8 * self._environments
        if at == 0 or end > len(payload):
            return None
        reward: Any = np.frombuffer(payload, _DOUBLE, self._environments, at).copy()  # aligned
        observation = self._observation.read(payload, end)
        if observation is None:
            return None
        end += self._observation.nbytes
        if plain:
            return Step(reward, observation) if end == len(payload) else None
        terminated, end = self._read_mask(self._terminated, payload, end)
        truncated, end = self._read_mask(self._truncated, payload, end)
        final = self._final.read(payload, end)
        if final is not None:
            end += self._final.nbytes
        first, end = self._read_mask(self._first, payload, end)
        if end != len(payload):
            return None
        return Step(reward, observation, terminated, truncated, final, first)

    def _begin(self, payload: bytes) -> int:
        """Return where the rewards begin in a step with more than the least, 0 if they do not."""
        head = self._envelope.of(len(payload)) + self._reward
        return len(head) if payload.startswith(head) else 0

    def _write_mask(self, head: bytes, mask: Mask | None, pieces: list[Piece]) -> int:
        """Return how many bytes were added: none for a mask if nothing is true."""
        if mask is None or not np.count_nonzero(mask):
            return 0
        pieces += [head, mask.tobytes()]
        return len(head) + self._environments

    def _read_mask(self, head: bytes, payload: bytes, at: int) -> tuple[Mask | None, int]:
        """Return the mask at `at` and where it ends; None, and `at` itself, if there is none."""
        if not payload.startswith(head, at):
            return None, at
        begin = at + len(head)
        said = payload[begin : begin + self._environments]
        if len(said) != self._environments or said.translate(None, _FALSE_AND_TRUE):
            return None, at  # Protobuf takes any number for true
        return np.frombuffer(said, np.bool_).copy(), begin + len(said)


class ActionsLayout:
    """Actions."""

    def __init__(self, hello: Hello) -> None:
        envelope = _Envelope(rlx_pb2.ServerMessage.DESCRIPTOR.fields_by_name["actions"].number)
        number = rlx_pb2.Actions.DESCRIPTOR.fields_by_name["action"].number
        self._action = _Arrays(number, hello.action_space, hello.environments)
        self._head = envelope.around(self._action.nbytes)
        self._length = len(self._head) + self._action.nbytes

    def write(self, actions: Actions) -> tuple[list[Piece], int]:
        """Return the payload of `actions`, with the hello's arrays, in pieces, and its length in bytes."""
        pieces: list[Piece] = [self._head]
        self._action.write(actions.action, pieces)
        return pieces, self._length

    def read(self, payload: bytes) -> Actions | None:
        """Return the actions in `payload`, or None. Arrays of one byte per element are views of it."""
        if not payload.startswith(self._head) or len(payload) != self._length:
            return None
        action = self._action.read(payload, len(self._head))
        return None if action is None else Actions(action)


class _Arrays:
    """A repeated field of arrays: the leaves of a space, for N environments. `nbytes`: of the whole field."""

    def __init__(self, number: int, space: Space, environments: int) -> None:
        self._leaves = [_leaf(number, element, environments) for element in space.elements()]
        self.nbytes = sum(len(head) + size for head, _, _, size in self._leaves)

    def write(self, leaves: Leaves, pieces: list[Piece]) -> None:
        for (head, _, _, _), leaf in zip(self._leaves, leaves, strict=True):
            pieces.append(head)
            pieces.append(_in_order(leaf))

    def read(self, payload: bytes, at: int) -> Leaves | None:
        """Return the leaves, where the field is at `at`."""
        if at + self.nbytes > len(payload):
            return None
        leaves: Leaves = []
        for head, dtype, shape, size in self._leaves:
            if not payload.startswith(head, at):
                return None
            at += len(head)
            leaf: Any = np.ndarray(shape, dtype, payload, at)
            leaves.append(leaf if dtype.itemsize == 1 else leaf.copy())  # aligned
            at += size
        return leaves


class _Envelope:
    """The envelope of a message: a field of this number, and nothing else."""

    def __init__(self, number: int) -> None:
        self._number = number

    def around(self, size: int) -> bytes:
        """Return the bytes before a message of this size."""
        return _head(self._number, size)

    def of(self, size: int) -> bytes:
        """Return the bytes before a message that fills a payload of this size; none if no message does."""
        for length_bytes in range(1, 6):
            head = _head(self._number, max(0, size - 1 - length_bytes))
            if len(head) == 1 + length_bytes:
                return head
        return b""


def _leaf(number: int, element: ElementarySpace, environments: int) -> tuple[bytes, Any, tuple[int, ...], int]:
    """Return the bytes before the data of a leaf, the data's element type and shape, and how many bytes they are."""
    array = rlx_pb2.Array.DESCRIPTOR.fields_by_name
    shape, size = (environments, *element.shape), environments * element.nbytes
    axes = b"".join(varint(length) for length in shape)
    dtype = bytes([array["dtype"].number << 3, dtype_number(element.dtype)])
    inner = dtype + _head(array["shape"].number, len(axes)) + axes + _head(array["data"].number, size)
    return _head(number, len(inner) + size) + inner, element.dtype, shape, size


def _head(number: int, size: int) -> bytes:
    """Return the Protobuf tag and length before `size` bytes of the field of this number."""
    return bytes([number << 3 | _LENGTH_DELIMITED]) + varint(size)


def _in_order(array: Leaf) -> Piece:
    # A memory view of few bytes costs more than their copy.
    return array.data if array.nbytes > _FEW_BYTES and array.flags.c_contiguous else array.tobytes()
