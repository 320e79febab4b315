"""The controller of a training on a cluster: `relaax run` with processes on the machines of the cluster.

`python -m relaax.cli.cluster.controller JSON FOLDER`. JSON: the fields of `Options`. FOLDER: the folder of its keeper.
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import ray

from relaax.cli.run.environment_check import EnvironmentCheck
from relaax.cli.run.experiment import experiment
from relaax.cli.run.plan import Plan, RunTokens, make_plan, run_tokens
from relaax.cli.run.run_directory import RunDirectory
from relaax.cluster.keeper import FOLDER, Control
from relaax.cluster.machines import RayMachines
from relaax.cluster.trainings import NAMESPACE
from relaax.configuration import ConfigurationError, unknown
from relaax.configuration.roles import RLX_SERVER, ROLES, TOKENS
from relaax.console import log_to_stderr, print_error
from relaax.server.address import AddressError
from relaax.supervision.process import StartError

TOKEN_BYTES = 24
DRAIN = 60.0
"""Seconds in which clients of an ending RLX server may end their episodes and move to another server."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a training.

    `overrides`: as for --set. `address`: of the cluster. `summary`: a file that also receives the summary.
    """

    config: str
    overrides: list[str]
    run_dir: str
    fresh: bool
    address: str
    summary: str | None = None

    def command(self) -> list[str]:
        """Return the command of the controller."""
        return [sys.executable, "-m", "relaax.cli.cluster.controller", json.dumps(asdict(self)), FOLDER]


def tokens_of(plan: Plan) -> RunTokens:
    """Return the tokens of a run whose ports other machines can reach: random ones if the configuration has none."""
    made = {name: secrets.token_hex(TOKEN_BYTES) for name in TOKENS}
    return RunTokens({**made, **run_tokens(plan).tokens})


def plan_of(config: str, overrides: list[str]) -> Plan:
    """Return the plan of a training on a cluster. Raises ConfigurationError.

    If the configuration has no `drain`, RLX servers let clients move for DRAIN seconds before they end.
    """
    plan = make_plan(config, overrides, here=False)
    names = [role.name for role in ROLES]
    for name in plan.configuration.cluster.resources:
        if name not in names:
            raise ConfigurationError(f"relaax-cluster.resources: {unknown('role', name, names)}")
    if "drain" in plan.configuration.rlx_server.model_fields_set:
        return plan
    return replace(plan, configuration=plan.configuration.with_keys({RLX_SERVER.section: {"drain": DRAIN}}, "cluster"))


def main(options: Options, folder: Path) -> int:
    """Train, and return the exit code. `folder`: of the control files."""
    try:
        plan = plan_of(options.config, options.overrides)
        server = plan.configuration.parameter_server
        directory = RunDirectory(Path(options.run_dir), None if server.checkpoint_aws_s3 is None else server)
        control = Control(folder)
        ray.init(address=options.address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
        own_status = plan.configuration.rlx_server.status_bind is not None
        machines = RayMachines(
            plan.configuration.cluster, directory.configuration, directory.metrics, control, own_status
        )
        with EnvironmentCheck(plan) as check:
            try:
                return experiment(
                    plan,
                    directory,
                    check,
                    fresh=options.fresh,
                    progress=True,
                    summary=None if options.summary is None else Path(options.summary),
                    remote=(machines, tokens_of(plan)),
                    panel=control.panel,
                )
            finally:
                machines.release()
    except (ConfigurationError, AddressError) as error:
        print_error("relaax cluster", error)
        return 2
    except (StartError, ConnectionError) as error:
        print_error("relaax cluster", error)
        return 1


if __name__ == "__main__":
    log_to_stderr("relaax cluster: %(message)s")
    sys.exit(main(Options(**json.loads(sys.argv[1])), Path(sys.argv[2])))
