"""The command `relaax run`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from relaax.cli import completion
from relaax.cli.options import ClientsOption, ConnectionsOption, EnvironmentsOption, FreshOption, SeedOption
from relaax.cli.reporting import exit_on_errors, resilient
from relaax.configuration import ConfigurationError, overrides_of
from relaax.console import log_to_stderr
from relaax.server.address import AddressError
from relaax.server.command.options import CheckConfigOption, PrintConfigOption

if TYPE_CHECKING:
    from relaax.cli.run.plan import Plan


def run(
    config: Annotated[
        str | None,
        typer.Argument(
            help="A YAML file, or the name of a bundled one: da3c_gym_cartpole.",
            autocompletion=completion.configurations,
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.algorithms,
            metavar="ALGORITHM",
            help="Without CONFIG: a bundled algorithm, such as da3c, or the path of your own.",
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.environments,
            metavar="ENVIRONMENT",
            help="Without CONFIG: an id of gymnasium (CartPole-v1, ALE/Pong-v5, MODULE:ID), FAMILY/NAME, or the "
            "command line of your program ('my_world/main.py NAME').",
        ),
    ] = None,
    clients: ClientsOption = None,
    envs_per_client: EnvironmentsOption = None,
    connections_per_client: ConnectionsOption = None,
    max_steps: Annotated[
        float | None, typer.Option(help="Stop after this many environment steps; schedules do not change.")
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop after this training time, counted from the first connection of this start: seconds, or 90s, "
            "15m, 2h, 1h30m.",
        ),
    ] = None,
    target_return: Annotated[
        float | None, typer.Option(help="Stop successfully at this mean return of the last 100 episodes.")
    ] = None,
    eval_every: Annotated[
        float | None,
        typer.Option(
            metavar="STEPS",
            help="Evaluate the newest checkpoint greedily every STEPS steps during training; the best checkpoint is "
            "then the best by evaluation.",
        ),
    ] = None,
    eval_episodes: Annotated[int | None, typer.Option(help="Episodes of each evaluation.")] = None,
    target_evaluation: Annotated[
        float | None, typer.Option(help="Stop successfully at this mean return of an evaluation.")
    ] = None,
    seed: SeedOption = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also start TensorBoard, and print its URL.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Also serve a live page of the run on a free port, and print its URL.")
    ] = False,
    web_bind: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve the live page at this address; run.web_token_file protects it."),
    ] = None,
    on: Annotated[
        Literal["here", "ray"],
        typer.Option(
            help="Train on this machine, or on a Ray cluster: the cluster of this machine, or of RAY_ADDRESS. On a "
            "cluster, Ctrl-C ends only this command; `relaax cluster` controls the training."
        ),
    ] = "here",
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/NAME.")] = None,
    fresh: FreshOption = False,
    initialize_from: Annotated[
        str | None,
        typer.Option(
            metavar="LOCATION",
            help="Start with the parameters of another training: a run directory, a folder of checkpoints, one "
            "checkpoint, or s3://BUCKET/KEY. No effect if the run is resumed.",
        ),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Record all episodes as Parquet files in this folder.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a key, as in algorithm.entropy_beta=0.02 or run.kwargs.continuous=false.",
        ),
    ] = None,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Do not show progress.")] = False,
    summary: Annotated[Path | None, typer.Option(help="Also write the summary (JSON) to this file.")] = None,
    print_config: PrintConfigOption = False,
    check_config: CheckConfigOption = False,
) -> None:
    """Train on this machine, with servers and environments.

    Without a file: `relaax run --algorithm da3c --environment CartPole-v1`. `relaax list` shows the bundled names.

    Servers and environments are started, supervised and stopped together. An unfinished run in the same directory is
    resumed. The command line overrides environment variables (RELAAX_ALGORITHM__ENTROPY_BETA=0.02), and these override
    the file.

    Exit code 0: done; 1: failed; 2: the configuration is invalid; 3: ended without reaching the target; 130:
    interrupted (the last checkpoint is written first).
    """
    given = {
        "run.clients": clients,
        "run.envs_per_client": envs_per_client,
        "run.connections_per_client": connections_per_client,
        "run.max_steps": max_steps,
        "run.max_time": max_time,
        "run.target_return": target_return,
        "run.eval_every": eval_every,
        "run.eval_episodes": eval_episodes,
        "run.target_evaluation": target_evaluation,
        "parameter_server.initialize_from": initialize_from,
        "rlx_server.record": record,
        "algorithm.seed": seed,
        "tensorboard.enabled": tensorboard or None,
        "run.web": web_bind or ("localhost:0" if web else None),
    }
    overrides = [*(set_ or []), *overrides_of(given)]
    log_to_stderr("relaax run: %(message)s", stream=resilient(sys.stderr))
    with exit_on_errors("relaax run", (AddressError,)):
        on_ray = on == "ray" and not (print_config or check_config)
        if config is None:
            plan, remark = _without_file(algorithm, environment, overrides, here=not on_ray)
        else:
            _refuse_both(config, algorithm, environment)
            from relaax.cli.run.plan import make_plan

            plan, remark = make_plan(config, overrides, here=not on_ray), ""
        place = run_dir if run_dir is not None else Path("runs") / plan.name
        if on_ray:
            from relaax.cli.cluster.command import start_training

            if config is None:
                from relaax.cli.run.without_file import write_file

                config, overrides = str(write_file(plan, place)), []
                if not no_progress:
                    print(remark, file=resilient(sys.stdout), flush=True)
            address, progress = os.environ.get("RAY_ADDRESS", "auto"), not no_progress
            start_training(config, overrides, address, None, place, fresh, True, summary, progress)
        if print_config or check_config:
            from relaax.cli.run.run_directory import RunDirectory
            from relaax.server.command.configuration import check_all, show

            show(config or plan.name, check_all(RunDirectory(place).effective_configuration(plan)), print_config)
            raise typer.Exit(0)
        from relaax.cli.run.environment_check import EnvironmentCheck

        with EnvironmentCheck(plan) as check:  # it runs while this process imports modules
            if not no_progress:
                print("\n".join(filter(None, [plan.title, remark])), file=resilient(sys.stdout), flush=True)
            from relaax.cli.run.experiment import experiment
            from relaax.cli.run.run_directory import RunDirectory

            directory = RunDirectory(place)
            code = experiment(plan, directory, check, fresh=fresh, progress=not no_progress, summary=summary)
    raise typer.Exit(code)


def _without_file(algorithm: str | None, environment: str | None, overrides: list[str], here: bool) -> tuple[Plan, str]:
    """Return the plan of an algorithm and an environment, and a remark for the user. Raises ConfigurationError."""
    if algorithm is None and environment is None:
        raise ConfigurationError(
            "name a configuration, such as da3c_gym_cartpole, or an algorithm and an environment: --algorithm da3c "
            "--environment CartPole-v1; `relaax list` shows the bundled ones"
        )
    if environment is None:
        raise ConfigurationError(f"--algorithm {algorithm} needs --environment, such as --environment CartPole-v1")
    if algorithm is None:
        raise ConfigurationError(f"--environment {environment} needs --algorithm, such as --algorithm da3c")
    from relaax.cli.run.without_file import plan_without_file

    plan, settings = plan_without_file(algorithm, environment, overrides, here)
    run = plan.run
    endless = all(end is None for end in (run.target_return, run.target_evaluation, run.max_steps, run.max_time))
    end = "Ctrl-C saves and ends the run" if here else f"`relaax cluster stop {plan.name}` saves and ends the run"
    return plan, f"{settings}; no target: {end}" if endless else settings


def _refuse_both(config: str, algorithm: str | None, environment: str | None) -> None:
    """Raise ConfigurationError if a configuration is combined with the options that replace one."""
    for option, value, key in (("algorithm", algorithm, "algorithm.path"), ("environment", environment, "run.name")):
        if value is not None:
            raise ConfigurationError(
                f"{config} already names an {option}: remove --{option} or {config}, or change the configuration "
                f"with --set {key}={value}"
            )
