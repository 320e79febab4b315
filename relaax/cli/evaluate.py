"""The command `relaax eval`: find a policy and its environment by name, and play episodes."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from relaax.bundled import bundled_folder, bundled_names
from relaax.cli import completion
from relaax.cli.options import EndpointOption, NoProgressOption, OverridesOption, cores
from relaax.cli.reporting import exit_on_errors
from relaax.configuration import ConfigurationError, unknown
from relaax.console import log_to_stderr

if TYPE_CHECKING:
    from relaax.cli.run.plan import Plan
    from relaax.policy.file import Description

MAX_EPISODE_STEPS = 100_000
"""Default limit of an episode. The longest Atari game has 108,000 frames, or 27,000 steps of 4 frames."""
CONFIGURATION = "configuration.yaml"
_SUFFIX = ".safetensors"
_RUN_KEYS = ("environment", "name", "kwargs", "wrappers", "register", "modules", "arguments")


@dataclass(frozen=True, slots=True)
class EvaluationTarget:
    """An environment, and the policy that acts in it.

    `policy`: arguments of `relaax.policy.load`, None to act at random. `source`: the location of the policy.
    `checkpoint`, `global_step` and `mean_return` are from the policy's description.
    """

    plan: Plan
    policy: Mapping[str, Any] | None
    source: str | None = None
    checkpoint: str | None = None
    global_step: int | None = None
    mean_return: float | None = None


def evaluate(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.configurations_and_runs,
            metavar="CONFIG|RUN|CHECKPOINT",
            help="A configuration (its run in runs/), a run directory or its name in runs/, a folder or s3:// location "
            "of checkpoints, or a .safetensors file of `relaax checkpoints export`.",
        ),
    ],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 30,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="[noop|none|human-starts]",
            help="noop (default for Atari): as in Nair et al. 2015, up to 30 no-ops at the start, whole games of at "
            "most 18,000 frames. none (default for others): the environment as in training.",
        ),
    ] = None,
    sticky: Annotated[
        float | None, typer.Option(min=0, max=1, help="Atari: repeat the last action with this probability.")
    ] = None,
    max_episode_steps: Annotated[
        int, typer.Option(min=1, metavar="STEPS", help="Cut off episodes after this many steps; their returns count.")
    ] = MAX_EPISODE_STEPS,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the evaluation; the same seed gives the same numbers.")] = 0,
    greedy: Annotated[
        bool | None,
        typer.Option(
            "--greedy/--sample",
            help="Take the most probable action, or sample one; by default as set by algorithm.greedy_exploit.",
        ),
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Act at random, for comparison.")] = False,
    checkpoint_id: Annotated[
        str | None, typer.Option("--id", help="Id of the checkpoint; by default the newest.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Use the best checkpoint: by evaluation, or else by mean return in training.")
    ] = False,
    run_dir: Annotated[Path | None, typer.Option(help="The run directory of a CONFIG; by default runs/NAME.")] = None,
    config: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.configurations,
            help="A configuration with another environment, or the configuration of a CHECKPOINT.",
        ),
    ] = None,
    set_: OverridesOption = None,
    video: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write videos of the episodes (MP4) to this folder.")
    ] = None,
    video_every: Annotated[int, typer.Option(min=1, metavar="K", help="Record only every K-th episode.")] = 1,
    display: Annotated[bool, typer.Option("--display", help="Show the episodes in a window, one at a time.")] = False,
    json_: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result to this file; - prints it.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of environment processes; by default one per core."),
    ] = None,
    no_progress: NoProgressOption = False,
    aws_keys: Annotated[str | None, typer.Option(metavar="FILE", help="YAML file with `access` and `secret`.")] = None,
    aws_endpoint: EndpointOption = None,
) -> None:
    """Score a checkpoint by playing episodes, without servers.

    For Atari, whole games with no-op starts are scored, and published scores are shown for comparison.

    `relaax eval da3c_gym_cartpole` scores the newest checkpoint of runs/da3c_gym_cartpole. `relaax eval da3c_ale_pong
    --random` scores random actions.

    Exit code 0: done; 1: the environment or the store failed; 2: the request is invalid; 130: interrupted.
    """
    from relaax.checkpoint import Damaged, StoreError
    from relaax.cli.checkpoints.catalogue import CatalogueError
    from relaax.evaluation import protocols
    from relaax.evaluation.playing import PlayingError
    from relaax.policy import PolicyError

    log_to_stderr("relaax eval: %(message)s")
    refused, failed = (CatalogueError, PolicyError), (Damaged, StoreError, PlayingError, OSError)
    with exit_on_errors("relaax eval", refused, failed), ExitStack() as stack:
        _interrupt_on_signals()
        if video_every != 1 and video is None:
            raise ConfigurationError("--video-every is for --video DIR, which names the folder of the videos")
        if random and greedy is not None:
            raise ConfigurationError("--random cannot be combined with --greedy or --sample")
        if random and (checkpoint_id is not None or best):
            raise ConfigurationError("--random uses no checkpoint: remove --id and --best")
        if protocol is not None and protocol not in protocols.PROTOCOLS:
            raise ConfigurationError(f"--protocol: {unknown('protocol', protocol, protocols.PROTOCOLS)}")
        _check_json_path(json_)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relaax-eval-")))
        request = _Request(
            name, config, set_ or [], run_dir, checkpoint_id, best, random, aws_keys, aws_endpoint, folder
        )
        target = request.target()
        main = target.plan.environment_main
        game = protocols.atari_game(main, target.plan.environment_name)
        options, facts = protocols.protocol_options(
            protocol, sticky, game, random=random, has_frame_skip=protocols.is_ale(main)
        )
        if video is not None:
            options += ["--video", str(video.absolute()), "--video-every", str(video_every)]
        if display:
            options, jobs = [*options, "--display"], 1
        result = _evaluate(
            *(target, game, options, facts, episodes, seed, max_episode_steps, greedy, jobs or cores()),
            json_ != "-" and not no_progress,
        )
        _report(result, json_)
        if video is not None and json_ != "-":
            print(f"videos in {video}")


def _evaluate(
    target: EvaluationTarget,
    game: str | None,
    options: list[str],
    protocol: dict[str, Any],
    episodes: int,
    seed: int,
    max_episode_steps: int,
    greedy: bool | None,
    jobs: int,
    progress: bool,
) -> dict[str, Any]:
    """Play, and return the result. Raises ConfigurationError and PlayingError."""
    from relaax import __version__
    from relaax.client.command import NOOP
    from relaax.client.connection.address import LOCAL
    from relaax.evaluation import report
    from relaax.evaluation.playing import EpisodePlan, play, statistics_of

    start = time.monotonic()
    if greedy is None:
        greedy = getattr(target.plan.configuration.algorithm_config, "greedy_exploit", None)
    policy = None if target.policy is None else {**target.policy, "greedy": greedy, "seed": seed}
    command = [*target.plan.environment_command(LOCAL, 1, 0)[1:], *options]
    curriculum = target.plan.configuration.curriculum()
    values = curriculum.final_edition.values if curriculum else {}
    with report.shown_progress(episodes, progress) as watcher:
        plan = EpisodePlan(episodes, seed, max_episode_steps, values)
        played, frame_skip = play(command, policy, plan, jobs, watcher)
    found = statistics_of([one.episode_return for one in played])
    steps = sum(one.steps for one in played)
    return {
        "environment": target.plan.environment_name,
        "source": target.source,
        "checkpoint": target.checkpoint,
        "global_step": target.global_step,
        "training_mean_return": target.mean_return,
        "greedy": None if policy is None else greedy is not False,
        "protocol": protocol,
        "seed": seed,
        "episodes": found.episodes,
        "mean": found.mean,
        "std": found.std,
        "interval_95": [found.low, found.high],
        "median": found.median,
        "min": found.smallest,
        "max": found.largest,
        "max_episode_steps": max_episode_steps,
        "environment_parameters": {name: str(each) for name, each in values.items()},
        "cut_off": sum(one.cut for one in played),
        "steps": steps,
        "frames": steps * frame_skip,
        **report.published_comparison(game, found.mean, protocol["name"] == NOOP),
        "returns": [one.episode_return for one in played],
        "lengths": [one.length for one in played],
        "seconds": round(time.monotonic() - start, 3),
        "version": __version__,
    }


def _report(result: dict[str, Any], json_: str | None) -> None:
    from relaax.evaluation import report
    from relaax.files import write_whole

    text = json.dumps(result, indent=2) + "\n"
    if json_ == "-":
        print(text, end="")
        return
    if json_ is not None:  # before the table, which cannot be printed if its reader has ended
        write_whole(Path(json_), [text.encode()])
    report.print_result(result)


def _check_json_path(json_: str | None) -> None:
    """Raise ConfigurationError if the result cannot be written."""
    if json_ is None or json_ == "-":
        return
    if Path(json_).is_dir():
        raise ConfigurationError(f"--json {json_} must be a file, not a folder")
    if not os.access(Path(json_).absolute().parent, os.W_OK):
        raise ConfigurationError(f"--json {json_}: its folder does not exist or cannot be written")


def _interrupt_on_signals() -> None:
    """Handle SIGTERM and SIGHUP as Ctrl-C, so that no process and no temporary file remains."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, interrupt)


