"""The parameters of the inference process: pulled in a thread, while the process computes with the previous ones."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from relaax.parameters.interfaces import (
    INFER,
    ParameterClientBase,
    ParameterServerError,
    Pulled,
    Registration,
    TrainingEnded,
)

_log = logging.getLogger(__name__)

PULL_SECONDS = 0.1
"""Minimum time between two pulls."""
END_SECONDS = 2.0


class ParameterSource:
    """The newest parameters of one model. A thread pulls them while they are in use, and when they first arrive.

    newest: the parameters of the last pull; None before the first. failure: the error that has ended the thread;
    None while it runs. After the end of training the last parameters remain.
    """

    def __init__(
        self, fingerprint: str, make_client: Callable[[], ParameterClientBase], server: str, changed: Callable[[], None]
    ) -> None:
        """`server`: the address of the RLX server. `changed` is called in the thread after each pull and failure."""
        self.newest: Pulled | None = None
        self.failure: Exception | None = None
        self._registration = Registration(
            fingerprint,
            environments=0,
            purpose=INFER,
            environment="inference",
            host=socket.gethostname(),
            server=server,
            wants_target=False,
        )
        self._make_client, self._changed = make_client, changed
        self._used, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="parameters", daemon=True)
        self._thread.start()

    def use(self) -> Pulled:
        """Return the newest parameters, and let the thread pull newer ones. There must be some."""
        assert self.newest is not None, "no parameters have arrived"
        self._used.set()
        return self.newest

    def close(self) -> None:
        """End the thread, which deregisters."""
        self._closed.set()
        self._used.set()
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        try:
            client = self._make_client()
            try:
                client.register(self._registration)
                while not self._closed.is_set():
                    self.newest = client.pull()
                    self._changed()
                    self._used.wait()
                    self._used.clear()
                    self._closed.wait(PULL_SECONDS)
            finally:
                client.close()
        except TrainingEnded as end:
            _log.info("inference process: training has ended at global step %d", end.global_step)
            self.failure = end
        except ParameterServerError as error:
            _log.warning("inference process: no newer parameters: %s", error)
            self.failure = error
        except Exception as error:
            _log.exception("inference process: pulling parameters failed")
            self.failure = error
        self._changed()
