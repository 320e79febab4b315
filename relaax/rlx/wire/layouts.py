"""Faster Protobuf encoders and decoders of steps and actions, the most frequent messages.

After the hello most bytes of these messages are known, because dtypes and shapes of arrays never change. A layout
writes a message by joining the known bytes with the bytes of the arrays, and reads one by comparing the known bytes.
A layout writes the same bytes as `encoding` and returns the same messages as `decoding`. It returns None for a message
that it does not recognise; the codec then uses `encoding` or `decoding`.
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
    """The layout of steps without `episodes`."""

    def __init__(self, hello: Hello) -> None:
        n = self._environments = hello.environments
        step = rlx_pb2.Step.DESCRIPTOR.fields_by_name
        self._envelope = _Envelope(rlx_pb2.ClientMessage.DESCRIPTOR.fields_by_name["step"].number)
        self._reward = _field_header(step["reward"].number, 8 * n)
        self._observation = _Arrays(step["observation"].number, hello.observation_space, n)
        self._terminated = _field_header(step["terminated"].number, n)
        self._truncated = _field_header(step["truncated"].number, n)
        self._final = _Arrays(step["final_observation"].number, hello.observation_space, n)
        self._first = _field_header(step["first"].number, n)
        self._idle = _field_header(step["idle"].number, n)
        self._chosen = _field_header(step["chosen"].number, n)
        self._action = _Arrays(step["action"].number, hello.action_space, n)
        self._plain_size = len(self._reward) + 8 * n + self._observation.nbytes
        header = self._envelope.header(self._plain_size)
        self._plain, self._plain_length = header + self._reward, len(header) + self._plain_size

    def write(self, step: Step) -> tuple[list[Piece], int] | None:
        """Return the payload of a step in pieces, and its length in bytes; None for a step with `episodes`.

        Its arrays must fit the spaces of the hello.
        """
        if step.episodes:
            return None
        pieces: list[Piece] = [self._plain, _to_c_order(step.reward)]
        self._observation.write(step.observation, pieces)
        unmarked = step.terminated is step.truncated is step.first is step.idle is step.chosen is None
        if unmarked and step.final_observation is step.action is None:
            return pieces, self._plain_length
        size = self._plain_size + self._write_mask(self._terminated, step.terminated, pieces)
        size += self._write_mask(self._truncated, step.truncated, pieces)
        if step.final_observation is not None:
            self._final.write(step.final_observation, pieces)
            size += self._final.nbytes
        size += self._write_mask(self._first, step.first, pieces)
        size += self._write_mask(self._idle, step.idle, pieces)
        size += self._write_mask(self._chosen, step.chosen, pieces)
        if step.action is not None:
            self._action.write(step.action, pieces)
            size += self._action.nbytes
        header = self._envelope.header(size)
        pieces[0] = header + self._reward
        return pieces, len(header) + size

    def read(self, payload: bytes) -> Step | None:
        """Return the step in `payload`, or None. Arrays with elements of one byte are views of `payload`."""
        plain = payload.startswith(self._plain)
        at = len(self._plain) if plain else self._reward_offset(payload)
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
        idle, end = self._read_mask(self._idle, payload, end)
        chosen, end = self._read_mask(self._chosen, payload, end)
        action = None if chosen is None else self._action.read(payload, end)
        if action is not None:
            end += self._action.nbytes
        if end != len(payload):
            return None
        return Step(reward, observation, terminated, truncated, final, first, (), idle, chosen, action)

    def _reward_offset(self, payload: bytes) -> int:
        """Return the position of the rewards in a step with optional fields; 0 if the layout does not fit."""
        head = self._envelope.header_for_payload(len(payload)) + self._reward
        return len(head) if payload.startswith(head) else 0

    def _write_mask(self, head: bytes, mask: Mask | None, pieces: list[Piece]) -> int:
        """Append a mask to `pieces`; return the number of bytes, 0 if no element is true."""
        if mask is None or not np.count_nonzero(mask):
            return 0
        pieces += [head, mask.tobytes()]
        return len(head) + self._environments

    def _read_mask(self, head: bytes, payload: bytes, at: int) -> tuple[Mask | None, int]:
        """Return the mask at `at` and its end; None and `at` if no mask is there."""
        if not payload.startswith(head, at):
            return None, at
        begin = at + len(head)
        data = payload[begin : begin + self._environments]
        if len(data) != self._environments or data.translate(None, _FALSE_AND_TRUE):
            return None, at  # Protobuf accepts other numbers as true
        return np.frombuffer(data, np.bool_).copy(), begin + len(data)


class ActionsLayout:
    """The layout of actions without new parameters of environments."""

    def __init__(self, hello: Hello) -> None:
        envelope = _Envelope(rlx_pb2.ServerMessage.DESCRIPTOR.fields_by_name["actions"].number)
        number = rlx_pb2.Actions.DESCRIPTOR.fields_by_name["action"].number
        self._action = _Arrays(number, hello.action_space, hello.environments)
        self._head = envelope.header(self._action.nbytes)
        self._length = len(self._head) + self._action.nbytes

    def write(self, actions: Actions) -> tuple[list[Piece], int] | None:
        """Return the payload of `actions` in pieces, and its length in bytes; None with parameters.

        They must fit the action space.
        """
        if actions.parameters_of or actions.parameters is not None:
            return None
        pieces: list[Piece] = [self._head]
        self._action.write(actions.action, pieces)
        return pieces, self._length

    def read(self, payload: bytes) -> Actions | None:
        """Return the actions in `payload`, or None. Arrays with elements of one byte are views of `payload`."""
        if not payload.startswith(self._head) or len(payload) != self._length:
            return None
        action = self._action.read(payload, len(self._head))
        return None if action is None else Actions(action)


class _Arrays:
    """A repeated field of arrays: the leaves of a space, for N environments. `nbytes`: size of the whole field."""

    def __init__(self, number: int, space: Space, environments: int) -> None:
        self._leaves = [_leaf(number, element, environments) for element in space.elements()]
        self.nbytes = sum(len(head) + size for head, _, _, size in self._leaves)

    def write(self, leaves: Leaves, pieces: list[Piece]) -> None:
        for (head, _, _, _), leaf in zip(self._leaves, leaves, strict=True):
            pieces.append(head)
            pieces.append(_to_c_order(leaf))

    def read(self, payload: bytes, at: int) -> Leaves | None:
        """Return the leaves of the field at `at`, or None."""
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
    """An envelope with a message in the field of this number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def header(self, size: int) -> bytes:
        """Return the bytes before a message of `size` bytes."""
        return _field_header(self._number, size)

    def header_for_payload(self, size: int) -> bytes:
        """Return the bytes before the message in a payload of `size` bytes; b"" if no message has such a size."""
        for length_bytes in range(1, 6):
            head = _field_header(self._number, max(0, size - 1 - length_bytes))
            if len(head) == 1 + length_bytes:
                return head
        return b""


def _leaf(number: int, element: ElementarySpace, environments: int) -> tuple[bytes, Any, tuple[int, ...], int]:
    """Return the bytes before the data of a leaf, and the dtype, shape and size in bytes of the data."""
    array = rlx_pb2.Array.DESCRIPTOR.fields_by_name
    shape, size = (environments, *element.shape), environments * element.nbytes
    axes = b"".join(varint(length) for length in shape)
    dtype = bytes([array["dtype"].number << 3, dtype_number(element.dtype)])
    inner = dtype + _field_header(array["shape"].number, len(axes)) + axes + _field_header(array["data"].number, size)
    return _field_header(number, len(inner) + size) + inner, element.dtype, shape, size


def _field_header(number: int, size: int) -> bytes:
    """Return the Protobuf tag and length before `size` bytes of the field of this number."""
    return bytes([number << 3 | _LENGTH_DELIMITED]) + varint(size)


def _to_c_order(array: Leaf) -> Piece:
    # For few bytes a copy is faster than a memory view.
    return array.data if array.nbytes > _FEW_BYTES and array.flags.c_contiguous else array.tobytes()
