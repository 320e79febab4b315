#!/usr/bin/env python3
"""Virtual environments of the peers that RELAAX is compared with, each with its own pinned packages.

They are created once, in the folder --venvs outside the checkout. An environment whose pins changed is created again.
This needs pip and PyPI. PyPI's torch for Linux includes CUDA, which takes gigabytes. The CPU version is smaller and
sufficient here:

    PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu python tests/benchmarks/peers/venvs.py
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv
from pathlib import Path

DEFAULT = Path.home() / ".cache" / "relaax-peers"
STAMP = "relaax-peers.txt"
COMMON = ("torch==2.13.0", "ale-py==0.12.1", "numpy==2.4.6", "opencv-python-headless==5.0.0.93")
PEERS = {
    "sb3": ("stable-baselines3==2.9.2", "gymnasium==1.4.0", *COMMON),
    "rllib": ("ray[rllib]==2.60.0", "gymnasium==1.2.2", *COMMON),  # required by this version of ray
    # The last versions that serve RLlib's PolicyClient refuse its clients: docs/from-rllib.md.
    "rllib_client": ("ray[rllib]==2.30.0", "gymnasium==0.28.1", "torch==2.13.0", "numpy==1.26.4", "pyarrow==17.0.0"),
    "cpprb": ("cpprb==11.0.0", "numpy==2.4.6"),
}


def python_of(peer: str, venvs: Path) -> Path:
    """Return the interpreter of a peer's virtual environment. Create the environment if it does not exist.

    Raises CalledProcessError if pip fails. The reason is in pip's output.
    """
    folder = venvs.resolve() / peer
    python = folder / "bin" / "python"
    pins = "\n".join(PEERS[peer]) + "\n"
    stamp = folder / STAMP
    if not stamp.is_file() or stamp.read_text("utf-8") != pins:
        print(f"creating {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS[peer]], check=True)
        stamp.write_text(pins, encoding="utf-8")  # last, so that an interrupted installation is repeated
    return python


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venvs", type=Path, default=DEFAULT, help="folder of the environments (%(default)s)")
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"peers to install ({', '.join(PEERS)}; all)")
    options = parser.parse_args(arguments)
    unknown = [peer for peer in options.peers if peer not in PEERS]
    if unknown:
        parser.error(f"there is no peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    for peer in options.peers or PEERS:
        print(python_of(peer, options.venvs))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
