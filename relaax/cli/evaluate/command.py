"""The command `relaax eval`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from relaax.cli import completion
from relaax.configuration import ConfigurationError
from relaax.console import log_to_stderr, print_error

if TYPE_CHECKING:
    from relaax.cli.evaluate.target import EvaluationTarget

MAX_EPISODE_STEPS = 100_000
"""Beyond the longest games of Atari, of 108,000 frames: 27,000 steps of 4 frames."""

JobsOption = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Environments at a time, in processes; by default one per core.")
]


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
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in `relaax run`.")
    ] = None,
    video: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the episodes to this folder, as MP4.")
    ] = None,
    video_every: Annotated[int, typer.Option(min=1, metavar="K", help="Of every K-th episode only.")] = 1,
    display: Annotated[bool, typer.Option("--display", help="Show the episodes in a window, one at a time.")] = False,
    json_: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result to this file; - prints it.")
    ] = None,
    jobs: JobsOption = None,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Do not show progress.")] = False,
    aws_keys: Annotated[str | None, typer.Option(metavar="FILE", help="YAML file with `access` and `secret`.")] = None,
    aws_endpoint: Annotated[str | None, typer.Option(metavar="URL", help="URL of an S3 other than Amazon's.")] = None,
) -> None:
    """Score a checkpoint by playing episodes, without servers.

    For Atari the score is that of whole games, with null-op starts, beside published ones.

    `relaax eval da3c_gym_cartpole` scores the newest checkpoint of runs/da3c_gym_cartpole; `relaax eval da3c_ale_pong
    --random` is a score to compare with.

    Exit code 0: done; 1: the environment or the store failed; 2: this cannot be evaluated; 130: interrupted.
    """
    log_to_stderr("relaax eval: %(message)s")
    with _sentences(), ExitStack() as stack:
        from relaax.cli.evaluate import protocols
        from relaax.cli.evaluate.target import Asked, find

        _end_in_order()
        if video_every != 1 and video is None:
            raise ConfigurationError("--video-every is for --video, which names the folder")
        if random and greedy is not None:
            raise ConfigurationError("--random acts at random: leave out --greedy and --sample")
        if protocol is not None and protocol not in protocols.PROTOCOLS:
            from relaax.configuration import unknown

            raise ConfigurationError(f"--protocol: {unknown('protocol', protocol, protocols.PROTOCOLS)}")
        _promise(json_)
        asked = Asked(name, config, set_ or [], run_dir, checkpoint_id, best, random, aws_keys, aws_endpoint)
        target = find(asked, stack)
        game = protocols.atari_game(target.plan)
        options, facts = protocols.chosen(
            protocol, sticky, game, random=random, has_frame_skip=protocols.is_ale(target.plan)
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


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    from relaax.cli.evaluate import report
    from relaax.cli.evaluate.playing import EpisodesAsked, play
    from relaax.cli.evaluate.progress import shown_progress
    from relaax.client.command import NOOP
    from relaax.client.connection.address import LOCAL
    from relaax.evaluation.result import statistics_of

    start = time.monotonic()
    if greedy is None:
        greedy = getattr(target.plan.configuration.algorithm_config, "greedy_exploit", None)
    policy = None if target.policy is None else {**target.policy, "greedy": greedy, "seed": seed}
    command = target.plan.environment_command(LOCAL, 1, 0)[1:]
    with shown_progress(episodes, progress) as watcher:
        asked = EpisodesAsked(episodes, seed, max_episode_steps)
        played, frame_skip = play([*command, *options], policy, asked, jobs, watcher)
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
        **report.comparisons(game, found.mean, protocol["name"] == NOOP),
        "returns": [one.episode_return for one in played],
        "lengths": [one.length for one in played],
        "seconds": round(time.monotonic() - start, 3),
        "version": __version__,
    }


def _say(result: dict[str, Any], json_: str | None) -> None:
    from relaax.cli.evaluate import report
    from relaax.files import write_whole

    text = json.dumps(result, indent=2) + "\n"
    if json_ == "-":
        print(text, end="")
        return
    if json_ is not None:  # first: who reads the table may have gone
        write_whole(Path(json_), [text.encode()])
    report.show(result)


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


@contextlib.contextmanager
def _sentences() -> Iterator[None]:
    """Turn errors that the user can act on into one message, and exit."""
    from relaax.checkpoint import Damaged, StoreError
    from relaax.cli.checkpoints.catalogue import CatalogueError
    from relaax.cli.evaluate.playing import PlayingError
    from relaax.policy import PolicyError

    try:
        yield
    except (ConfigurationError, CatalogueError, PolicyError) as error:
        code, sentence = 2, str(error)
    except (Damaged, StoreError, PlayingError) as error:
        code, sentence = 1, str(error)
    except OSError as error:
        code, sentence = 1, f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    else:
        return
    print_error("relaax eval", sentence)
    raise typer.Exit(code) from None
