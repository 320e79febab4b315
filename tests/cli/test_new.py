"""`relaax new` writes files that train, and does not overwrite existing files."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from relaax.algorithm_base import Box, load_algorithm
from relaax.bundled import EXAMPLES, bundled_folder, bundled_names
from relaax.cli.app import app
from relaax.cli.run.plan import make_plan
from relaax.client import command
from support.ports import free_ports
from support.processes import Processes, project_command
from support.run import Runs

KINDS = ("algorithm", "environment")


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to an empty working directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def new(kind: str, name: str, *options: str) -> Result:
    return CliRunner().invoke(app, ["new", kind, name, *options], prog_name="relaax")


def files() -> dict[str, str]:
    """Return the text of each file in the working directory, by path."""
    return {path.as_posix(): path.read_text() for path in Path().rglob("*") if path.is_file()}


def expect_refused(kind: str, name: str, sentence: str, *options: str) -> None:
    result = new(kind, name, *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"relaax new {kind}: ")
    assert re.search(sentence, line), line


def test_new_algorithm_is_written() -> None:
    result = new("algorithm", "mine")
    assert result.exit_code == 0, result.stderr
    assert files().keys() == {"mine.py", "test_mine.py", "mine.yaml", "mine.Procfile"}
    assert result.stdout.splitlines() == [
        "wrote mine.py, test_mine.py, mine.yaml and mine.Procfile",
        "next:",
        "  relaax run mine.yaml           trains it on this machine and shows the progress",
        "  honcho -f mine.Procfile start  does the same with separate servers and environment",
        "  edit mine.py                   the algorithm is in this file",
        "  python -m pytest test_mine.py  tests it: pip install pytest",
    ]
    algorithm = load_algorithm("mine.py", Path())
    config = algorithm.configure({"path": "mine.py"})
    sentence = algorithm.Agent.refusal(config, Box(shape=(4,)), Box(shape=(1,)))
    assert sentence is not None
    assert sentence.startswith("mine cannot handle the action space")


def test_new_algorithm_for_pytorch_differs_only_in_its_program() -> None:
    assert new("algorithm", "mine").exit_code == 0
    assert new("algorithm", "other", "--framework", "torch").exit_code == 0
    written = files()
    assert "torch.autograd.grad" in written["other.py"]
    for end in ("{}.yaml", "{}.Procfile", "test_{}.py"):
        assert written[end.format("other")] == re.sub(r"\bmine\b", "other", written[end.format("mine")])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--framework", "torhc"], "unknown framework 'torhc'; did you mean 'torch'?"),
        (["--framework", "torch", "--from", "da3c"], "bundled algorithms have no version for PyTorch"),
    ],
)
def test_unknown_framework_is_refused(options: list[str], sentence: str) -> None:
    expect_refused("algorithm", "mine", re.escape(sentence), *options)
    assert files() == {}


@pytest.mark.parametrize(
    ("bundled", "environment"),
    [
        ("da3c", "CartPole-v1"),
        ("da3c_cont", "Pendulum-v1"),
        *((name, "Pendulum-v1") for name in ("sac", "apex_dpg")),
        *((name, "CartPole-v1") for name in ("async_q", "async_sarsa", "n_step_q", "gorila", "apex", "ppo")),
    ],
)
def test_bundled_algorithm_is_copied(bundled: str, environment: str) -> None:
    result = new("algorithm", "mine", "--from", bundled)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == "wrote mine/, mine.yaml and mine.Procfile"
    assert result.stdout.splitlines()[-1] == "  edit mine/                     the algorithm is in this directory"
    written, source = files(), bundled_folder("algorithms") / bundled
    folder, *names = {
        **dict.fromkeys(("async_q", "async_sarsa", "n_step_q"), ("_value_based", "agent.py", "model.py")),
        **dict.fromkeys(("da3c_cont", "ppo"), ("da3c", "agent.py", "episodes.py", "loss.py", "model.py")),
    }.get(bundled, ("none",))
    for path in [path for path in source.iterdir() if path.is_file()] + [
        source.parent / folder / file for file in names
    ]:
        assert written.pop(f"mine/{path.name}") == path.read_text().replace(f"..{folder}.", ".")
    assert written.keys() == {"mine.yaml", "mine.Procfile"}
    assert environment in written["mine.Procfile"]
    servers = (bundled_folder("config") / f"{EXAMPLES[bundled]}.Procfile").read_text()
    assert servers.replace(f"config/{EXAMPLES[bundled]}.yaml", "mine.yaml") in written["mine.Procfile"]
    plan = make_plan("mine.yaml", [])
    assert (plan.environment_name, plan.configuration.parameter_server.checkpoint_dir) == (
        environment,
        "checkpoints/mine",
    )
    algorithm = load_algorithm(plan.configuration.algorithm_path, plan.configuration.folder)
    assert (algorithm.name, algorithm.source) == ("mine", Path("mine").resolve())


def test_every_bundled_algorithm_can_be_copied() -> None:
    assert sorted(EXAMPLES) == bundled_names("algorithms")


def test_misspelt_algorithm_is_refused_with_a_suggestion() -> None:
    expect_refused("algorithm", "mine", "unknown bundled algorithm 'da3'; did you mean 'da3c'?", "--from", "da3")
    assert files() == {}


@pytest.mark.parametrize("taken", ["mine/precious", "mine.yaml"])
def test_copy_overwrites_no_file(taken: str) -> None:
    Path(taken).parent.mkdir(exist_ok=True)
    Path(taken).write_text("precious")
    expect_refused("algorithm", "mine", "already exists: mine.*; nothing is overwritten", "--from", "da3c")
    assert files() == {taken: "precious"}


def test_new_environment_is_written() -> None:
    result = new("environment", "mine")
    assert result.exit_code == 0, result.stderr
    assert files().keys() == {"mine/main", "mine/main.py", "mine.yaml", "mine.Procfile"}
    assert result.stdout.splitlines() == [
        "wrote mine/main.py, mine.yaml and mine.Procfile",
        "next:",
        "  relaax run mine.yaml           trains it on this machine and shows the progress",
        "  honcho -f mine.Procfile start  does the same with separate servers and environment",
        "  edit mine/main.py              the environment is in this file",
        "  relaax check mine.yaml         plays it at random and reports its faults and mean return",
        "  relaax eval runs/mine          scores the newest checkpoint of a run",
    ]
    assert os.access("mine/main.py", os.X_OK)
    assert Path("mine/main").readlink() == Path("main.py")


@pytest.mark.parametrize(("kind", "template"), [("algorithm", "reinforce"), ("environment", "docking")])
def test_template_name_is_replaced_everywhere(kind: str, template: str) -> None:
    assert new(kind, "mine").exit_code == 0
    for path, text in files().items():
        assert template not in text.replace("reinforcement", ""), path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("my-own", "'my-own' cannot be a name: .*; try 'my_own'"),
        ("2nd.try", "'2nd.try' cannot be a name: .*; try 'nd_try'"),
        ("../up", "'../up' cannot be a name: .*; try 'up'"),
        ("größe", "'größe' cannot be a name: .*; try 'gr__e'"),
        ("", "'' cannot be a name: [^;]*$"),
        ("class", "'class' cannot be a name: [^;]*$"),
        ("random", "'random' is a module of Python, which the new file would hide"),
        ("numpy", "'numpy' is a module of Python, which the new file would hide"),
        ("relaax", "'relaax' is a module of Python, which the new file would hide"),
    ],
)
def test_invalid_name_is_refused(kind: str, name: str, sentence: str) -> None:
    expect_refused(kind, name, sentence)
    assert files() == {}


@pytest.mark.parametrize(
    ("kind", "name", "copy"),
    [
        ("algorithm", "da3c", "`relaax new algorithm my_da3c --from da3c`"),
        ("environment", "OpenAI_Gym", r"`cp -r /.*/environments/OpenAI_Gym \.`"),
    ],
)
def test_name_of_a_bundled_item_is_refused(kind: str, name: str, copy: str) -> None:
    expect_refused(kind, name, rf"'{name}' is one of the bundled {kind}s.*{copy}")
    assert files() == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["yaml", "Procfile"])
def test_existing_files_are_not_overwritten(kind: str, suffix: str) -> None:
    Path(f"mine.{suffix}").write_text("precious")
    expect_refused(kind, "mine", rf"already exists: mine\.{suffix}; nothing is overwritten")
    assert files() == {f"mine.{suffix}": "precious"}


def test_broken_link_is_not_overwritten() -> None:
    Path("mine.py").symlink_to("elsewhere.py")
    expect_refused("algorithm", "mine", r"already exists: mine\.py;")
    assert not Path("elsewhere.py").exists()


def test_algorithm_and_environment_need_different_names() -> None:
    assert new("algorithm", "mine").exit_code == 0
    before = files()
    expect_refused("environment", "mine", r"already exists: mine\.yaml and mine\.Procfile;")
    assert files() == before


def test_file_in_place_of_the_directory_is_refused() -> None:
    Path("mine").write_text("precious")
    expect_refused("environment", "mine", "cannot write the file mine")
    assert files()["mine"] == "precious"


@pytest.mark.parametrize("kind", KINDS)
def test_help_names_files_and_exit_codes(kind: str) -> None:
    shown = CliRunner().invoke(app, ["new", kind, "--help"], prog_name="relaax").stdout
    for words in ("relaax run NAME.yaml", "NAME.Procfile", "Existing files are never overwritten", "Exit code 2"):
        assert words in " ".join(shown.split())


def test_new_environment_explains_rejected_gymnasium_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert new("environment", "mine").exit_code == 0
    described = command.parser("mine/main", "", "")
    with pytest.raises(SystemExit, match="2"):
        command.execute(described, runpy.run_path("mine/main.py")["main"], ["random", "mine", "--kwarg", "size=4"])
    error = capsys.readouterr().err
    assert (
        "unrecognized arguments: --kwarg size=4 (relaax-run.kwargs is passed as --kwarg, for environments of" in error
    )
    assert "relaax-run.arguments" in error


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/new", "relaax/client", "algorithms")
def test_new_environment_trains(runs: Runs) -> None:
    """Random play returns 17; never pushing returns 59."""
    assert new("environment", "mine").exit_code == 0
    run = runs.start("--target-return", "75", "--seed", "1", "--no-progress", config=Path("mine.yaml").resolve())
    assert run.running.wait(240) == 0, run.running.report()
    assert run.summary["mean_return_100"] >= 75


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/new", "relaax/client", "algorithms")
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("kind", "target"), [("algorithm", 475), ("environment", 90)])
def test_unchanged_template_reaches_its_target(kind: str, target: float, runs: Runs, short: bool) -> None:
    assert new(kind, "mine").exit_code == 0
    lower_target = ("--target-return", str(0.8 * target)) if short else ()
    run = runs.start("--seed", "2", "--no-progress", *lower_target, config=Path("mine.yaml").resolve())
    assert run.running.wait(300) == 0, run.running.report()
    assert run.summary["mean_return_100"] >= target * (0.8 if short else 1)


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/new", "relaax/client", "algorithms")
@pytest.mark.parametrize("kind", KINDS)
def test_procfile_trains_until_training_has_finished(kind: str, processes: Processes) -> None:
    assert new(kind, "mine").exit_code == 0
    give_free_ports(Path("mine.yaml"), Path("mine.Procfile"))
    shorten(Path("mine.yaml"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    honcho = processes.start(project_command("honcho"), "-f", "mine.Procfile", "start", env={"PATH": path})
    assert honcho.wait(240) == 0, honcho.report()
    assert any("training has ended at global step" in line for line in honcho.lines), honcho.report()
    assert list(Path("checkpoints/mine").rglob("manifest.json"))


def give_free_ports(*paths: Path) -> None:
    """Replace the ports of the files by two free ones, because a Procfile names its ports before the servers start."""
    names = dict(zip(("7000", "7001"), map(str, free_ports(2)), strict=True))
    for path in paths:
        path.write_text(re.sub("7000|7001", lambda port: names[port[0]], path.read_text()))


def shorten(path: Path) -> None:
    text, found = re.subn("max_global_step: .*", "max_global_step: 3000", path.read_text())
    assert found == 1
    path.write_text(text)
