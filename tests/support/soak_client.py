#!/usr/bin/env python3
"""CartPoles of a soak: `soak_client HOST:PORT CartPole-v1 N`. The response timeout is short."""

from __future__ import annotations

import argparse

import gymnasium

from relaax.client import RunSummary, command, run

SILENCE = 25.0
"""Response timeout in seconds: longer than a worker is stopped, and less than half of the clients' default."""


def main(arguments: argparse.Namespace) -> RunSummary:
    """Run the environments until training ends."""
    env = gymnasium.make_vec(arguments.name, arguments.environments)
    settings = command.settings(arguments)
    summary = run(env, environment=arguments.name, response_timeout=SILENCE, **settings)
    env.close()
    return summary


if __name__ == "__main__":
    command.execute(command.parser("soak_client", "Run CartPoles of a soak.", "an id of gymnasium"), main)
