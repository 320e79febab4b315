"""The command `relaax suite`."""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaax.cli import completion
from relaax.cli.options import OverridesOption, cores
from relaax.cli.own_command import stop_on_signals
from relaax.cli.reporting import exit_on_errors
from relaax.configuration import ConfigurationError
from relaax.console import log_to_stderr, print_error
from relaax.files import move_aside, write_whole

if TYPE_CHECKING:
    from relaax.cli.suite.jobs import SuiteRecord


def suite(
    config: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.configurations, help="A YAML file, or the name of a bundled one: da3c_ale_pong."
        ),
    ],
    environments: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Environments, as relaax-run.name: pong boxing breakout.")
    ],
    seeds: Annotated[
        str, typer.Option(metavar="N|A,B,...", help="Number of seeds, from 0 on; or a list of seeds, as in 7,8 or 7,.")
    ] = "1",
    max_steps: Annotated[float | None, typer.Option(help="Environment steps of each training.")] = None,
    max_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time of each training, without interruptions: 5m, 2h.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each evaluation.")] = 30,
    protocol: Annotated[str | None, typer.Option(metavar="[noop|none]", help="As for `relaax eval`.")] = None,
    sticky: Annotated[float | None, typer.Option(min=0, max=1, help="As for `relaax eval`.")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Evaluate the checkpoint with the highest mean return, not the newest.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of concurrent trainings; by default as many as the cores allow."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Folder of the suite; by default runs/suite-CONFIG.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start a new suite; a previous suite is moved aside.")] = False,
    set_: OverridesOption = None,
) -> None:
    """Train and evaluate in several environments and seeds.

    The result is one table with medians over the seeds, and the curves of all trainings as small plots. For Atari, the
    table has human-normalised scores and the scores of Table 1 of each paper. If all trainings have 10 million frames,
    a second table, training.csv, compares their scores in training with A2C, PPO and DQN. After each evaluation
    and at the end, the command writes table.md, table.csv, curves.png and curves.csv.

    Ctrl-C stops the running trainings with a checkpoint. The same command resumes them, and may add environments and
    seeds. A target_return of the configuration is ignored: each training ends at max_global_step, or before it at
    --max-steps or --max-time.

    Exit code 0: all jobs are done; 1: some failed, and the same command retries them; 2: the request is invalid; 130:
    interrupted.
    """
    from relaax.cli.run.environment_check import EnvironmentCheck
    from relaax.cli.run.plan import make_plan
    from relaax.cli.suite.jobs import SuitePlan, open_record
    from relaax.configuration.sections import RunSection
    from relaax.configuration.validation import validate_section
    from relaax.evaluation import protocols
    from relaax.supervision.process import StartError

    log_to_stderr("relaax suite: %(message)s")
    with exit_on_errors("relaax suite", (StartError,), (OSError,)):
        limits = {} if max_time is None else {"max_time": max_time}
        seconds = validate_section(RunSection, limits, "relaax-run").max_time
        evaluation = ["--best"] if best else []
        evaluation += [] if protocol is None else ["--protocol", protocol]
        evaluation += [] if sticky is None else ["--sticky", str(sticky)]
        names = list(dict.fromkeys(environments))
        wanted = SuitePlan(config, names, _seeds(seeds), set_ or [], max_steps, seconds, episodes, evaluation)
        for environment in names:  # make one environment of each name
            plan = make_plan(config, [*wanted.overrides, f"run.name={environment}"])
            with EnvironmentCheck(plan) as check:
                check.wait()
            protocols.protocol_options(
                protocol, sticky, protocols.atari_game(plan.environment_main, plan.environment_name)
            )
        place = folder or Path("runs") / f"suite-{Path(config).stem}"
        if fresh and place.exists():
            print(f"the previous suite is now {move_aside(place)}")
        place.mkdir(parents=True, exist_ok=True)
        record = open_record(place, wanted)
        at_once = jobs or max(1, cores() // plan.run.clients)
        code = _run(record, place, at_once, max(1, cores() // at_once))
    raise typer.Exit(code)


def _seeds(text: str) -> list[int]:
    if re.fullmatch(r"\d+", text) and int(text) > 0:
        return list(range(int(text)))
    if re.fullmatch(r"\d+(,\d+)*,?", text) and text != "0":
        return list(dict.fromkeys(int(part) for part in text.strip(",").split(",")))
    raise ConfigurationError(f"--seeds must be a number of seeds (3) or a list of seeds (7,8 or 7,), not {text!r}")


def _run(record: SuiteRecord, folder: Path, at_once: int, share: int) -> int:
    """Run the remaining jobs, and print the table; return the exit code. Raises ConfigurationError."""
    from relaax.cli.suite.jobs import JobRunner

    start = time.monotonic()

    def report(text: str) -> None:
        done = sum(job.result is not None for job in record.jobs.values())
        print(f"{time.monotonic() - start:7.0f} s  {done} of {len(record.jobs)} done  {text}", flush=True)

    runner = JobRunner(record, folder, share, report, lambda: _write_results(record, folder))
    names = list(record.plan.names())
    remaining = [name for name in names if record.jobs[name].result is None]
    print(
        f"{len(names)} trainings, {len(remaining)} remaining, {at_once} at a time; logs and results in {folder}",
        flush=True,
    )
    stop_on_signals(runner.stopping, "stopping the running jobs; the same command resumes them")
    record.save()
    failures = runner.run(remaining, at_once)
    for failure in failures:
        print_error("relaax suite", failure)
    text, files = _write_results(record, folder)
    if text:
        print(f"\n{text}")
    if files:
        print(", ".join(map(str, files)))
    return 130 if runner.stopping.is_set() else 1 if failures else 0


def _write_results(record: SuiteRecord, folder: Path) -> tuple[str, list[Path]]:
    """Write the page, the tables and the curves of the results so far; return the page's text and the files."""
    from relaax.cli.suite.curves import write_curves
    from relaax.evaluation.report import score_tables

    runs: dict[str, list[Path]] = {}
    results: dict[str, dict[int, Any]] = {}
    for name, (environment, seed) in record.plan.names().items():
        runs.setdefault(environment, []).append(folder / name)
        if (result := record.jobs[name].result) is not None:
            results.setdefault(environment, {})[seed] = result
    files = write_curves(folder, runs)
    if not results:
        return "", files
    made = score_tables(results)
    tables = [folder / f"{table.name}.csv" for table in made]
    for path, table in zip(tables, made, strict=True):
        write_whole(path, [table.csv().encode()])
    text = "\n".join([*(table.markdown() for table in made), _what_it_took(record)])
    picture = ["", "![Curves of all trainings](curves.png)", ""] if folder / "curves.png" in files else []
    write_whole(folder / "table.md", [(text + "\n".join(picture)).encode()])
    return text, [folder / "table.md", *tables, *files]


def _what_it_took(record: SuiteRecord) -> str:
    """Return the section of the page with steps, hours, settings and machine of the finished trainings."""
    from relaax.cli.bench.results import processor_name
    from relaax.cli.run.plan import make_plan
    from relaax.evaluation.report import how_played

    done = [(job.seconds, job.result) for job in record.jobs.values() if job.result is not None]
    steps = fmean(result["global_step"] for _, result in done)
    hours = sum(seconds for seconds, _ in done) / 3600
    run = make_plan(record.plan.config, record.plan.overrides).run
    options = f", options `{shlex.join(run.arguments)}`" if run.arguments else ""
    return (
        f"## What it took\n\n{len(done)} trainings of {steps:,.0f} steps, {hours:.1f} hours in all, on {cores()} cores "
        f"({processor_name()}). Each had {run.clients} x {run.envs_per_client} environments{options}. Each "
        f"evaluation: {record.plan.episodes} episodes{how_played(done[0][1])}.\n\n"
        f"    {shlex.join(['relaax', *sys.argv[1:]])}\n"
    )
