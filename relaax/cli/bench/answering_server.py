"""An RLX server that answers every step of its only client at once with the same actions.

`python -m relaax.cli.bench.answering_server`
"""

from __future__ import annotations

import os
import socket

import numpy as np

from relaax import rlx
from relaax.server.rlx_server.connection.channel import PeerGone
from relaax.server.rlx_server.connection.peer import Peer

PATIENCE_SECONDS = 60.0


def serve(listener: socket.socket) -> None:
    """Serve one client until it leaves."""
    accepted, _ = listener.accept()
    lifeline, _held = os.pipe()  # only its client ends this server
    peer = Peer(accepted, rlx.ServerConnection(), lifeline)
    try:
        hello = peer.receive(PATIENCE_SECONDS)
        assert isinstance(hello, rlx.Hello)
        peer.send(rlx.Welcome("benchmark", "none", peer.connection.limits))
        n = hello.environments
        answer = rlx.Actions([np.zeros((n, *e.shape), e.dtype) for e in hello.action_space.elements()])
        while not isinstance(message := peer.receive(PATIENCE_SECONDS), rlx.Bye):
            if isinstance(message, rlx.Init | rlx.Step):
                peer.answer(answer)
            elif isinstance(message, rlx.Ping):
                peer.send(rlx.Pong(message.nonce))
    except PeerGone:
        pass
    finally:
        peer.close()


def main() -> None:
    """Listen on a free local port, and print it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"the answering server is listening on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
        serve(listener)


if __name__ == "__main__":
    main()