@dataclass(frozen=True, slots=True)
class _Request:
    """The options that select the policy and the environment. `folder`: for temporary files."""

    name: str
    config: str | None
    overrides: Sequence[str]
    run_dir: Path | None
    checkpoint_id: str | None
    best: bool
    random: bool
    aws_keys: str | None
    aws_endpoint: str | None
    folder: Path

    def target(self) -> EvaluationTarget:
        """Return the environment and the policy.

        Raises ConfigurationError, CatalogueError, PolicyError, StoreError and Damaged.
        """
        from relaax.policy.file import read

        location = self.name
        if (Path("runs") / location / CONFIGURATION).is_file() and not (
            _has_checkpoints(Path(location)) or _is_configuration(location)
        ):
            location = str(Path("runs") / location)
        path = Path(location)
        if path.suffix == _SUFFIX:
            if self.checkpoint_id is not None or self.best:
                raise ConfigurationError(f"{self.name} is a single policy: --id and --best select from checkpoints")
            described = read(path).description
            return _target(self._plan_of_checkpoint(described), location, path, described)
        plan = None
        if not location.startswith("s3://") and not path.is_dir():  # a configuration
            plan = self._plan(self.config or location)
            path = wanted = self.run_dir or Path("runs") / plan.name
            if self.run_dir is None and not wanted.is_dir():  # --set names another environment than that of the run
                from relaax.configuration import find_configuration  # slow, and completion loads this module

                path = Path("runs") / find_configuration(self.config or self.name).stem
            location = str(path)
            if not self.random and not path.is_dir():
                raise ConfigurationError(
                    f"there is no run of {plan.name} in {wanted}: train with `relaax run {self.name}`, or name a run "
                    "directory, a location of checkpoints or a .safetensors file; --random needs no run"
                )
        if self.random:
            return EvaluationTarget(plan or self._plan(self.config or str(path / CONFIGURATION)), None)
        described = self._export(location)
        if self.config is None and (path / CONFIGURATION).is_file():  # it includes the run's overrides
            plan = self._plan(str(path / CONFIGURATION))
        return _target(plan or self._plan_of_checkpoint(described), location, self._policy, described)

    @property
    def _policy(self) -> Path:
        return self.folder / f"policy{_SUFFIX}"

    def _plan(self, config: str) -> Plan:
        from relaax.cli.run.plan import make_plan

        return make_plan(config, self.overrides)

    def _export(self, location: str) -> Description:
        """Export the requested checkpoint to `_policy`, and return its description."""
        from relaax.cli.checkpoints import catalogue
        from relaax.files import write_whole
        from relaax.policy import file as exporting

        store = catalogue.open_store(location, self.aws_keys, self.aws_endpoint)
        checkpoint = catalogue.load_checkpoint(store, self.checkpoint_id, self.best)
        write_whole(self._policy, exporting.policy_of(checkpoint))
        return exporting.description_of(checkpoint)

    def _plan_of_checkpoint(self, described: Description) -> Plan:
        """Return the plan of a checkpoint without its run: from --config, or else from the checkpoint's description.

        A checkpoint must not choose the code to run, so its algorithm and environment must be bundled with RELAAX.
        """
        if self.config is not None:
            return self._plan(self.config)
        import yaml

        from relaax.configuration.secrets import HIDDEN
        from relaax.policy import PolicyError

        name = str(described.fingerprint.get("algorithm"))
        run = dict(described.configuration.get("relaax-run", {}))
        environment = run.get("environment")
        if environment is None:
            served = f"relaax-rlx-server --config FILE --exploit --checkpoint {self.name}"
            alone = f'; a program of your own can use Client(..., mode="exploit") with `{served}`'
            alone = "" if self.name.endswith(_SUFFIX) else alone
            raise PolicyError(
                f"{self.name} does not name an environment: give its configuration with --config FILE{alone}"
            )
        if name not in bundled_names("algorithms") or environment not in bundled_names("environments"):
            raise PolicyError(
                f"{self.name} was trained by {name} in the environment {environment}; at least one of them does not "
                "come with RELAAX: name the configuration of the run with --config FILE"
            )
        keys = {key: value for key, value in described.fingerprint["configuration"].items() if value != HIDDEN}
        document = {
            "relaax-run": {key: run[key] for key in _RUN_KEYS if key in run},
            "algorithm": {**keys, "path": str(bundled_folder("algorithms") / name)},
        }
        file = self.folder / f"{Path(self.name).stem or 'checkpoint'}.yaml"
        file.write_text(yaml.safe_dump(document), encoding="utf-8")
        return self._plan(str(file))


def _is_configuration(name: str) -> bool:
    return Path(name).is_file() or name.removesuffix(".yaml") in bundled_names("config", ".yaml")


def _has_checkpoints(folder: Path) -> bool:
    """Return whether a folder is a run or holds checkpoints, unlike one of a program or an algorithm."""
    return (folder / CONFIGURATION).is_file() or any(folder.glob("*/manifest.json"))


def _target(plan: Plan, source: str, file: Path, described: Description) -> EvaluationTarget:
    policy = {"file": str(file), "algorithm": str(plan.algorithm), "keys": plan.configuration.given_algorithm_keys()}
    return EvaluationTarget(plan, policy, source, described.checkpoint, described.global_step, described.mean_return)
