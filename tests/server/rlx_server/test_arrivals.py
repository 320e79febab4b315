"""Connections that have not introduced themselves yet."""

from __future__ import annotations

import math
import selectors
import socket

import pytest

from relaax.server.rlx_server import arrivals as module
from relaax.server.rlx_server.arrivals import Arrival, Arrivals


def test_when_to_look_again_at_those_that_say_a_byte_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CRUMB_SECONDS", 60.0)
    with (
        selectors.DefaultSelector() as selector,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        near, _ = listener.accept()
        arrivals = Arrivals(selector, 60)
        arrivals.add(near)
        assert arrivals.due == math.inf, "the kernel calls"
        client.sendall(b"\0")
        near.setblocking(True)
        near.recv(1, socket.MSG_PEEK | socket.MSG_WAITALL)  # it is there
        near.setblocking(False)
        assert arrivals.look(near) is Arrival.WAITING
        assert arrivals.due == 0.0
        assert arrivals.look_again() == []
        assert 0.0 < arrivals.due <= 60.0
        assert arrivals.drop_oldest()
        assert arrivals.due == math.inf
