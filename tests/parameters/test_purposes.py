"""The purposes of registered processes."""

from __future__ import annotations

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.interfaces import PURPOSES


def test_every_role_of_the_protocol_is_a_purpose() -> None:
    assert set(PURPOSES) == set(pb.Role.values()) - {pb.ROLE_UNSPECIFIED}
