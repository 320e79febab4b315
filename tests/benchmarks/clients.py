"""Processor time per step of each language's client: python tests/benchmarks/clients.py [--steps K] [LANGUAGE ...]

Each client plays its own CartPole against a server that answers at once. The difference between a short and a long run
excludes the start. The result is the client's processor time (user and system) per step of one environment, the best of
three. It includes the physics of CartPole: at most one microsecond, and more in Ruby and Python.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import socket
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402

from relaax.client import Box, Discrete, TrainingFinished, VectorClient  # noqa: E402
from relaax.rlx import rlx_pb2  # noqa: E402
from support.client_languages import LANGUAGES, Language, placed  # noqa: E402

START = 3000  # steps of the shorter run
COUNTS = (1, 16)  # environments
BUILDS = ROOT / "build" / "clients"


def framed(message: rlx_pb2.ServerMessage) -> bytes:
    payload = message.SerializeToString()
    return struct.pack(">I", len(payload)) + payload


def serve(listener: socket.socket, count: int, steps: int) -> None:
    """Accept one client, answer `steps` steps, then send `training_finished`."""
    limits = {"max_frame_bytes": 1 << 20, "idle_timeout_seconds": 600, "heartbeat_seconds": 60}
    limits |= {"max_metric_name_bytes": 128, "max_metric_names": 256}
    welcome = rlx_pb2.ServerMessage(welcome={"protocol_version": 1, "session_id": "s", "limits": limits})
    answers = [_actions([random.getrandbits(1) for _ in range(count)]) for _ in range(64)]
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer, asked = b"", 0
    while data := sock.recv(1 << 16):
        buffer += data
        while len(buffer) >= 4 and len(buffer) >= (end := 4 + int.from_bytes(buffer[:4], "big")):
            kind, buffer = buffer[4] >> 3, buffer[end:]
            if kind == 1:
                sock.sendall(framed(welcome))
            elif kind == 6:  # ping of the Python client; its nonce is 1
                sock.sendall(framed(rlx_pb2.ServerMessage(pong={"nonce": 1})))
            elif kind in (2, 3):
                asked += 1
                over = asked > steps
                sock.sendall(framed(rlx_pb2.ServerMessage(training_finished={})) if over else answers[asked % 64])
    sock.close()


def _actions(chosen: list[int]) -> bytes:
    array = rlx_pb2.Array(dtype=rlx_pb2.DTYPE_INT64, shape=[len(chosen)], data=np.array(chosen, "<i8").tobytes())
    return framed(rlx_pb2.ServerMessage(actions={"action": [array]}))


def measured(command: list[str], folder: Path, count: int, steps: int) -> float:
    """Return the client's processor seconds in one run."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = multiprocessing.get_context("fork").Process(target=serve, args=(listener, count, steps))
        server.start()
        words = [*command, f"127.0.0.1:{listener.getsockname()[1]}", "--environments", str(count), "--seed", "1"]
        process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, words
        server.join()
    return usage.ru_utime + usage.ru_stime


def per_step(command: list[str], folder: Path, count: int, steps: int) -> float:
    """Return microseconds of processor time per step of one environment, the best of three."""
    short, long = (min(measured(command, folder, count, k) for _ in range(3)) for k in (START, START + steps))
    return (long - short) / steps / count * 1e6


def cartpole(address: str, count: int) -> None:
    """Play CartPole with the Python client."""
    constants = np.array([0.02, 0.02, 0.02, 0.02])
    state = np.random.uniform(-0.05, 0.05, (count, 4))
    steps = np.zeros(count)
    spaces = {"observation_space": Box(-math.inf, math.inf, (4,)), "action_space": Discrete(2)}
    with VectorClient(address, environments=count, **spaces) as client:
        actions = client.init(state.astype(np.float32))
        while True:
            _, speed, angle, turning = state.T
            sine, cosine = np.sin(angle), np.cos(angle)
            push = (np.where(actions == 1, 10, -10) + 0.05 * turning**2 * sine) / 1.1
            twist = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
            state = state + constants * np.stack([speed, push - 0.05 * twist * cosine / 1.1, turning, twist], 1)
            steps += 1
            over = (abs(state[:, 0]) > 2.4) | (abs(state[:, 2]) > math.radians(12))
            cut = ~over & (steps >= 500)
            final, ended = state, over | cut
            if ended.any():
                state = np.where(ended[:, None], np.random.uniform(-0.05, 0.05, (count, 4)), state)
                steps[ended] = 0
            seen, last = state.astype(np.float32), final.astype(np.float32) if ended.any() else None
            actions = client.step(np.ones(count), seen, over, cut, final_states=last)


def built(language: Language) -> Path:
    out = BUILDS / language.name
    out.mkdir(parents=True, exist_ok=True)
    for command in language.build:
        language.run(command, out)
    return out


def print_times_of_calls() -> None:
    """Print the wall-clock time of a step of the C# client by Step, StepAsync and BeginStep."""
    folder, program = LANGUAGES["csharp"].folder, built(LANGUAGES["csharp"]) / "Speed.exe"
    command = ["mcs", "-langversion:7", f"-out:{program}", "-recurse:src/*.cs", "tests/Speed.cs"]
    subprocess.run(command, cwd=folder, check=True)
    for count in COUNTS:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = multiprocessing.get_context("fork").Process(target=serve, args=(listener, count, 10**9))
            server.start()
            print(f"{count} environments: Step, StepAsync, BeginStep", flush=True)
            subprocess.run(["mono", program, f"127.0.0.1:{listener.getsockname()[1]}", str(count)], check=True)
            server.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("languages", nargs="*", default=["python", *LANGUAGES])
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--calls", action="store_true", help="measure the calls of the C# client that do not block")
    parser.add_argument("--environments", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seed", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.environments:  # the Python client itself, started by this program
        try:
            cartpole(options.languages[0], options.environments)
        except TrainingFinished:
            return
    if options.calls:
        print_times_of_calls()
        return
    print("language,lines,of_code," + ",".join(f"us_{n}" for n in COUNTS))
    for name in options.languages:
        if name == "python":
            command, folder, lines = [sys.executable, __file__], ROOT, ("", "")
        else:
            language = LANGUAGES[name]
            command, folder, lines = placed(language.cartpole, built(language)), language.folder, language.lines()
        figures = [f"{per_step(command, folder, count, options.steps):.1f}" for count in COUNTS]
        print(",".join([name, *map(str, lines), *figures]), flush=True)


if __name__ == "__main__":
    main()
