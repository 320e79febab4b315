"""The command `relaax tune`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from relaax.cli import completion
from relaax.cli.options import OverridesOption
from relaax.cli.own_command import stop_on_signals
from relaax.cli.reporting import exit_on_errors
from relaax.configuration import ConfigurationError
from relaax.configuration.tune_section import TUNE, SearchRange
from relaax.console import log_to_stderr
from relaax.files import move_aside, write_whole

if TYPE_CHECKING:
    from relaax.cli.run.plan import Plan
    from relaax.cli.tune.places import Place

STUDY = "study.log"
STEPS = "steps"  # attribute of a study: the steps of each trial


def tune(
    config: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.configurations,
            help="A YAML file, or the name of a bundled one: da3c_gym_cartpole.",
        ),
    ],
    trials: Annotated[int, typer.Option(min=1, help="Number of trials; earlier starts count.")] = 20,
    max_steps: Annotated[
        float | None, typer.Option(help="Environment steps of each trial; by default max_global_step.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of concurrent trials; by default as many as the cores allow."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choices and of trial 0; trial K has seed + K.")] = 0,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Another storage of Optuna, such as sqlite:///study.db."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Folder of the study; by default runs/tune-CONFIG.")
    ] = None,
    on: Annotated[
        Literal["here", "ray"],
        typer.Option(
            help="Train on this machine, or on the machines of a Ray cluster: that of this machine, or of RAY_ADDRESS. "
            "They share the folder of the study."
        ),
    ] = "here",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start a new study; a previous one is moved aside.")] = False,
    set_: OverridesOption = None,
) -> None:
    """Search for better values of keys, by Optuna.

    Each trial is a training with other values. The section `tune` of the configuration lists keys and ranges:

    tune:
      algorithm.initial_learning_rate: {log: [1e-5, 1e-2]}
      algorithm.gae_lambda: {uniform: [0.7, 1]}
      algorithm.episode_len: {choices: [5, 20]}

    Without it, common keys of the algorithm are tried. Trial 0 has the values of the configuration. A trial that stays
    below the median of the others ends early. The study ends when a trial reaches the target of the configuration, or
    after --trials. What is maximised is the mean return of the evaluations with eval-every, else that of 100 episodes.

    The folder has the run directories, study.log, from which the same command resumes, and best.yaml, which trains with
    the best values. Optuna's dashboard shows study.log: optuna-dashboard DIR/study.log.

    Exit code 0: done; 1: no trial has a result; 2: the request is invalid; 130: interrupted.
    """
    from relaax.cli.run.environment_check import EnvironmentCheck
    from relaax.cli.run.plan import make_plan
    from relaax.cli.tune.places import ClusterTrainings, LocalTrainings
    from relaax.cli.tune.space import space_of
    from relaax.supervision.process import StartError

    log_to_stderr("relaax tune: %(message)s")
    with exit_on_errors("relaax tune", (StartError,), (OSError,)):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        plan = make_plan(config, set_ or [], here=on == "here")
        space = space_of(plan.configuration)
        _check(space, config, set_ or [], on == "here")
        with EnvironmentCheck(plan) as check:
            check.wait()
        place = folder or Path("runs") / f"tune-{plan.name}"
        where = LocalTrainings() if on == "here" else ClusterTrainings(place.name)
        if fresh and isinstance(where, ClusterTrainings):
            where.stop_all()
        if fresh and place.exists():
            print(f"the previous study is now {move_aside(place)}")
        place.mkdir(parents=True, exist_ok=True)
        steps = min(int(max_steps or 2**63), plan.max_steps)
        at_once = jobs or max(1, where.cores() // plan.run.clients)
        with _locked(place):
            code = _search(config, plan, space, set_ or [], place, where, storage, trials, steps, at_once, seed)
    raise typer.Exit(code)


def _check(space: Mapping[str, SearchRange], config: str, overrides: list[str], here: bool) -> None:
    """Raise ConfigurationError if a key of the space is unknown, or cannot have its first or its last value."""
    from relaax.cli.run.plan import make_plan

    for key, values in space.items():
        for value in (values.values[0], values.values[-1]):
            try:
                make_plan(config, [*overrides, f"{key}={json.dumps(value)}"], here)
            except ConfigurationError as error:
                raise ConfigurationError(f"section tune: {error}") from None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(f"another `relaax tune` uses {folder}; --dir names another folder") from None
        yield


def _search(
    config: str,
    plan: Plan,
    space: Mapping[str, SearchRange],
    overrides: list[str],
    folder: Path,
    where: Place,
    storage: str | None,
    trials: int,
    steps: int,
    at_once: int,
    seed: int,
) -> int:
    """Run the trials, print and write the best; return the exit code. Raises ConfigurationError."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    from relaax.cli.run.plan import make_plan
    from relaax.cli.tune.space import current_values
    from relaax.cli.tune.trials import EVALUATION, RETURN, TrialRunner, TrialSettings

    try:
        stored = optuna.storages.get_storage(storage or JournalStorage(JournalFileBackend(str(folder / STUDY))))
    except Exception as error:  # of SQLAlchemy, or of the database's driver
        first = str(error).partition("\n")[0]
        raise ConfigurationError(f"--storage {storage}: {first}; an example is sqlite:///trials.db") from None
    study: Any = optuna.create_study(
        study_name=folder.name,
        storage=stored,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
        direction="maximize",
        load_if_exists=True,
    )
    begun_before = len(study.get_trials(deepcopy=False))
    # Another seed after each start: with the same one, a study that continues would try its first values again.
    study.sampler = optuna.samplers.TPESampler(seed=seed + begun_before, n_startup_trials=5, constant_liar=True)
    if (before := study.user_attrs.get(STEPS, steps)) != steps:
        raise ConfigurationError(
            f"{folder} holds trials of {before:,} steps, not of {steps:,}: give --max-steps {before}, or name another "
            "folder by --dir"
        )
    study.set_user_attr(STEPS, steps)
    if not begun_before and (own := current_values(plan.configuration, space)):
        study.enqueue_trial(own)
    begun = time.monotonic()

    def report(text: str) -> None:
        print(f"{time.monotonic() - begun:7.0f} s  {text}", flush=True)

    scalar = EVALUATION if plan.run.eval_every is not None else RETURN
    settings = TrialSettings(config, overrides, steps, scalar, seed)
    runner = TrialRunner(study, space, settings, folder, where, trials, report)
    stop_on_signals(runner.stopping, "stopping the running trials; the same command continues them")
    done = sum(trial.state is not optuna.trial.TrialState.WAITING for trial in study.get_trials(deepcopy=False))
    print(
        f"{trials} trials of {steps:,} steps, {done} begun before, {at_once} at a time; {', '.join(space)}", flush=True
    )
    runner.run(at_once)
    _print_trials(study)
    if not study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)):
        return 130 if runner.stopping.is_set() else 1
    best = study.best_trial
    values = [f"{key}={json.dumps(value)}" for key, value in best.params.items()]
    write_best(folder / "best.yaml", make_plan(config, [*overrides, *values], here=False))
    print(f"best: trial {best.number}, {best.value:g}; relaax run {folder / 'best.yaml'} trains with its values")
    return 130 if runner.stopping.is_set() else 0


