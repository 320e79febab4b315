"""The process that keeps a training on a cluster: `relaax run` whose processes are on its machines.

`python -m relaax.cli.cluster.controller JSON`: the options, as `Options` has them.
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import ray

from relaax.cli.run.environment_check import EnvironmentCheck
from relaax.cli.run.experiment import experiment
from relaax.cli.run.plan import Plan, make_plan
from relaax.cli.run.run_directory import RunDirectory
from relaax.cli.run.run_tokens import RunTokens, run_tokens
from relaax.cluster.machines import RayMachines
from relaax.configuration import ConfigurationError
from relaax.configuration.roles import ENVIRONMENTS_TOKEN, REPLAY_TOKEN, WORKERS_TOKEN
from relaax.configuration.sections import ClusterSection
from relaax.server.address import AddressError
from relaax.supervision.process import StartError

NAMESPACE = "relaax"
TOKEN_BYTES = 24


@dataclass(frozen=True, slots=True)
class Options:
    """What is trained, and where it is kept. `overrides`: as --set has them. `address`: of the cluster."""

    config: str
    overrides: list[str]
    run_dir: str
    fresh: bool
    address: str

    def command(self) -> list[str]:
        """Return the command of the controller."""
        return [sys.executable, "-m", "relaax.cli.cluster.controller", json.dumps(asdict(self))]


def tokens_of(plan: Plan) -> RunTokens:
    """Return the tokens of a run whose ports others can reach: made up where the configuration has none."""
    made = {name: secrets.token_hex(TOKEN_BYTES) for name in (WORKERS_TOKEN, REPLAY_TOKEN, ENVIRONMENTS_TOKEN)}
    return RunTokens({**made, **run_tokens(plan).tokens})


def main(options: Options) -> int:
    """Train, and return the exit code."""
    try:
        plan = make_plan(options.config, options.overrides)
        directory = RunDirectory(Path(options.run_dir))
        ray.init(address=options.address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
        section = plan.configuration.sections["relaax-cluster"]
        assert isinstance(section, ClusterSection)
        machines = RayMachines(section, directory.configuration)
        with EnvironmentCheck(plan) as check:
            try:
                return experiment(
                    plan,
                    directory,
                    check,
                    fresh=options.fresh,
                    progress=True,
                    summary=None,
                    elsewhere=(machines, tokens_of(plan)),
                )
            finally:
                machines.release()
    except (ConfigurationError, AddressError) as error:
        print(f"relaax cluster: {error}", file=sys.stderr)
        return 2
    except (StartError, ConnectionError) as error:
        print(f"relaax cluster: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    logging.basicConfig(level="WARNING", format="relaax cluster: %(message)s")
    sys.exit(main(Options(**json.loads(sys.argv[1]))))
