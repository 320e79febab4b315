"""A server that listens and never answers, in place of a replay server."""

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
        print(f"silent server listening on {host}:{port}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
