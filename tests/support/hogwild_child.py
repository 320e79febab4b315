"""A worker that updates parameters in shared memory as fast as it can, until it is killed.

`python -m support.hogwild_child ADDRESS FINGERPRINT`. Prints a line after its first update.
"""

from __future__ import annotations

import sys

import numpy as np

from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import Registration


def main() -> None:
    """Update for ever, each element by the same, so that half an update could be told."""
    address, fingerprint = sys.argv[1:]
    bridge = ParameterClient(address, transport="hogwild")
    registered = bridge.register(Registration(fingerprint))
    bridge.pull()
    gradient = np.ones(registered.parameters, np.float32)
    bridge.push(gradient, 1)
    print("updating", flush=True)
    while True:
        bridge.push(gradient, 1)


if __name__ == "__main__":
    main()
