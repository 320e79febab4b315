"""An actor whose outputs the inference process of the RLX server computes."""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.files import anonymous_file
from relaax.nn.interfaces import Actor
from relaax.nn.specification import NetworkSpec
from relaax.parameters.interfaces import (
    MetricsRecorder,
    ParameterServerError,
    ParameterServerUnavailable,
    TrainingEnded,
)
from relaax.server.rlx_server.inference.exchange import (
    ANSWER,
    COMPUTED,
    DESCRIPTION,
    ENDED,
    HELLO,
    MAX_BYTES,
    REQUEST,
    UNAVAILABLE,
    ActorDescription,
    Workspace,
    new_socket,
    workspace_size,
)
from relaax.transport import segments
from relaax.transport.local_socket import failure_text

Array = npt.NDArray[np.float32]

_log = logging.getLogger(__name__)

RETRY_SECONDS = 0.1
ROWS = "inference/rows"
"""Metric: the rows of the pass that computed the outputs, of all workers."""
VERSION = "inference/version"
"""Metric: the version of the parameters that computed the outputs."""


class InferenceUnavailable(ParameterServerUnavailable):
    """The inference process did not answer within the bounded wait."""


class SharedActor(Actor):
    """An actor that sends its inputs to the inference process, through shared memory, and waits for the outputs.

    The process has its own parameters, which are at most a pull older than those of the parameter server. So the
    parameters of `set_parameters` are only checked; its mean is subtracted here. If the process ends, the request is
    repeated when the server has restarted it.

    version: the version of the parameters that computed the last outputs.
    """

    def __init__(
        self,
        address: bytes,
        patience: float,
        fingerprint: str,
        metrics: MetricsRecorder,
        spec: NetworkSpec,
        input_dtype: Any,
        first: int,
    ) -> None:
        """`address`: the socket of the process. `patience`: maximum seconds of a request.

        For the other arguments see `ActorDescription`.
        """
        self._address, self._patience, self._metrics = address, patience, metrics
        self._layout = spec.layout()
        self._description = ActorDescription(spec, np.dtype(input_dtype).name, first, 1, fingerprint)
        self._mean: Array | None = None
        self._socket: socket.socket | None = None
        self._workspace: Workspace | None = None
        self.version = 0

    def set_parameters(self, parameters: Array, mean: Array | None = None) -> None:
        self._layout.views(parameters)  # raises ValueError if the length is wrong
        self._mean = mean

    def act(self, inputs: npt.NDArray[Any], state: Array, keep: int | None = None) -> tuple[dict[str, Array], Array]:
        """See `Actor.act`. Raises InferenceUnavailable, and the errors of the parameter server."""
        given = self._description
        count, dtype = len(inputs), given.dtype
        if self._mean is not None and inputs.dtype == np.uint8:
            inputs, dtype = np.subtract(inputs, self._mean, dtype=np.float32) / np.float32(255), "float32"
        if count > given.rows or dtype != given.dtype:
            self.close()
            self._description = replace(given, dtype=dtype, rows=max(count, given.rows))
        ends = time.monotonic() + self._patience
        while True:
            try:
                kind, rows, number, text = self._ask(inputs, state, ends)
                break
            except OSError as error:
                self.close()
                if time.monotonic() + RETRY_SECONDS >= ends:
                    raise InferenceUnavailable(
                        f"the inference process has not answered within {self._patience:g} s: {failure_text(error)}"
                    ) from None
                _log.info("the inference process did not answer (%s): trying again", failure_text(error))
                time.sleep(RETRY_SECONDS)
        if kind != COMPUTED:
            self.close()
            if kind == ENDED:
                raise TrainingEnded(number)
            raise (ParameterServerUnavailable if kind == UNAVAILABLE else ParameterServerError)(text)
        assert self._workspace is not None, "an answer needs a connection"
        self.version = number
        self._metrics.scalar(ROWS, rows)
        self._metrics.scalar(VERSION, number)
        outputs = {head: output[:count].copy() for head, output in self._workspace.outputs.items()}
        return outputs, self._workspace.after[:count].copy()

    def _ask(self, inputs: npt.NDArray[Any], state: Array, ends: float) -> tuple[int, int, int, str]:
        """Send a request, and return the answer: kind, rows, a number and a text. Raises OSError."""
        sock, workspace = self._connected()
        self._socket = None  # so that an interrupted request ends the connection
        workspace.inputs[: len(inputs)] = inputs
        workspace.state[: len(inputs)] = state
        sock.settimeout(max(RETRY_SECONDS, ends - time.monotonic()))
        try:
            sock.send(REQUEST.pack(len(inputs)))
            answer = sock.recv(MAX_BYTES)
        except BaseException:
            sock.close()
            raise
        if len(answer) < ANSWER.size:
            sock.close()
            raise ConnectionResetError("it has ended")
        self._socket = sock
        return (*ANSWER.unpack_from(answer), answer[ANSWER.size :].decode("utf-8", "replace"))

    def _connected(self) -> tuple[socket.socket, Workspace]:
        """Return the connection and its memory. Without a connection, connect first. Raises OSError."""
        if self._socket is not None and self._workspace is not None:
            return self._socket, self._workspace
        descriptor, memory = segments.make(workspace_size(self._description))
        try:
            with anonymous_file() as file:
                file.write(DESCRIPTION.dump_json(self._description))
                file.flush()
                sock = new_socket()
                try:
                    sock.settimeout(self._patience)
                    sock.connect(self._address)
                    socket.send_fds(sock, [HELLO], [file.fileno(), descriptor])
                except BaseException:
                    sock.close()
                    raise
        finally:
            os.close(descriptor)
        self._socket, self._workspace = sock, Workspace(memory, self._description)
        return self._socket, self._workspace

    def close(self) -> None:
        """End the connection to the process."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
