"""The plan of `relaax run`: the experiment, its environments and their commands."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration import (
    COMMAND_LINE,
    Configuration,
    ConfigurationError,
    RunSection,
    find_configuration,
    unknown,
)
from relaax.configuration.roles import ENVIRONMENTS_TOKEN, REPLAY_TOKEN, WORKERS_TOKEN, Role
from relaax.hosting.loader import find_algorithm, open_algorithm
from relaax.server.command.configuration import configured
from relaax.server.security.tls import parameter_server_token, replay_server_token, rlx_server_token

GYMNASIUM, PETTINGZOO = (bundled_folder("environments") / family / "main.py" for family in ("OpenAI_Gym", "PettingZoo"))
PLAYER = "relaax.demonstrations.program"
_PORTS = "`relaax run` chooses the ports itself, and starts every shard"
_FOLDERS = "`relaax run` keeps everything in its run directory, which --run-dir names"
MANAGED_KEYS = {
    ("relaax-parameter-server", "bind"): _PORTS,
    ("relaax-rlx-server", "bind"): _PORTS,
    ("relaax-rlx-server", "parameter_server"): _PORTS,
    ("relaax-rlx-server", "replay_server"): _PORTS,
    ("relaax-replay-server", "bind"): _PORTS,
    ("relaax-replay-server", "shard"): _PORTS,
    ("relaax-learner", "parameter_server"): _PORTS,
    ("relaax-learner", "replay_server"): _PORTS,
    ("relaax-parameter-server", "shard"): _PORTS,
    ("relaax-parameter-server", "first_shard"): _PORTS,
    ("relaax-parameter-server", "checkpoint_dir"): _FOLDERS,
    ("relaax-parameter-server", "checkpoint_aws_s3"): _FOLDERS,
    ("relaax-parameter-server", "metrics_dir"): _FOLDERS,
    ("relaax-tensorboard", "bind"): _PORTS,
    ("relaax-tensorboard", "metrics_dir"): _FOLDERS,
    ("relaax-replay-server", "checkpoint_aws_s3"): "`relaax run` keeps everything here: set checkpoint_dir instead",
    ("relaax-parameter-server", "checkpoint_interval"): "`relaax run` uses relaax-run.checkpoint_interval",
    ("relaax-parameter-server", "checkpoint_steps"): "`relaax run` uses relaax-run.eval_every",
}
"""Keys of servers started by hand. A run sets them itself. The values name the alternative."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An experiment, checked as far as possible without starting anything."""

    name: str
    configuration: Configuration
    algorithm: Path
    run: RunSection
    environment_main: Path
    environment_name: str

    @property
    def title(self) -> str:
        """Return a short description of the experiment."""
        return f"{self.name}: {self.environment_name} by {self.algorithm.stem}"

    @property
    def task(self) -> dict[str, str]:
        """Return environment and algorithm as comparable texts, as the configuration names them."""
        return {
            "environment": str(self.run.environment),
            "name": self.environment_name,
            "algorithm": self.algorithm.name,
            **construction_of(self.run.kwargs, self.run.wrappers),
        }

    @property
    def target_return(self) -> float | None:
        """Return the mean return of 100 episodes at which the run succeeds."""
        return self.run.target_return

    @property
    def seed(self) -> int:
        """Return the run's seed."""
        return int(self._algorithm_key("seed"))

    @property
    def max_steps(self) -> int:
        """Return the maximum number of environment steps of the run."""
        return min(self.run.max_steps or 2**63, int(self._algorithm_key("max_global_step")))

    def _algorithm_key(self, key: str) -> float:
        """Return the value of a key that every algorithm has."""
        return float(getattr(self.configuration.algorithm_config, key))

    @property
    def search_path(self) -> list[Path]:
        """Return the folders to search for the environment's modules and programs, without the working directory."""
        return _search_path(self.run, self.configuration.folder)

    @property
    def environments(self) -> int:
        """Return the number of environments of all clients."""
        return self.run.clients * self.run.connections_per_client * self.run.envs_per_client

    def client_command(self, address: str, index: int) -> list[str]:
        """Return the command of the environment client number `index`."""
        count, connections = self.run.envs_per_client, self.run.connections_per_client
        if self.run.demonstrations is not None:
            seed = str(self.seed * 1000 + index)
            return [sys.executable, "-m", PLAYER, address, self.run.demonstrations, str(count), seed]
        command = self.environment_command(address, count, index * count * connections)
        return [*command, "--connections", str(connections)] if connections > 1 else command

    def environment_command(self, address: str, count: int, first: int) -> list[str]:
        """Return the command of `count` environments, numbered from `first` for their seeds."""
        return [
            sys.executable,
            str(self.environment_main),
            address,
            self.environment_name,
            str(count),
            "--seed",
            str(self.seed * 1000 + first),
            *self._gymnasium_options(self.search_path),
            *self.run.arguments,
        ]

    @property
    def check_arguments(self) -> list[str]:
        """Return the arguments of `relaax check` for an environment of a bundled family."""
        family = [] if self.environment_main == GYMNASIUM else [self.environment_main.parent.name]
        elsewhere = [folder for folder in self.search_path if folder.absolute() != Path.cwd()]
        options = [*self._gymnasium_options(elsewhere), *self.run.arguments]
        return [*family, self.environment_name, *(["--", *options] if options else [])]

    def _gymnasium_options(self, folders: Sequence[Path]) -> Iterator[str]:
        """Yield the keys for gymnasium as options of the environment's program."""
        run, modules = self.run, [self.environment_name]
        for name, value in run.kwargs.items():
            yield from ("--kwarg", f"{name}={json.dumps(value)}")
        for wrapper in run.wrappers:
            name, kwargs = (wrapper, None) if isinstance(wrapper, str) else next(iter(wrapper.items()))
            modules.append(name)
            yield from ("--wrapper", f"{name}={json.dumps(kwargs)}" if kwargs else name)
        if run.register_ is not None:
            modules.append(run.register_)
            yield from ("--register", run.register_)
        for module in run.modules:
            yield from ("--import", module)
        is_searched = run.modules or any(":" in name for name in modules)
        if self.environment_main == PETTINGZOO or (self.environment_main == GYMNASIUM and is_searched):
            for folder in folders:
                yield from ("--path", str(folder))


