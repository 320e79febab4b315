"""How a worker introduces itself, as a message."""

from __future__ import annotations

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.interfaces import Registration


def registration_message(registration: Registration, worker_id: str) -> pb.RegisterRequest:
    """Return the question of a worker that wants to take part under this name."""
    return pb.RegisterRequest(
        worker_id=worker_id,
        session_id=registration.session_id,
        environments=registration.environments,
        fingerprint=registration.fingerprint,
        role=pb.Role.Name(registration.purpose.number),
        frame_skip=registration.frame_skip,
        environment=registration.environment,
        host=registration.host,
        server=registration.server,
        client=registration.client,
    )
