"""The command `relaax eval`: find a policy and its environment by what a person names, and play."""

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
from relaax.cli.reporting import reported
from relaax.configuration import ConfigurationError, unknown
from relaax.console import log_to_stderr

if TYPE_CHECKING:
    from relaax.cli.run.plan import Plan
    from relaax.policy.file import Description

MAX_EPISODE_STEPS = 100_000
"""Beyond the longest games of Atari, of 108,000 frames: 27,000 steps of 4 frames."""
CONFIGURATION = "configuration.yaml"
_SUFFIX = ".safetensors"
_RUN_KEYS = ("environment", "name", "kwargs", "wrappers", "register", "modules", "arguments")


@dataclass(frozen=True, slots=True)
class EvaluationTarget:
    """An environment, and the policy that acts in it.

    `policy`: arguments of `relaax.policy.load`, None to act at random. `source`: the location of the policy,
    `checkpoint` and `global_step` those of the policy's description.
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
            help="noop: as Nair et al. 2015, up to 30 no-ops at the start, whole games of at most 18,000 frames; the "
            "default for Atari. none: the environment as it is trained in, the default for others.",
        ),
    ] = None,
    sticky: Annotated[
        float | None, typer.Option(min=0, max=1, help="Atari: repeat the last action with this probability.")
    ] = None,
    max_episode_steps: Annotated[
        int, typer.Option(min=1, metavar="STEPS", help="Cut off episodes after this many steps; their returns count.")
    ] = MAX_EPISODE_STEPS,
    seed: Annotated[int, typer.Option(min=0, help="With the same seed, the same numbers come out.")] = 0,
    greedy: Annotated[
        bool | None,
        typer.Option(
            "--greedy/--sample",
            help="Take the most probable action, or draw it; by default as algorithm.greedy_exploit says.",
        ),
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Act at random, to compare with.")] = False,
    checkpoint_id: Annotated[
        str | None, typer.Option("--id", help="Id of the checkpoint; by default the newest.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best checkpoint: by evaluation, or else by its training's mean return.")
    ] = False,
    run_dir: Annotated[Path | None, typer.Option(help="The run directory of a CONFIG; by default runs/NAME.")] = None,
    config: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.configurations,
            help="A configuration that names another environment, or that of a CHECKPOINT.",
        ),
    ] = None,
    set_: OverridesOption = None,
    video: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the episodes to this folder, as MP4.")
    ] = None,
    video_every: Annotated[int, typer.Option(min=1, metavar="K", help="Of every K-th episode only.")] = 1,
    display: Annotated[bool, typer.Option("--display", help="Show the episodes in a window, one at a time.")] = False,
    json_: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result to this file; - prints it.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Environments at a time, in processes; by default one per core."),
    ] = None,
    no_progress: NoProgressOption = False,
    aws_keys: Annotated[str | None, typer.Option(metavar="FILE", help="YAML file with `access` and `secret`.")] = None,
    aws_endpoint: EndpointOption = None,
) -> None:
    """Score a checkpoint by playing episodes, without servers.

    For Atari the score is that of whole games, with null-op starts, beside published ones.

    `relaax eval da3c_gym_cartpole` scores the newest checkpoint of runs/da3c_gym_cartpole; `relaax eval da3c_ale_pong
    --random` is a score to compare with.

    Exit code 0: done; 1: the environment or the store failed; 2: this cannot be evaluated; 130: interrupted.
    """
    from relaax.checkpoint import Damaged, StoreError
    from relaax.cli.checkpoints.catalogue import CatalogueError
    from relaax.evaluation import protocols
    from relaax.evaluation.playing import PlayingError
    from relaax.policy import PolicyError

    log_to_stderr("relaax eval: %(message)s")
    refused, failed = (CatalogueError, PolicyError), (Damaged, StoreError, PlayingError, OSError)
    with reported("relaax eval", refused, failed), ExitStack() as stack:
        _end_in_order()
        if video_every != 1 and video is None:
            raise ConfigurationError("--video-every is for --video, which names the folder")
        if random and greedy is not None:
            raise ConfigurationError("--random acts at random: leave out --greedy and --sample")
        if random and (checkpoint_id is not None or best):
            raise ConfigurationError("--random uses no checkpoint: leave out --id and --best")
        if protocol is not None and protocol not in protocols.PROTOCOLS:
            raise ConfigurationError(f"--protocol: {unknown('protocol', protocol, protocols.PROTOCOLS)}")
        _promise(json_)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relaax-eval-")))
        asked = _Asked(name, config, set_ or [], run_dir, checkpoint_id, best, random, aws_keys, aws_endpoint, folder)
        target = asked.target()
        main = target.plan.environment_main
        game = protocols.atari_game(main, target.plan.environment_name)
        options, facts = protocols.protocol_options(
            protocol, sticky, game, random=random, has_frame_skip=protocols.is_ale(main)
        )
        if video is not None:
            options += ["--video", str(video.absolute()), "--video-every", str(video_every)]
        if display:
            options, jobs = [*options, "--display"], 1
        result = _evaluated(
            *(target, game, options, facts, episodes, seed, max_episode_steps, greedy, jobs or cores()),
            json_ != "-" and not no_progress,
        )
        _say(result, json_)
        if video is not None and json_ != "-":
            print(f"videos in {video}")


def _evaluated(
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
    with report.shown_progress(episodes, progress) as watcher:
        played, frame_skip = play(command, policy, EpisodePlan(episodes, seed, max_episode_steps), jobs, watcher)
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
        "cut_off": sum(one.cut for one in played),
        "steps": steps,
        "frames": steps * frame_skip,
        **report.published_comparison(game, found.mean, protocol["name"] == NOOP),
        "returns": [one.episode_return for one in played],
        "lengths": [one.length for one in played],
        "seconds": round(time.monotonic() - start, 3),
        "version": __version__,
    }


def _say(result: dict[str, Any], json_: str | None) -> None:
    from relaax.evaluation import report
    from relaax.files import write_whole

    text = json.dumps(result, indent=2) + "\n"
    if json_ == "-":
        print(text, end="")
        return
    if json_ is not None:  # first: who reads the table may have gone
        write_whole(Path(json_), [text.encode()])
    report.print_result(result)


def _promise(json_: str | None) -> None:
    """Ensure beforehand that the result can be written. Raises ConfigurationError."""
    if json_ is None or json_ == "-":
        return
    if Path(json_).is_dir():
        raise ConfigurationError(f"--json {json_}: this is a folder, and a file is needed")
    if not os.access(Path(json_).absolute().parent, os.W_OK):
        raise ConfigurationError(f"--json {json_}: its folder does not exist or cannot be written")


def _end_in_order() -> None:
    """Let SIGTERM and SIGHUP end it as Ctrl-C does: no process and no file is left."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, interrupt)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options that choose what is evaluated; see `relaax eval --help`. `folder`: for files made for it."""

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
        """Return what was asked for.

        Raises ConfigurationError, CatalogueError, PolicyError, StoreError and Damaged.
        """
        from relaax.policy.file import read

        location = self.name
        if (Path("runs") / location / CONFIGURATION).is_file() and not _is_configuration(location):
            location = str(Path("runs") / location)
        path = Path(location)
        if path.suffix == _SUFFIX:
            if self.checkpoint_id is not None or self.best:
                raise ConfigurationError(f"{self.name} is one policy: --id and --best choose from checkpoints")
            described = read(path).description
            return _target(self._described_plan(described), location, path, described)
        plan = None
        if not location.startswith("s3://") and not path.is_dir():  # a configuration
            plan = self._plan(self.config or location)
            path = self.run_dir or Path("runs") / plan.name
            location = str(path)
            if not self.random and not path.is_dir():
                raise ConfigurationError(
                    f"there is no run of {plan.name} in {path}: train first, `relaax run {self.name}`; or name a run "
                    "directory, a location of checkpoints or a .safetensors file; --random acts at random"
                )
        if self.random:
            return EvaluationTarget(plan or self._plan(self.config or str(path / CONFIGURATION)), None)
        described = self._exported(location)
        if self.config is None and (path / CONFIGURATION).is_file():  # with what the run overrode
            plan = self._plan(str(path / CONFIGURATION))
        return _target(plan or self._described_plan(described), location, self._policy, described)

    @property
    def _policy(self) -> Path:
        return self.folder / f"policy{_SUFFIX}"

    def _plan(self, config: str) -> Plan:
        from relaax.cli.run.plan import make_plan

        return make_plan(config, self.overrides)

    def _exported(self, location: str) -> Description:
        """Export the checkpoint that is asked for."""
        from relaax.cli.checkpoints import catalogue
        from relaax.files import write_whole
        from relaax.policy import file as exporting

        store = catalogue.opened(location, self.aws_keys, self.aws_endpoint)
        checkpoint = catalogue.loaded(store, self.checkpoint_id, self.best)
        write_whole(self._policy, exporting.policy_of(checkpoint))
        return exporting.description_of(checkpoint)

    def _described_plan(self, described: Description) -> Plan:
        """Return the plan of a checkpoint without its run: by --config, or by what it says of itself.

        A checkpoint does not choose which code is run: it names nothing but what comes with RELAAX.
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
            alone = f'; a program that connects by itself acts with Client(..., mode="exploit") on `{served}`'
            alone = "" if self.name.endswith(_SUFFIX) else alone
            raise PolicyError(f"{self.name} names no environment: name its configuration with --config FILE{alone}")
        if name not in bundled_names("algorithms") or environment not in bundled_names("environments"):
            raise PolicyError(
                f"{self.name} was trained by {name} in the environment {environment}, which do not both come with "
                "RELAAX: name its configuration with --config FILE"
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
    return Path(name).exists() or name.removesuffix(".yaml") in bundled_names("config", ".yaml")


def _target(plan: Plan, source: str, file: Path, described: Description) -> EvaluationTarget:
    policy = {"file": str(file), "algorithm": str(plan.algorithm)}
    return EvaluationTarget(plan, policy, source, described.checkpoint, described.global_step, described.mean_return)
