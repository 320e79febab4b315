#!/usr/bin/env python3
"""The speed of a learner's gradient alone: forward passes and gradient, on batches that are in memory.

Runs in one process, on the learner's device, without sampling and pushing. learner_alone.py runs this script, and
compares the speed with that of a learner.

    python tests/benchmarks/gradient_alone.py CONFIGURATION FINGERPRINT_FILE SECONDS

CONFIGURATION has the sections `relaax-learner` and `algorithm`. FINGERPRINT_FILE describes the spaces. Writes JSON to
the standard output: updates per second, and processor seconds per update.
"""

from __future__ import annotations

import os

from relaax.libraries import missing_from

os.environ.update(missing_from(os.environ))  # as in a learner

import itertools
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from relaax.algorithm_base import LearnerContext, TargetInterval, load_algorithm
from relaax.algorithm_base.testing import FakeParameters
from relaax.cli.bench.exchange import ITEMS_PER_INSERT, insertions
from relaax.configuration import load_configuration
from relaax.hosting.fingerprint import parse_fingerprint
from relaax.nn.devices import use_device, use_one_thread
from relaax.parameters.interfaces import LEARN, Registration
from relaax.replay.local import LocalReplay
from relaax.server.command.hardware import device_of

BATCHES = 8
ITEMS = 2000
WARM_UP = 10


def main(arguments: list[str]) -> int:
    file, fingerprint, seconds = arguments
    configuration = load_configuration(Path(file))
    algorithm = load_algorithm(configuration.algorithm_path, configuration.folder)
    config = algorithm.configure(configuration.algorithm)
    _, *spaces = parse_fingerprint(Path(fingerprint).read_text("utf-8"))
    use_one_thread()
    device = device_of(configuration.learner, config)
    use_device(device)
    algorithm.prepare(config, device)
    assert algorithm.Replay is not None and algorithm.Learner is not None
    declared = algorithm.Replay(config, *spaces).table()
    replay = LocalReplay(
        replace(declared, spec=replace(declared.spec, capacity=ITEMS), samples_per_insert=None, min_size=1), 1
    )
    for insertion, _ in zip(
        insertions(declared.spec, ITEMS_PER_INSERT), range(ITEMS // ITEMS_PER_INSERT), strict=False
    ):
        replay.writers[0].insert(insertion)
    parameters = FakeParameters(
        algorithm.ParameterServer(config, *spaces).initial_parameters(0), target=TargetInterval(updates=ITEMS)
    )
    parameters.register(Registration("", environments=0, purpose=LEARN))
    learner = algorithm.Learner(config, LearnerContext(*spaces, 0, 0, parameters, parameters.metrics, replay))
    batches = []
    for _ in range(BATCHES):
        batches.append(replay.sample(learner.batch_size, 60.0))
        assert batches[-1] is not None
    turns = itertools.cycle(batches)
    for _ in range(WARM_UP):
        learner._gradient(next(turns))
    begun, processor = time.monotonic(), time.process_time()
    updates, passed = 0, 0.0
    while passed < float(seconds):
        learner._gradient(next(turns))
        updates, passed = updates + 1, time.monotonic() - begun
    taken = time.process_time() - processor
    print(json.dumps({"updates_per_second": updates / passed, "processor_seconds": taken / updates}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