def make_plan(config: str, overrides: Sequence[str], here: bool = True) -> Plan:
    """Read and check everything that can be checked without starting anything. Raises ConfigurationError.

    `here`: whether all processes run on this machine, with checkpoints in the run directory.
    """
    configuration = configured(config, overrides)
    check_managed_keys(configuration, here)
    return plan_of(config, configuration)


def check_managed_keys(configuration: Configuration, here: bool = True) -> None:
    """Raise ConfigurationError for keys on the command line that a run sets itself.

    Files may have such keys, because servers started by hand share the files.
    """
    for key, reason in MANAGED_KEYS.items():
        if configuration.origins.get(key) == COMMAND_LINE and (here or key[1] != "checkpoint_aws_s3"):
            raise ConfigurationError(f"--set {'.'.join(key)}: has no effect: {reason}")


def plan_of(config: str, configuration: Configuration) -> Plan:
    """Return the plan of a configuration. Raises ConfigurationError.

    The run has the name of the file. If the file does not choose the environment, the environment's name follows, as
    in da3c_ale-seaquest: one configuration can train many games.
    """
    path = find_configuration(config)
    name, environment = path.stem, configuration.run.name
    if environment is not None and configuration.origins.get(("relaax-run", "name")) != path.name:
        name += f"-{in_run_name(environment)}"
    return build_plan(name, str(path), configuration)


def in_run_name(environment: str) -> str:
    """Return an environment's name as part of a run's name: only letters, digits, dots and dashes, with _ between."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", environment).strip("_.")


def build_plan(name: str, source: str, configuration: Configuration) -> Plan:
    """Return the plan of a configuration for a run of this name. Raises ConfigurationError, which names `source`."""
    algorithm = find_algorithm(configuration.algorithm_path, configuration.folder)
    run = configuration.run
    if run.environment is None or run.name is None:
        raise ConfigurationError(
            f"{source}: relaax-run.environment and relaax-run.name must name the environment to start, such as "
            "OpenAI_Gym and CartPole-v1; without them, start the servers with honcho and connect clients yourself"
        )
    main = environment_main(run.environment, _search_path(run, configuration.folder))
    _check_gymnasium_keys(run, main)
    check_replay(configuration)
    return Plan(
        name=name,
        configuration=configuration,
        algorithm=algorithm,
        run=run,
        environment_main=main,
        environment_name=run.name,
    )


def construction_of(kwargs: Mapping[str, Any], wrappers: Sequence[Any]) -> dict[str, str]:
    """Return an environment's constructor arguments and wrappers as comparable texts."""
    return {key: json.dumps(value, sort_keys=True) for key, value in (("kwargs", kwargs), ("wrappers", wrappers))}


