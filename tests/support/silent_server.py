"""A server that listens and says nothing, in the place of a replay server."""

from __future__ import annotations

import argparse
import signal
import socket


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--config", "--bind", "--shard", "--set"):
        parser.add_argument(name)
    host, _, port = parser.parse_args().bind.rpartition(":")
    with socket.create_server((host, int(port))):
        print(f"it is listening on {host}:{port}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
