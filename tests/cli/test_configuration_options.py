"""`--print-config`, `--check-config` and early refusals of the commands that read a configuration."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relaax.configuration import SECTIONS, load_configuration
from relaax.configuration.yaml_file import parse_yaml
from support.processes import Processes
from support.service import LEARNER, PARAMETER_SERVER, RELAAX, REPLAY_SERVER, RLX_SERVER

COMMANDS = {
    "relaax run": (*RELAAX, "run", "da3c_gym_cartpole"),
    "relaax-parameter-server": (*PARAMETER_SERVER, "--config", "da3c_gym_cartpole"),
    "relaax-replay-server": (*REPLAY_SERVER, "--config", "da3c_gym_cartpole"),
    "relaax-rlx-server": (*RLX_SERVER, "--config", "da3c_gym_cartpole"),
    "relaax-learner": (*LEARNER, "--config", "da3c_gym_cartpole"),
}
WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None
from relaax.cli.main import main
main()
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_effective_configuration_is_printed(name: str, processes: Processes, tmp_path: Path) -> None:
    command = processes.start(
        *COMMANDS[name],
        *("--set", "algorithm.entropy_beta=0.03", "--print-config"),
        cwd=tmp_path,
        env={"RELAAX_RUN__CLIENTS": "5", "RELAAX_ALGORITHM__ENTROPY_BETA": "0.5", "RELAAX_TOKEN": "very-secret"},
    )
    assert command.wait(120) == 0, command.report()
    text = "\n".join(command.lines)
    assert "  entropy_beta: 0.03  # command line" in command.lines
    assert "  clients: 5  # RELAAX_RUN__CLIENTS" in command.lines
    assert "  name: CartPole-v1  # da3c_gym_cartpole.yaml" in command.lines
    assert "  gae_lambda: 1.0  # default" in command.lines
    assert "very-secret" not in text + command.stderr
    document = parse_yaml(text, "printed")
    assert list(document) == [*SECTIONS, "algorithm"]
    again = tmp_path / "again.yaml"
    again.write_text(text)
    assert load_configuration(again).run.clients == 5
    assert list(tmp_path.glob("runs")) == [], "the run was not started"


def test_secrets_are_not_printed(processes: Processes) -> None:
    secrets = ("--set", "run.arguments=[--token, very-secret, --auth=very-secret]")
    command = processes.start(*COMMANDS["relaax run"], *secrets, "--print-config")
    assert command.wait(120) == 0, command.report()
    assert "  arguments: [--token, (hidden), --auth=(hidden)]  # command line" in command.lines


def test_algorithm_with_import_error_is_refused_in_one_line(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys\nsys.exit(7)\n")
    text = "relaax-run: {environment: OpenAI_Gym, name: CartPole-v1}\nalgorithm: {path: mine.py}\n"
    (tmp_path / "mine.yaml").write_text(text)
    for command in (
        (*RLX_SERVER, "--config", "mine.yaml", "--check-config"),
        (*RELAAX, "schema", "mine.py"),
    ):
        refused = processes.start(*command, cwd=tmp_path)
        assert refused.wait(120) == 2, refused.report()
        (line,) = refused.stderr.splitlines()
        assert line.endswith(": mine.py, line 2: the algorithm cannot be imported: SystemExit: 7")


@pytest.mark.parametrize("name", COMMANDS)
def test_configuration_is_checked(name: str, processes: Processes, tmp_path: Path) -> None:
    good = processes.start(*COMMANDS[name], "--check-config", cwd=tmp_path)
    assert good.wait(120) == 0, good.report()
    (line,) = good.lines
    assert line.startswith("da3c_gym_cartpole is valid: algorithm ")
    assert line.endswith("da3c, environment OpenAI_Gym CartPole-v1")
    bad = processes.start(
        *COMMANDS[name],
        *("--check-config", "--set", "algorithm.log_level=INFO", "--set", "run.clients=0"),
        cwd=tmp_path,
    )
    assert bad.wait(120) == 2, bad.report()
    assert bad.stderr.splitlines() == [
        f"{name}: relaax-run.clients: 0 cannot be used: input should be greater than or equal to 1",
        "    algorithm: unknown key 'log_level'; did you mean 'relaax-parameter-server.log_level' or "
        "'relaax-replay-server.log_level' or 'relaax-rlx-server.log_level' or 'relaax-learner.log_level'?",
    ]


@pytest.mark.parametrize("option", ["--bind", "--status-bind"])
@pytest.mark.parametrize("name", ["relaax-parameter-server", "relaax-replay-server", "relaax-rlx-server"])
def test_check_refuses_an_address_open_to_other_machines(name: str, option: str, processes: Processes) -> None:
    command = processes.start(*COMMANDS[name], "--check-config", option, "0.0.0.0:0")
    assert command.wait(120) == 2, command.report()
    assert "--allow-anonymous" in command.stderr


@pytest.mark.slow
def test_single_file_algorithm_is_checked(processes: Processes, tmp_path: Path) -> None:
    new = processes.start(*RELAAX, "new", "algorithm", "mine", cwd=tmp_path)
    assert new.wait(60) == 0, new.report()
    good = processes.start(*RELAAX, "run", "mine.yaml", "--check-config", cwd=tmp_path)
    assert good.wait(120) == 0, good.report()
    bad = processes.start(
        *RELAAX, "run", "mine.yaml", "--check-config", "--set", "algorithm.rewards_gama=1", cwd=tmp_path
    )
    assert bad.wait(120) == 2, bad.report()
    assert bad.stderr == "relaax run: algorithm: unknown key 'rewards_gama'; did you mean 'rewards_gamma'?\n"


def test_misspelt_key_is_refused_before_tensorflow_loads(processes: Processes, tmp_path: Path) -> None:
    for directory in ("runs/da3c_gym_cartpole", "mine"):
        options = [] if directory.startswith("runs") else ["--run-dir", directory, "--fresh"]
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "configuration.yaml").write_text("an earlier run")
        command = processes.start(
            *(sys.executable, "-c", WITHOUT_TENSORFLOW, "run", "da3c_gym_cartpole", *options),
            *("--set", "algorithm.entropi_beta=1"),
            cwd=tmp_path,
        )
        assert command.wait(60) == 2, command.report()
        assert command.stderr.startswith("relaax run: algorithm: unknown key 'entropi_beta'; did you mean 'entropy_be")
        assert (tmp_path / directory / "configuration.yaml").read_text() == "an earlier run"
        assert [path.name for path in (tmp_path / directory).parent.glob("da3c*.*")] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_variable_of_no_key_is_refused(name: str, processes: Processes) -> None:
    command = processes.start(*COMMANDS[name], env={"RELAAX_RUN__CLIENT": "1"})
    assert command.wait(60) == 2, command.report()
    assert command.stderr == (
        f"{name}: the environment variable RELAAX_RUN__CLIENT sets no key of the configuration; the nearest that does "
        "is RELAAX_RUN__CLIENTS\n"
    )


@pytest.mark.parametrize(
    "command",
    ["relaax-parameter-server --config", "relaax-rlx-server --config", "relaax run", "relaax bench", "relaax schema"],
)
def test_missing_path_is_refused_by_every_command(command: str, processes: Processes) -> None:
    running = processes.start(*command.split(), "/nowhere/da3c_ale_boxing.yaml")
    assert running.wait(60) == 2, running.report()
    program = command.removesuffix(" --config")
    assert running.stderr == (
        f"{program}: there is no file at /nowhere/da3c_ale_boxing.yaml; to use the bundled configuration, "
        "give its name alone: da3c_ale_boxing\n"
    )
