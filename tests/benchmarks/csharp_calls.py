"""Time of a step of the C# client by each kind of call: python tests/benchmarks/csharp_calls.py [ENVIRONMENTS ...]

The server answers at once. protocol/clients/csharp/tests/Speed.cs is the client.
"""

from __future__ import annotations

import multiprocessing
import socket
import subprocess
import sys
import tempfile

from clients import serve

from support.client_languages import LANGUAGES

STEPS = 10**9  # more than the client plays


def main(counts: list[str]) -> None:
    """Print the times of Step, StepAsync and BeginStep for each number of environments."""
    with tempfile.TemporaryDirectory() as folder:
        program, sources = f"{folder}/speed.exe", ("-recurse:src/*.cs", "tests/Speed.cs")
        command = ["mcs", "-langversion:7", f"-out:{program}", *sources]
        subprocess.run(command, cwd=LANGUAGES["csharp"].folder, check=True)
        for count in counts or ["1", "16"]:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                context = multiprocessing.get_context("fork")
                server = context.Process(target=serve, args=(listener, int(count), STEPS))
                server.start()
                print(f"{count} environments: Step, StepAsync, BeginStep", flush=True)
                subprocess.run(["mono", program, f"127.0.0.1:{listener.getsockname()[1]}", count], check=True)
                server.join()


if __name__ == "__main__":
    main(sys.argv[1:])
