"""An authenticated local client that takes as much memory of a replay server as it can, until it is killed.

`python -m support.greedy_caller WHAT BYTES SOCKET NAME OWN_PROOF SERVER_PROOF`, the last four in hexadecimal. WHAT:
"samples" requests segments of samples and reads them; "inserts" writes to the memory of inserts. Prints the number of
bytes that it has touched.
"""

from __future__ import annotations

import os
import signal
import sys

from relaax.parameters.interfaces import FlatVector
from relaax.replay.wire import INSERT_NUMBERS
from relaax.transport import segments
from relaax.transport.frames import SAMPLE, Frame, FrameSocket
from relaax.transport.local_socket import Introduction, NoSharedMemory, connect

SAMPLE_BYTES = 2**25
PAGE = 1024  # numbers


def main() -> None:
    what, wanted = sys.argv[1], int(sys.argv[2])
    name, who, own_proof, server_proof = map(bytes.fromhex, sys.argv[3:])
    touched: list[FlatVector] = []
    try:
        frames, inserts = connect(name, Introduction(who.decode(), own_proof, server_proof), INSERT_NUMBERS, 30.0)
    except NoSharedMemory:
        what = "nothing"
    if what == "inserts":
        inserts[: wanted // 4 : PAGE] = 1
        touched = [inserts[: wanted // 4]]
    elif what == "samples":
        touched = samples(frames, wanted)
    print(sum(vector.nbytes for vector in touched), flush=True)
    signal.pause()


def samples(frames: FrameSocket, wanted: int) -> list[FlatVector]:
    """Return segments of samples, read page by page: `wanted` bytes, or fewer if the server closes the connection."""
    touched: list[FlatVector] = []
    while SAMPLE_BYTES * len(touched) < wanted:
        frames.send(Frame(SAMPLE, b"", vector=SAMPLE_BYTES))
        _, descriptor = frames.receive()
        if descriptor is None:
            break
        touched.append(segments.map_(descriptor, SAMPLE_BYTES // 4, writable=False, at_once=False))
        os.close(descriptor)
        touched[-1][::PAGE].sum()
    return touched


if __name__ == "__main__":
    main()
