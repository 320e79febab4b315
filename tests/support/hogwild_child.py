"""A worker that updates parameters in shared memory as fast as it can, until it is killed.

`python -m support.hogwild_child ADDRESS FINGERPRINT`. Prints a line after its first update.
"""

from __future__ import annotations

import sys

import numpy as np

from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import Registration


def main() -> None:
    """Push the same value for each element without end, so that a partial update is detectable."""
    address, fingerprint = sys.argv[1:]
    client = ParameterClient(address, transport="hogwild")
    registered = client.register(Registration(fingerprint))
    client.pull()
    gradient = np.ones(registered.parameters, np.float32)
    client.push(gradient, 1)
    print("updating", flush=True)
    while True:
        client.push(gradient, 1)


if __name__ == "__main__":
    main()