def _print_trials(study: Any) -> None:
    from rich import box
    from rich.table import Table

    from relaax.plain_console import PlainConsole

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    keys = list(dict.fromkeys(key for trial in study.get_trials(deepcopy=False) for key in trial.params))
    for name in ("trial", "state", "value", *(key.rpartition(".")[2] for key in keys)):
        table.add_column(name, justify="right")
    for trial in study.get_trials(deepcopy=False):
        value = "" if trial.value is None else f"{trial.value:.4g}"
        cells = (trial.params.get(key, "") for key in keys)
        shown = (f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells)
        table.add_row(str(trial.number), trial.state.name.lower(), value, *shown)
    PlainConsole().print(table, highlight=False)


def write_best(path: Path, plan: Plan) -> None:
    """Write the keys that the configuration of a plan sets, as a file that runs from any folder."""
    import yaml

    from relaax.bundled import bundled_folder

    configuration = plan.configuration
    everything = configuration.as_dict()
    document: dict[str, Any] = {}
    for keys in configuration.origins:
        value, inner = everything[keys[0]], document.setdefault(keys[0], {})
        for key in keys[1:-1]:
            value, inner = value[key], inner.setdefault(key, {})
        inner[keys[-1]] = value[keys[-1]]
    document.pop(TUNE, None)
    document["algorithm"]["path"] = _findable(plan.algorithm, bundled_folder("algorithms"))
    document["relaax-run"]["environment"] = _findable(plan.environment_main.parent, bundled_folder("environments"))
    if "path" in document["relaax-run"]:
        document["relaax-run"]["path"] = list(map(str, plan.search_path))
    head = f"# The best values of `relaax tune` for {plan.title}\n"
    write_whole(path, [(head + yaml.safe_dump(document, sort_keys=False)).encode()])


def _findable(path: Path, bundled: Path) -> str:
    """Return a name or an absolute path by which a file in any folder can refer to `path`."""
    return path.name if path.parent.resolve() == bundled.resolve() else str(path.resolve())
