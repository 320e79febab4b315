#!/usr/bin/env python3
"""Run races of TORCS against an RLX server: `main HOST:PORT TRACK[,TRACK...] [N]`.

TRACK is a track of the game, such as g-track-1. With several tracks, the seed and the index of a car select its track.
Each of the N cars has its own race, in a process of TORCS without a display, and its own connection: its robot
(driver/relaax.cpp) connects to the server with the client for C. An action, steering and pedals, is held for 5 ticks of
0.02 s. The reward is the distance along the track in metres.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

try:
    from relaax.client import RunSummary, command, run
    from relaax.client.connection.address import SERVERLESS, parse_address
    from relaax.client.connection.client import tls_context
    from relaax.client.program import families
except ModuleNotFoundError as error:
    if error.name != "relaax":
        raise
    raise SystemExit("this Python has no relaax: activate its environment, or pip install . in a checkout") from None

PROGRAM = "TORCS/main"
SEEDS = 2**23  # TORCS reads numbers as float32
Tracks = Sequence[tuple[str, str]]  # category and name


def main(arguments: argparse.Namespace) -> RunSummary:
    """Start the races, wait until they end, and close them."""
    settings = command.settings(arguments)
    check_arguments(arguments)
    racing = command.sibling_module(__package__, "race")
    tracks = [racing.find_track(name) for name in arguments.name.split(",")]
    racing.require_car(arguments.car)
    racing.require_driver()
    if arguments.seed is None:
        arguments.seed = random.randrange(SEEDS)
    if not needs_relay(arguments):
        return run_directly(racing, arguments, tracks, settings)
    game = command.sibling_module(__package__, "game")
    indices = range(arguments.environments)
    cars = game.Cars(
        [partial(start_relayed_race, racing, arguments, tracks, index) for index in indices],
        arguments.start == "anywhere",
    )
    try:
        settings |= {"seed": arguments.seed, "frame_skip": arguments.frame_skip, "environment": arguments.name}
        return run(cars, **settings)
    finally:
        cars.close()


def check_arguments(arguments: argparse.Namespace) -> None:
    """Raise command.UsageError for options that these races do not support."""
    if arguments.display or arguments.video is not None:
        raise command.UsageError("these races have no screen: --record FOLDER writes where the first car drives")
    if arguments.metric:
        raise command.UsageError("--metric: the robot sends distance, mean_speed and lap_seconds by itself")
    if arguments.record is not None and not arguments.record.is_dir():
        raise command.UsageError(f"--record: there is no folder {arguments.record}")
    if arguments.record is not None and arguments.connections > 1:
        raise command.UsageError(f"--record is for one connection, and there are {arguments.connections}")


def needs_relay(arguments: argparse.Namespace) -> bool:
    """Return whether this program must connect to the agent, because the robot's client for C cannot."""
    if arguments.address in SERVERLESS or arguments.measure is not None or arguments.codec != "protobuf":
        return True
    several = any(character in arguments.address for character in "/,@")  # several servers, their file, or a WebSocket
    return several or tls_context(arguments.tls, arguments.tls_ca) is not None


def start_relayed_race(
    racing: Any, arguments: argparse.Namespace, tracks: Tracks, index: int, address: str, token: str, seed: int
) -> Any:
    """Start the race of car number `index`, whose robot connects to this program."""
    track = tracks[(arguments.seed + index) % len(tracks)]
    return racing.Race(track, arguments.car, {**robot_keys(arguments, address, index), "seed": seed}, token, quiet=True)


def run_directly(racing: Any, arguments: argparse.Namespace, tracks: Tracks, settings: dict[str, Any]) -> RunSummary:
    """Start races whose robots connect to the server, and wait until they end."""
    name, port = parse_address(arguments.address)
    host = f"[{name}]" if ":" in name else name
    count = arguments.environments
    with racing.Grid() as grid:
        for index in range(count):
            own = robot_keys(arguments, f"{host}:{port}", index)
            for name in ("episodes", "steps"):
                if settings[name] is not None:
                    own[name] = (settings[name] + index) // count
            if 0 not in (own.get("episodes"), own.get("steps")):  # a car without a share does not start
                track = tracks[(arguments.seed + index) % len(tracks)]
                grid.add(racing.Race(track, arguments.car, own, settings["token"]))
        summary: RunSummary = grid.wait()
    return summary


def robot_keys(arguments: argparse.Namespace, address: str, index: int) -> dict[str, str | float]:
    """Return the section RLX of the file of robot number `index`."""
    return {
        "address": address,
        "environment": arguments.name,
        "mode": "exploit" if arguments.exploit else "train",
        "start": arguments.start,
        "frame skip": arguments.frame_skip,
        "laps": arguments.laps,
        "seed": (arguments.seed + index) % SEEDS,
        "retry seconds": arguments.retry_seconds,
        "record": str(arguments.record.resolve()) if arguments.record is not None and index == 0 else "",
    }


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    result = command.parser(
        PROGRAM, "Run races of TORCS against an RLX server.", "a track, such as g-track-1, or several: road,road"
    )
    add: Any = result.add_argument
    add("--start", choices=("line", "anywhere"), default="line", help="where an episode begins (line)")
    add("--laps", type=command.positive, default=1, metavar="K", help="laps of an episode (1)")
    families.add_frame_skip(result, 5, "ticks of 0.02 s")
    add("--car", default="car1-trb1", help="a car of the game (car1-trb1)")
    add("--record", type=Path, metavar="FOLDER", help="record the path of the first car in this folder, as CSV")
    return result


if __name__ == "__main__":
    command.execute(parser(), main)
