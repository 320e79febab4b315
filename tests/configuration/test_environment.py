"""Environment variables as a source of configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaax.configuration import Configuration, ConfigurationError, load_configuration, without_variables
from relaax.configuration.layers import variable_of
from relaax.hosting.loader import load_config

FILE = """
relaax-run: {clients: 3, name: from-file}
algorithm: {path: da3c, entropy_beta: 0.5, RMSProp: {decay: 0.5}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.yaml"
    path.write_text(FILE)
    return path


def load(file: Path, *overrides: str, **environ: str) -> Configuration:
    return load_configuration(file, overrides, environ, load_config)


def refusal(file: Path, **environ: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load(file, **environ)
    return str(refused.value)


def test_variable_overrides_file_but_not_command_line(file: Path) -> None:
    environ = {
        "RELAAX_RUN__CLIENTS": "4",
        "RELAAX_RLX_SERVER__BIND": "localhost:7",
        "RELAAX_ALGORITHM__ENTROPY_BETA": "2e-2",
        "RELAAX_ALGORITHM__RMSPROP__EPSILON": "0.25",
        "RELAAX_ALGORITHM__NETWORK": "{dense: [8]}",
        "PATH": "/bin",
    }
    found = load(file, "run.clients=5", **environ)
    assert (found.run.clients, found.run.name, found.rlx_server.bind) == (5, "from-file", "localhost:7")
    assert found.algorithm == {
        "path": "da3c",
        "entropy_beta": 0.02,
        "RMSProp": {"decay": 0.5, "epsilon": 0.25},
        "network": {"dense": [8]},
    }
    assert found.origins[("relaax-run", "clients")] == "command line"
    assert found.origins[("relaax-run", "name")] == "some.yaml"
    assert found.origins[("algorithm", "RMSProp", "epsilon")] == "RELAAX_ALGORITHM__RMSPROP__EPSILON"
    assert found.origins[("algorithm", "network", "dense")] == "RELAAX_ALGORITHM__NETWORK"
    assert ("algorithm", "gae_lambda") not in found.origins


def test_variable_can_select_the_algorithm(file: Path) -> None:
    file.write_text("algorithm: {path: da3c}")
    environ = {"RELAAX_ALGORITHM__PATH": "n_step_q", "RELAAX_ALGORITHM__DOUBLE": "true"}
    assert load(file, **environ).algorithm["double"] is True
    with pytest.raises(ConfigurationError, match="RELAAX_ALGORITHM__DOUBLE sets no key"):
        load(file, "algorithm.path=da3c", **environ)


def test_variables_of_a_single_file_algorithm_are_checked(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from relaax.algorithm_base import ConfigBase\nclass Config(ConfigBase):\n    my_key: int = 0\n"
    )
    file = tmp_path / "own.yaml"
    file.write_text("algorithm: {path: own.py}\n")
    environ = {"RELAAX_ALGORITHM__MY_KEY": "1", "RELAAX_ALGORITHM__RMSPROP__DECAY": "0.75"}
    found = load(file, **environ)
    assert (found.algorithm["my_key"], found.algorithm["RMSProp"]) == (1, {"decay": 0.75})
    with pytest.raises(ConfigurationError, match="RELAAX_ALGORITHM__MY_KAY sets no key"):
        load(file, RELAAX_ALGORITHM__MY_KAY="1")


@pytest.mark.parametrize(
    ("variable", "right"),
    [
        ("RELAAX_RUN__CLIENT", "RELAAX_RUN__CLIENTS"),
        ("RELAAX_ALGORITHM__ENTROPI_BETA", "RELAAX_ALGORITHM__ENTROPY_BETA"),
        ("RELAAX_RELAAX_RUN__MAX_STEPS", "RELAAX_RUN__MAX_STEPS"),
    ],
)
def test_variable_of_no_key_is_refused_with_a_suggestion(variable: str, right: str, file: Path) -> None:
    assert refusal(file, **{variable: "1"}) == (
        f"the environment variable {variable} sets no key of the configuration; the nearest that does is {right}"
    )


@pytest.mark.parametrize(
    ("variable", "right"),
    [
        ("RELAAX_RLX_SERVER_BIND", "RELAAX_RLX_SERVER__BIND"),
        ("RELAAX_RUNS__CLIENTS", "RELAAX_RUN__CLIENTS"),
        ("RELAAX_RUN_MAX_STEP", "RELAAX_RUN__MAX_STEPS"),
        ("RELAAX_TOKENS", "RELAAX_TOKEN"),
        ("RELAAX_TOKN", "RELAAX_TOKEN"),
    ],
)
def test_variable_with_a_similar_name_is_warned_of(
    variable: str, right: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(file, **{variable: "secret"}).origins == load(file).origins
    assert caplog.messages == [f"the environment variable {variable} has no effect; did you mean {right}?"]


def test_kubernetes_variables_are_ignored(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Kubernetes sets such variables for Services named relaax, relaax-rlx-server and the like."""
    of_a_service = (
        "SERVICE_HOST SERVICE_PORT SERVICE_PORT_RLX PORT PORT_7001_TCP PORT_7001_TCP_PROTO PORT_7001_TCP_ADDR"
    )
    names = ("RELAAX", "RELAAX_RLX_SERVER", "RELAAX_PARAMETER_SERVER", "RELAAX_RUN", "RELAAX_WEB")
    load(file, **{f"{name}_{end}": "1" for name in names for end in of_a_service.split()})
    assert caplog.messages == []


def test_invalid_value_error_names_its_variable(file: Path) -> None:
    assert refusal(file, RELAAX_RUN__CLIENTS="many").endswith("(it comes from RELAAX_RUN__CLIENTS)")
    assert refusal(file, RELAAX_RUN__CLIENTS="[").startswith("RELAAX_RUN__CLIENTS, line 1, column 2: ")
    assert refusal(file, RELAAX_RUN__NAME="").startswith("RELAAX_RUN__NAME: a value is missing; write null ")


def test_token_variable_is_not_a_key(file: Path) -> None:
    environ = {"RELAAX_TOKEN": "secret", "RELAAX_RUN__CLIENTS": "4", "HOME": "/"}
    assert "secret" not in repr(load(file, **environ))
    assert without_variables(environ) == {"RELAAX_TOKEN": "secret", "HOME": "/"}


def test_variable_names_of_keys() -> None:
    assert variable_of(("relaax-parameter-server", "checkpoint_dir")) == "RELAAX_PARAMETER_SERVER__CHECKPOINT_DIR"
    assert variable_of(("algorithm", "RMSProp", "decay")) == "RELAAX_ALGORITHM__RMSPROP__DECAY"