def _check_gymnasium_keys(run: RunSection, main: Path) -> None:
    """Raise ConfigurationError for gymnasium keys with a bundled environment that is not from gymnasium.

    The user's own program receives them as options, and must refuse unsupported ones.
    """
    keys = {"kwargs": run.kwargs, "wrappers": run.wrappers, "register": run.register_, "modules": run.modules}
    given = [key for key, value in keys.items() if value and not (main == PETTINGZOO and key == "kwargs")]
    if given and main != GYMNASIUM and main.is_relative_to(bundled_folder("environments")):
        raise ConfigurationError(
            f"relaax-run.{given[0]}: is only for gymnasium environments (OpenAI_Gym); {run.environment} takes its "
            "options from relaax-run.arguments, such as [--frame-skip, 4]"
        )


def _search_path(run: RunSection, folder: Path) -> list[Path]:
    return list(dict.fromkeys([folder, *(folder / other for other in run.path)]))


def environment_main(environment: str, folders: Sequence[Path]) -> Path:
    """Return `main.py` of an environment family, or the script itself: in the folders, here, or bundled."""
    found = find_program(environment, folders)
    if found is None:
        raise ConfigurationError(
            f"relaax-run.environment: {unknown('environment', environment, bundled_names('environments'))}"
        )
    return found


def find_program(environment: str, folders: Sequence[Path] = ()) -> Path | None:
    """Return the program of an environment, as `relaax-run.environment` names it, or None."""
    for folder in (*folders, Path.cwd(), bundled_folder("environments")):
        for found in (folder / environment / "main.py", folder / environment):
            if found.is_file():
                return found.resolve()
    return None


def check_replay(configuration: Configuration) -> None:
    """Raise ConfigurationError if the number of replay servers or learners does not suit the algorithm.

    Of the algorithm, only its configuration, `Replay` and `Learner` are imported.
    """
    algorithm = open_algorithm(configuration.algorithm_path, configuration.folder)
    shards, learners = configuration.replay_server.shards, configuration.learner.learners
    name, wrong = algorithm.name, None
    if algorithm.Replay is None:
        if shards:
            wrong = f"relaax-replay-server.shards: {shards}, but {name} has no replay memory: set it to 0"
        elif learners:
            wrong = f"relaax-learner.learners: {learners}, but the workers of {name} learn themselves: set it to 0"
    elif not shards:
        wrong = f"relaax-replay-server.shards: 0, but {name} keeps experience in a replay memory: set it to 1 or more"
    elif algorithm.Replay.bundled(configuration.algorithm_config):
        if learners:
            wrong = (
                f"relaax-learner.learners: {learners}, but with this configuration of {name}, each worker learns "
                "from its own memory: set it to 0"
            )
    elif not learners:
        wrong = f"relaax-learner.learners: 0, but {name} learns in separate processes: set it to 1 or more"
    if wrong:
        raise ConfigurationError(wrong)


@dataclass(frozen=True, slots=True)
class RunTokens:
    """The tokens of a run, by environment variable. `relaax run` itself sends `status` and `replay`."""

    tokens: Mapping[str, str] = field(repr=False)

    @property
    def status(self) -> str:
        """Return the parameter server's token, or an empty text."""
        return self.tokens.get(WORKERS_TOKEN, "")

    @property
    def replay(self) -> str:
        """Return the replay servers' token, or an empty text."""
        return self.tokens.get(REPLAY_TOKEN, "")

    def of(self, role: Role) -> dict[str, str]:
        """Return the environment variables of a role's processes."""
        return {variable: token for variable, token in self.tokens.items() if variable in role.tokens}


def run_tokens(plan: Plan) -> RunTokens:
    """Read the tokens from the configuration and this process's environment. Raises ConfigurationError."""
    workers = parameter_server_token(plan.configuration.parameter_server)
    replay = replay_server_token(plan.configuration.replay_server)
    environments = rlx_server_token(plan.configuration.rlx_server)
    if plan.configuration.rlx_server.clients_file is not None and environments is None:
        raise ConfigurationError(
            "relaax-rlx-server.clients_file: the clients of `relaax run` have no name, and would not be admitted: "
            "set token_file as well, or omit clients_file"
        )
    found = {WORKERS_TOKEN: workers, REPLAY_TOKEN: replay, ENVIRONMENTS_TOKEN: environments}
    return RunTokens({variable: token for variable, token in found.items() if token})
