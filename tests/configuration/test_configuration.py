from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import yaml

from relaax.bundled import bundled_folder
from relaax.configuration import ConfigurationError, find_configuration, load_configuration

FULL = """
    ---
    relaax-parameter-server:
      --bind: localhost:7100
      --checkpoint-dir: checkpoints/x
      checkpoint_interval: 1e2
    relaax-rlx-server:
      bind: 127.0.0.1:0
      parameter-server: somewhere:7100
      --timeout: 90
    relaax-run:
      environment: OpenAI_Gym
      clients: 4
    algorithm:
      path: ../algorithms/da3c
      max_global_step: 1e8
      RMSProp:
        decay: 0.9
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "full.yaml"
    path.write_text(textwrap.dedent(FULL))
    return path


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load_configuration(path, overrides)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
    return str(refused.value)


def test_sections_are_read(file: Path) -> None:
    found = load_configuration(file)
    assert found.parameter_server.bind == "localhost:7100"
    assert found.parameter_server.checkpoint_dir == "checkpoints/x"
    assert found.parameter_server.checkpoint_interval == 100.0
    assert (found.rlx_server.bind, found.rlx_server.timeout) == ("127.0.0.1:0", 90.0)
    assert (found.run.environment, found.run.clients) == ("OpenAI_Gym", 4)
    assert found.algorithm["max_global_step"] == 1e8
    assert found.algorithm_path == "../algorithms/da3c"
    assert found.folder == file.parent


def test_defaults(tmp_path: Path) -> None:
    found = load_configuration(write(tmp_path / "small.yaml", "algorithm: {path: da3c}\n"))
    assert found.parameter_server.bind == "localhost:7000"
    assert found.parameter_server.checkpoint_interval == 900.0
    assert found.parameter_server.checkpoint_dir is None
    assert (found.rlx_server.bind, found.rlx_server.parameter_server) == ("localhost:7001", ["localhost:7000"])
    assert found.rlx_server.timeout is None
    assert (found.parameter_server.device, found.rlx_server.device) == ("cpu", None)
    assert found.run.clients == 2


@pytest.mark.parametrize("text", ["relaax-run:\nalgorithm:\n", "{}"])
def test_sections_may_be_empty(text: str, tmp_path: Path) -> None:
    found = load_configuration(write(tmp_path / "empty.yaml", text))
    with pytest.raises(ConfigurationError, match=r"algorithm\.path: required"):
        _ = found.algorithm_path


@pytest.mark.parametrize("path", ["3", "''", "[a]"])
def test_invalid_algorithm_path_is_refused(path: str, file: Path) -> None:
    found = load_configuration(file, [f"algorithm.path={path}"])
    with pytest.raises(ConfigurationError, match=r"algorithm\.path: required: the name or the path of an algorithm"):
        _ = found.algorithm_path


def test_folder_is_absolute_for_a_relative_file_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert load_configuration("full.yaml").folder == file.parent


def test_override_replaces_file_and_earlier_override(file: Path) -> None:
    found = load_configuration(
        file,
        [
            "algorithm.entropy_beta=0.02",
            "algorithm.RMSProp.decay=0.5",
            "algorithm.max-global-step=5",
            "algorithm.max_global_step=2e6",
            "algorithm.network.dense=[8, 8]",
            "relaax-parameter-server.bind=localhost:1",
            "parameter-server.checkpoint-interval=7",
            "rlx_server.timeout=null",
            "run.clients = 9",
        ],
    )
    assert found.algorithm == {
        "path": "../algorithms/da3c",
        "max_global_step": 2e6,
        "entropy_beta": 0.02,
        "RMSProp": {"decay": 0.5},
        "network": {"dense": [8, 8]},
    }
    assert (found.parameter_server.bind, found.parameter_server.checkpoint_interval) == ("localhost:1", 7.0)
    assert (found.rlx_server.timeout, found.run.clients) == (None, 9)
    assert found.parameter_server.checkpoint_dir == "checkpoints/x", "not overridden"


def test_override_value_may_contain_an_equals_sign(file: Path) -> None:
    assert load_configuration(file, ["run.name=a=b"]).run.name == "a=b"


def test_override_replaces_a_value_with_nested_keys(file: Path) -> None:
    assert load_configuration(file, ["algorithm.path.deep=1"]).algorithm["path"] == {"deep": 1}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm", "--set algorithm: SECTION.KEY=VALUE is expected, as in algorithm.entropy_beta=0.02"),
        ("algorithm=3", "--set algorithm=3: SECTION.KEY=VALUE is expected"),
        ("algorithm.=3", "--set algorithm.=3: SECTION.KEY=VALUE is expected"),
        (".x=3", "--set .x=3: SECTION.KEY=VALUE is expected"),
        ("algorithms.x=3", "--set algorithms.x=3: unknown section 'algorithms'; did you mean 'algorithm'?"),
        ("algorithm.x=[", "--set algorithm.x=[, line 1, column 2: "),
        ("run.clients=no", "relaax-run.clients: "),
        ("run.client=3", "relaax-run: unknown key 'client'; did you mean 'clients'?"),
        ("rlx-server.bind=7001", "relaax-rlx-server.bind: '7001' cannot be used: an address is HOST:PORT"),
        ("run.wrappers=[{A: {}, B: {}}]", "relaax-run.wrappers.0: a wrapper is a name, or one name with its arguments"),
        ("run.wrappers=[{A: 3}]", "relaax-run.wrappers.0: a wrapper is a name, or one name with its arguments"),
        ("rlx-server.wire-precision=half", "relaax-rlx-server.wire_precision: 'half' cannot be used: input should be"),
    ],
)
def test_invalid_override_is_refused(override: str, message: str, file: Path) -> None:
    assert refusal(file, override).startswith(message)


def test_wire_precision_is_refused_without_grpc(file: Path) -> None:
    short = "rlx-server.wire_precision=bfloat16"
    for bridge in ("grpc", "auto"):
        assert load_configuration(file, [short, f"rlx-server.bridge={bridge}"]).rlx_server.wire_precision == "bfloat16"
    assert load_configuration(file, ["rlx-server.bridge=shared_memory"]).rlx_server.wire_precision == "float32"
    for bridge in ("shared_memory", "hogwild"):
        assert refusal(file, short, f"rlx-server.bridge={bridge}") == (
            f"relaax-rlx-server: wire_precision bfloat16 applies to grpc only, and bridge is {bridge}: set "
            "bridge to grpc or auto, or omit wire_precision"
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "the sections relaax-parameter-server, relaax-replay-server, relaax-rlx-server, relaax-learner, "
            "relaax-tensorboard, relaax-run, relaax-cluster, environment-parameters, curriculum, opponents, tune, "
            "algorithm are expected",
        ),
        (
            "- a",
            "the sections relaax-parameter-server, relaax-replay-server, relaax-rlx-server, relaax-learner, "
            "relaax-tensorboard, relaax-run, relaax-cluster, environment-parameters, curriculum, opponents, tune, "
            "algorithm are expected",
        ),
        ("algoritm: {}", "unknown section 'algoritm'; did you mean 'algorithm'?"),
        ("relaax-rlx-sever: {}", "unknown section 'relaax-rlx-sever'; did you mean 'relaax-rlx-server'?"),
        ("algorithm: 3", "algorithm: keys and values are expected, not 3"),
        ("relaax-run: [1]", "relaax-run: keys and values are expected, not [1]"),
        ("relaax-run: {}\nrelaax_run: {}", "the key 'relaax_run' appears twice"),
        ("algorithm:\n  --gpu: false\n  gpu: true", "the key 'gpu' appears twice"),
    ],
)
def test_invalid_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "wrong.yaml", text)
    assert refusal(path).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("rlx_server.bind=localhost", "an address is HOST:PORT, such as localhost:7001"),
        ("rlx_server.bind=:7001", "an address is HOST:PORT"),
        ("rlx_server.bind='localhost:'", "an address is HOST:PORT"),
        ("rlx_server.bind=localhost:65536", "an address is HOST:PORT"),
        ("rlx_server.bind=localhost:-1", "an address is HOST:PORT"),
        ("rlx_server.parameter_server=localhost:seven", "an address is HOST:PORT"),
        ("rlx_server.timeout=0", "input should be greater than 0"),
        ("rlx_server.max_workers=0", "input should be greater than or equal to 1"),
        ("parameter_server.log_level=LOUD", "input should be 'DEBUG', 'INFO', 'WARNING', 'ERROR' or 'CRITICAL'"),
        ("parameter_server.checkpoint_interval=-5", "input should be greater than 0"),
        ("run.clients=0", "input should be greater than or equal to 1"),
        ("rlx_server.device=GPU", "a device is cpu, gpu (the first one) or gpu:I, such as gpu:1"),
        ("rlx_server.device='gpu:'", "a device is cpu, gpu"),
        ("rlx_server.device=cpu:0", "a device is cpu, gpu"),
        ("parameter_server.device=gpu:-1", "a device is cpu, gpu"),
        ("parameter_server.checkpoint_dir=s3://bucket/x", "the path of a folder is needed"),
        ("parameter_server.metrics_dir=s3://bucket/x", "the path of a folder is needed"),
        ("parameter_server.device=null", "input should be a valid string"),
        ("rlx_server.origins=['https://games.example.org/']", "an origin is scheme://host or scheme://host:port"),
        ("rlx_server.origins=['https://Games.example.org']", "in lower case"),
        ("rlx_server.origins=[games.example.org]", "an origin is scheme://host"),
        ("rlx_server.origins=['https://games.example.org:443']", "browsers omit the default port"),
        ("rlx_server.origins=['http://games.example.org:80']", "browsers omit the default port"),
        ("run.kwargs={when: 2020-01-01}", "input was not a valid JSON value"),
    ],
)
def test_invalid_value_is_refused_in_one_line(override: str, reason: str, file: Path) -> None:
    message = refusal(file, override)
    assert " cannot be used: " in message
    assert reason in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("address", ["localhost:0", "127.0.0.1:65535", "'[::1]:7001'", "host.example:7001"])
def test_valid_address_is_accepted(address: str, file: Path) -> None:
    assert load_configuration(file, [f"rlx_server.bind={address}"]).rlx_server.bind == address.strip("'")


@pytest.mark.parametrize("origin", ["http://[fe80::80]", "http://a.example:443", "https://a.example:80", "null"])
def test_valid_origin_is_accepted(origin: str, file: Path) -> None:
    assert load_configuration(file, [f"rlx_server.origins=[{origin!r}]"]).rlx_server.origins == [origin]


@pytest.mark.parametrize("device", ["cpu", "gpu", "gpu:0", "gpu:12"])
@pytest.mark.parametrize("section", ["relaax-rlx-server", "parameter-server"])
def test_valid_device_is_accepted(section: str, device: str, file: Path) -> None:
    found = load_configuration(file, [f"{section}.device={device}"])
    assert (found.rlx_server if section == "relaax-rlx-server" else found.parameter_server).device == device


def test_tilde_at_the_beginning_is_expanded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    found = load_configuration(file, ["parameter_server.checkpoint_dir=~/x", "parameter_server.metrics_dir=./~"])
    assert found.parameter_server.checkpoint_dir == "/home/somebody/x"
    assert found.parameter_server.metrics_dir == "./~"


def test_here_is_replaced_only_at_the_beginning_of_a_path(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = load_configuration(file, ["parameter_server.metrics_dir=${here}/m", "rlx_server.token_file=${here}"])
    assert found.parameter_server.metrics_dir == str(file.parent / "m")
    assert found.rlx_server.token_file == str(file.parent)
    assert found.parameter_server.checkpoint_dir == "checkpoints/x", "unchanged"
    for text in ("./x", "${here}x", "x/${here}"):
        found = load_configuration(file, [f"parameter_server.metrics_dir={text}"])
        assert found.parameter_server.metrics_dir == text


def test_as_dict_written_to_a_file_loads_equally(file: Path, tmp_path: Path) -> None:
    import yaml

    found = load_configuration(file, ["run.clients=3"])
    again = tmp_path / "config" / "again.yaml"
    again.write_text(yaml.safe_dump(found.as_dict()))
    assert load_configuration(again) == found


@pytest.mark.parametrize("path", sorted(bundled_folder("config").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_bundled_configuration_loads(path: Path) -> None:
    from relaax.algorithm_base import load_algorithm

    found = load_configuration(path)
    load_algorithm(found.algorithm_path, found.folder).configure(found.algorithm)


def test_each_experiment_in_containers_has_its_own_folders() -> None:
    """If experiments shared a folder, one would resume the model of another."""
    text = (Path(__file__).parents[2] / "docker" / "compose.yaml").read_text(encoding="utf-8")
    command = yaml.safe_load(text)["services"]["parameter-server"]["command"]
    folders = [word for word in command if word.startswith(("--checkpoint-dir=", "--metrics-dir="))]
    assert folders == [
        "--checkpoint-dir=/data/${EXPERIMENT:-da3c_ale_boxing}/checkpoints",
        "--metrics-dir=/data/${EXPERIMENT:-da3c_ale_boxing}/metrics",
    ]


def test_bundled_configuration_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = bundled_folder("config") / "da3c_ale_boxing.yaml"
    monkeypatch.chdir(tmp_path)
    assert find_configuration("da3c_ale_boxing") == find_configuration("da3c_ale_boxing.yaml") == bundled
    assert find_configuration(str(bundled)) == bundled
    (tmp_path / "da3c_ale_boxing.yaml").touch()
    assert find_configuration("da3c_ale_boxing.yaml") == Path("da3c_ale_boxing.yaml"), (
        "a file in the working directory comes first"
    )


@pytest.mark.parametrize("name", ["my_da3c", "my_da3.yaml", "./my_da3c", "MY_DA3C.yaml"])
def test_unknown_name_suggests_a_similar_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_da3c").mkdir()
    (tmp_path / "my_da3c.yaml").touch()
    with pytest.raises(ConfigurationError) as refused:
        find_configuration(name)
    assert str(refused.value) == f"no file {name}; did you mean your file 'my_da3c.yaml'?"


def test_python_file_is_refused_with_the_command_to_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    with pytest.raises(ConfigurationError, match=r"^mine\.py is a Python file.*run --algorithm mine\.py --environment"):
        find_configuration("mine.py")
    (tmp_path / "mine.yaml").touch()
    with pytest.raises(ConfigurationError, match=r"not a configuration; did you mean 'mine\.yaml'\?$"):
        find_configuration("mine.py")


@pytest.mark.parametrize("folder", ["/nowhere/", "nowhere/", "./", "../config/"])
def test_missing_path_finds_no_bundled_configuration(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("da3c_ale_boxing.yaml", "da3c_ale_boxing", "da3c_ale_boxin.yaml"):
        with pytest.raises(ConfigurationError) as refused:
            find_configuration(folder + name)
        assert str(refused.value) == (
            f"there is no file at {folder}{name}; to use the bundled configuration, "
            "give its name alone: da3c_ale_boxing"
        )
    with pytest.raises(ConfigurationError, match=r"there is no file at .*room\.yaml$"):
        find_configuration(f"{folder}room.yaml")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("900", 900), ("0.5", 0.5), ("90s", 90), ("15m", 900), ("2h", 7200), ("1h30m", 5400), ("1H30M", 5400),
     ("1d2h3m4.5s", 93784.5), ("1.5h", 5400), ("'90'", 90), ("null", None)],
)  # fmt: skip
def test_duration_in_seconds_or_units_is_accepted(file: Path, written: str, seconds: float | None) -> None:
    assert load_configuration(file, [f"run.max_time={written}"]).run.max_time == seconds


@pytest.mark.parametrize(
    "written", ["soon", "15 minutes", "m", "30m1h", "1h1h", "-5s", "1e3s", "15x", "'nan'", "''", "[5]"]
)
def test_invalid_duration_is_refused_with_examples(file: Path, written: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_configuration(file, [f"run.max_time={written}"])
    assert str(refused.value).startswith("relaax-run.max_time: ")
    assert "90s, 15m, 2h, 1h30m" in str(refused.value) or written == "[5]"


@pytest.mark.parametrize("written", ["0", "-5", "0s", "0h0m", ".inf", "1e400", "true"])
def test_zero_negative_or_infinite_duration_is_refused(file: Path, written: str) -> None:
    with pytest.raises(ConfigurationError, match=r"relaax-run\.max_time: "):
        load_configuration(file, [f"run.max_time={written}"])
