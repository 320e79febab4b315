"""The picture of the first environment: requested from its worker only while somebody asks for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.pictures import MAX_PICTURE_BYTES
from relaax.server.parameter_server.service.registry import RegisteredWorker
from relaax.server.service_errors import InvalidRequest


class Pictures:
    """The newest picture. Each call of `next` requests one further picture from one worker. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wanted_from = ""
        self._newest: pb.Picture | None = None
        self._number = 0
        self._arrived = 0.0

    def next(self, workers: Sequence[RegisteredWorker]) -> pb.GetPictureResponse:
        """Return the newest picture, and request the next one from the worker of the first environment."""
        acting = [worker for worker in workers if worker.purpose.acts]
        first = min(acting, key=lambda worker: (not worker.purpose.trains, worker.actors[0]), default=None)
        with self._lock:
            self._wanted_from = first.worker_id if first is not None else ""
            if self._newest is None:
                return pb.GetPictureResponse()
            age = self._clock() - self._arrived
            return pb.GetPictureResponse(picture=self._newest, number=self._number, age_seconds=age)

    def is_wanted_from(self, worker_id: str) -> bool:
        """Return whether this worker's next report shall contain a picture. Called for each push."""
        return self._wanted_from == worker_id

    def add(self, worker_id: str, picture: pb.Picture) -> None:
        """Store a picture that was requested. Other pictures are ignored."""
        with self._lock:
            if self._wanted_from == worker_id:
                self._wanted_from = ""
                self._newest, self._number, self._arrived = picture, self._number + 1, self._clock()


def check_picture(picture: pb.Picture) -> None:
    """Raise InvalidRequest if a picture is too large, or if its bytes do not fit its height and width."""
    pixels, size = picture.height * picture.width, len(picture.pixels)
    if size > MAX_PICTURE_BYTES or size not in (pixels, 3 * pixels) or (size == 0) != (pixels == 0):
        raise InvalidRequest(
            f"a picture has at most {MAX_PICTURE_BYTES:,} bytes, one or three for each pixel, not {size:,} bytes for "
            f"{picture.height} x {picture.width} pixels"
        )
