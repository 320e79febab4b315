"""The command `relaax clone`: pretrain a policy by behaviour cloning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaax.cli import completion
from relaax.cli.options import FreshOption, NoProgressOption, OverridesOption, SeedOption
from relaax.cli.reporting import exit_on_errors, resilient
from relaax.configuration import ConfigurationError, overrides_of
from relaax.console import log_to_stderr
from relaax.libraries import explained

if TYPE_CHECKING:
    from relaax.cli.run.plan import Plan
    from relaax.demonstrations.reading import RecordedEpisodes
    from relaax.rlx.spaces import Space

WEIGHT = "cloning_weight"
EPOCHS = 50


def clone(
    path: Annotated[Path, typer.Argument(metavar="EPISODES", help="Episodes of `relaax record`: a folder or a file.")],
    config: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.configurations,
            help="The configuration to pretrain: a YAML file, or the name of a bundled one.",
        ),
    ],
    epochs: Annotated[int, typer.Option(min=1, help="How often each recorded step is learned.")] = EPOCHS,
    seed: SeedOption = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/NAME-clone.")] = None,
    fresh: FreshOption = False,
    set_: OverridesOption = None,
    no_progress: NoProgressOption = False,
    summary: Annotated[Path | None, typer.Option(help="Also write the summary (JSON) to this file.")] = None,
) -> None:
    """Pretrain a policy by behaviour cloning of recorded episodes.

    The result is a run with checkpoints: continue with `relaax run CONFIG --initialize-from runs/NAME-clone`, or score
    it with `relaax eval runs/NAME-clone`. The policy learns the recorded actions, and the value learns the recorded
    rewards.

    Evaluations of the configuration play its environment. Its targets do not end the run. Exit codes: as `relaax run`.
    """
    log_to_stderr("relaax clone: %(message)s", stream=resilient(sys.stderr))
    with exit_on_errors("relaax clone"):
        recorded = read_episodes(path)
        plan = _plan(config, path, recorded, epochs, [*(set_ or []), *overrides_of({"algorithm.seed": seed})])
        place = run_dir if run_dir is not None else Path("runs") / f"{plan.name}-clone"
        from relaax.cli.run.environment_check import EnvironmentCheck

        with EnvironmentCheck(plan) as check:
            if not no_progress:
                print(f"{plan.title}, {description_of(recorded)}", file=resilient(sys.stdout), flush=True)
            from relaax.cli.run.experiment import experiment
            from relaax.cli.run.run_directory import RunDirectory

            _check_spaces(plan, recorded, check.wait())
            directory = RunDirectory(place)
            code = experiment(plan, directory, check, fresh=fresh, progress=not no_progress, summary=summary)
    raise typer.Exit(code)


def read_episodes(path: Path) -> RecordedEpisodes:
    """Read and check recorded episodes. Raises ConfigurationError."""
    try:
        with explained("demonstrations"):
            from relaax.demonstrations.columns import RecordingError
            from relaax.demonstrations.reading import RecordedEpisodes
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(error)) from None
    try:
        return RecordedEpisodes(path)
    except RecordingError as error:
        raise ConfigurationError(str(error)) from None


def description_of(recorded: RecordedEpisodes) -> str:
    """Return the size of a recording as a text."""
    return f"{recorded.episodes:,} episodes, {recorded.steps:,} steps, mean return {recorded.mean_return:g}"


def _check_spaces(plan: Plan, recorded: RecordedEpisodes, spaces: tuple[Space, Space] | None) -> None:
    """Raise ConfigurationError if the environment has other spaces than the episodes. `spaces`: None if not known."""
    from relaax.rlx.spaces import is_compatible

    of = recorded.description
    for what, here, there in zip(
        ("observations", "actions"), spaces or (), (of.observation_space, of.action_space), strict=False
    ):
        if not is_compatible(here, there):
            raise ConfigurationError(
                f"the {what} of {plan.environment_name} are {here}, but the episodes"
                f"{f' of {of.environment}' if of.environment else ''} have {there}: give the configuration of the "
                "environment that was recorded"
            )


def _plan(config: str, path: Path, recorded: RecordedEpisodes, epochs: int, overrides: list[str]) -> Plan:
    """Return the plan of a run whose clients play the episodes. Raises ConfigurationError."""
    from relaax.cli.run.plan import make_plan

    plan = make_plan(config, overrides)
    section: Any = plan.configuration.algorithm_config
    if not hasattr(section, WEIGHT):
        raise ConfigurationError(
            f"{config}: {plan.algorithm.stem} learns no policy from recorded actions: it has no key {WEIGHT}; use "
            "da3c, da3c_cont or ppo. Algorithms with replay memory learn with `relaax replay load`"
        )
    given = {
        "run.demonstrations": str(path.absolute()),
        "run.max_steps": epochs * recorded.steps,
        f"algorithm.{WEIGHT}": getattr(section, WEIGHT) or 1.0,
    }
    without_targets = ["run.target_return=null", "run.target_evaluation=null"]
    return make_plan(config, [*overrides, *overrides_of(given), *without_targets])
