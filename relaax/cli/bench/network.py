"""A program that steps environments alone, and after each step computes the networks as their training does.

`python -m relaax.cli.bench.network CONFIGURATION PROGRAM ARGUMENT...` runs an environment program in this process. Its
arguments have the address `random`. An agent of the configuration's algorithm is run with random observations, and its
calls of the engine are recorded, with their arguments. Then each step repeats the calls of one step.
"""

from __future__ import annotations

import itertools
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from relaax.libraries import missing_from

os.environ.update(missing_from(os.environ))  # before anything imports numpy

from relaax import rlx
from relaax.algorithm_base.testing import RandomEnvironments, live, make_agent
from relaax.client.program.measuring import working
from relaax.configuration import load_configuration
from relaax.hosting.loader import Algorithm, load_algorithm

Call = Callable[[], Any]
ACTING, LEARNING = ("act",), ("gradient", "input_gradient")
MOST_STEPS = 20_000
"""Maximum number of steps until an agent has computed gradients in three of them."""
END_PROBABILITY = 0.002
"""Probability that a step ends an episode. An end costs another evaluation of the network."""


class Recorder:
    """The calls of an engine by an agent: a list for each step."""

    def __init__(self) -> None:
        self.steps: list[list[Call]] = [[]]
        self.gradients: list[int] = []
        """Indices of the steps with a gradient."""

    def add(self, name: str, call: Call) -> None:
        """Add a call to the current step."""
        self.steps[-1].append(call)
        last = len(self.steps) - 1
        if name in LEARNING and self.gradients[-1:] != [last]:
            self.gradients.append(last)

    def next_step(self) -> None:
        """Begin the next step."""
        self.steps.append([])

    @property
    def is_complete(self) -> bool:
        """Whether all steps between two gradients are recorded. The first ones, up to a gradient, may differ."""
        return len(self.gradients) >= 3 and len(self.steps) - 1 > self.gradients[2]

    def period(self) -> list[list[Call]]:
        """Return the calls of each step after a gradient, up to the next gradient."""
        first, last = self.gradients[1:3]
        return self.steps[first + 1 : last + 1]


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record the calls of all engines of the host in this block."""
    from relaax.nn.host.engine import HostEngine

    before = {name: getattr(HostEngine, name) for name in ACTING + LEARNING}

    def recorded(name: str, method: Any) -> Any:
        def call(engine: HostEngine, *arguments: Any, **named: Any) -> Any:
            recorder.add(name, partial(method, engine, *arguments, **named))
            return method(engine, *arguments, **named)

        return call

    for name, method in before.items():
        setattr(HostEngine, name, recorded(name, method))
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(HostEngine, name, method)


def network_work(
    algorithm: Algorithm, section: Mapping[str, Any], observation_space: rlx.Space, action_space: rlx.Space, count: int
) -> Callable[[], None]:
    """Return a function that computes what the network of `count` environments computes in a step of training."""
    config = algorithm.configure(section)
    agent, _ = make_agent(algorithm, config, observation_space, action_space, environments=count)
    recorder = Recorder()
    environments = RandomEnvironments(observation_space, action_space, count, end_probability=END_PROBABILITY)

    def finished() -> bool:
        recorder.next_step()
        return recorder.is_complete

    with recording(recorder):
        live(agent, environments, MOST_STEPS, until=finished)
    if not recorder.is_complete:
        sys.exit(f"{algorithm.name} has not computed gradients in three of {MOST_STEPS:,} steps")
    period = itertools.cycle(recorder.period())

    def work() -> None:
        for call in next(period):
            call()

    return work


def main() -> None:
    """Run PROGRAM with its arguments and the networks."""
    configuration_file, program, *arguments = sys.argv[1:]
    configuration = load_configuration(Path(configuration_file))
    algorithm = load_algorithm(configuration.algorithm_path, configuration.folder)
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).parent)  # as if PROGRAM were run directly
    with working(partial(network_work, algorithm, configuration.algorithm)):
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
