"""Run play.gd with a Godot, given by words, and pass it the lines of standard input. Its output is that of play.gd.

Godot 3.2 cannot read standard input, and prints its version to standard output.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading


def main() -> None:
    """Run the program until standard input ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = [*sys.argv[1:], "--script", "tests/play.gd", str(listener.getsockname()[1])]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, env={**os.environ, "LANG": "en"}) as game:
            stream, _ = listener.accept()
            threading.Thread(target=send_lines, args=[stream], daemon=True).start()
            with stream.makefile("r", encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    print(line, end="", flush=True)
    sys.exit(game.returncode)


def send_lines(stream: socket.socket) -> None:
    """Send each line of standard input, preceded by its length in 4 bytes."""
    for line in sys.stdin:
        text = line.rstrip("\n").encode("ascii")
        stream.sendall(struct.pack("<I", len(text)) + text)
    stream.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
