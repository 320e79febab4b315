"""A worker with synchronous updates, until it is killed.

`python -m support.synchronous_child ADDRESSES FINGERPRINT TRANSPORT MODE`. Prints a line after its first update. Then
it pushes without end (`push`), or computes a gradient without end (`compute`).
"""

from __future__ import annotations

import signal
import sys

import numpy as np

from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import Registration


def main() -> None:
    """Push ones."""
    addresses, fingerprint, transport, mode = sys.argv[1:]
    client = ParameterClient(addresses.split(","), transport=transport)  # type: ignore[arg-type]
    registered = client.register(Registration(fingerprint))
    client.pull()
    gradient = np.ones(registered.parameters, np.float32)
    client.push(gradient, 1)
    print("updated", flush=True)
    while mode == "push":
        client.push(gradient, 1)
    signal.pause()


if __name__ == "__main__":
    main()
