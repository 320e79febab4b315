from __future__ import annotations

import inspect
import logging
import re
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from relaax.algorithm_base import AgentBase, Box, Discrete, load_algorithm
from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration import ConfigurationError
from relaax.hosting.loader import find_algorithm, load_config

BUNDLED = bundled_folder("algorithms") / "da3c"

ONE_FILE = """
    from relaax.algorithm_base import AgentBase, ConfigBase, ParameterServerBase
    import numpy as np

    class Config(ConfigBase):
        favourite: int = 0

    class Agent(AgentBase):
        def reset(self, observations):
            return [np.full(len(observations[0]), self.config.favourite)]

        def step(self, step):
            return self.reset(step.observations)

    class ParameterServer(ParameterServerBase):
        def initial_parameters(self, seed):
            return np.zeros(1, np.float32)
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def copy_out(target: Path) -> Path:
    return Path(shutil.copytree(BUNDLED, target, ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a working directory outside the checkout."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


@pytest.mark.parametrize("path", ["da3c", "../algorithms/da3c", "/no/such/place/da3c", "da3c/"])
def test_bundled_algorithm_is_found_by_last_part_of_path(path: str, tmp_path: Path) -> None:
    algorithm = load_algorithm(path, tmp_path)
    assert (algorithm.name, algorithm.source) == ("da3c", BUNDLED)


def test_folder_of_the_configuration_is_searched_first(tmp_path: Path) -> None:
    write(tmp_path / "cwd" / "mine.py", "")
    beside = write(tmp_path / "config" / "mine.py", "")
    assert find_algorithm("mine", tmp_path / "config") == beside
    assert find_algorithm("mine.py", tmp_path / "config") == beside


def test_working_directory_is_searched_second(tmp_path: Path) -> None:
    here = write(tmp_path / "cwd" / "algorithms" / "mine.py", "")
    assert find_algorithm("algorithms/mine", tmp_path / "config") == here


def test_copy_in_configuration_folder_precedes_bundled(tmp_path: Path) -> None:
    copy = copy_out(tmp_path / "config" / "da3c")
    assert load_algorithm("da3c", tmp_path / "config").source == copy


def test_absolute_path_is_loaded(tmp_path: Path) -> None:
    source = write(tmp_path / "anywhere" / "mine.py", ONE_FILE)
    assert load_algorithm(str(source), tmp_path / "config").source == source


def test_folder_without_init_is_not_an_algorithm(tmp_path: Path) -> None:
    (tmp_path / "da3c").mkdir()
    assert find_algorithm("da3c", tmp_path) == BUNDLED


def test_copied_and_renamed_algorithm_is_loaded(tmp_path: Path) -> None:
    copy_out(tmp_path / "renamed")
    algorithm = load_algorithm("renamed", tmp_path)
    assert algorithm.name == "renamed"
    assert algorithm.Agent.__module__.startswith("relaax_algorithms_")
    config = algorithm.configure({"path": "renamed", "episode_len": 3})
    server = algorithm.ParameterServer(config, Box(shape=(4,)), Discrete(2))
    assert server.initial_parameters(0).size == 9_155  # two networks: see tests/algorithms/da3c/test_spaces.py


def test_algorithm_in_a_single_file_is_loaded(tmp_path: Path) -> None:
    write(tmp_path / "mine.py", ONE_FILE)
    algorithm = load_algorithm("mine", tmp_path)
    assert algorithm.name == "mine"
    assert issubclass(algorithm.Agent, AgentBase)
    assert algorithm.configure({"path": "mine", "favourite": 3}).model_dump()["favourite"] == 3


def test_two_algorithms_of_one_name_stay_separate(tmp_path: Path) -> None:
    for folder, favourite in (("a", 1), ("b", 2)):
        write(tmp_path / folder / "mine.py", ONE_FILE.replace("int = 0", f"int = {favourite}"))
    found = [load_algorithm("mine", tmp_path / folder).configure({"path": "mine"}) for folder in ("a", "b")]
    assert [config.model_dump()["favourite"] for config in found] == [1, 2]


def test_loading_twice_gives_the_same_classes(tmp_path: Path) -> None:
    write(tmp_path / "mine.py", ONE_FILE)
    assert load_algorithm("mine", tmp_path).Agent is load_algorithm("mine.py", tmp_path).Agent


BUILT_ON_DA3C = """
    from pydantic import Field
    from ..da3c import Agent as Da3cAgent
    from ..da3c import Config as Da3cConfig
    from ..da3c import ParameterServer

    class Config(Da3cConfig):
        extra: int = Field(1)

    class Agent(Da3cAgent):
        pass
"""


@pytest.mark.parametrize("file", ["mine/__init__.py", "mine/sub/__init__.py"])
def test_relative_import_falls_back_to_bundled_algorithm(file: str, tmp_path: Path) -> None:
    """`..da3c` is the algorithm in the same folder, or else the bundled one."""
    folder = (tmp_path / file).parent.parent
    write(tmp_path / file, BUILT_ON_DA3C)
    algorithm = load_algorithm((tmp_path / file).parent.name, folder)
    assert Path(inspect.getfile(algorithm.ParameterServer)).parent == BUNDLED
    config = algorithm.configure({"path": "mine", "extra": 3, "episode_len": 2})
    assert algorithm.Agent.refusal(config, Box(shape=(2,)), Discrete(2)) is None


def test_relative_import_prefers_the_copy_in_the_folder(tmp_path: Path) -> None:
    copy = copy_out(tmp_path / "da3c")
    write(tmp_path / "mine" / "__init__.py", BUILT_ON_DA3C)
    algorithm = load_algorithm("mine", tmp_path)
    assert Path(inspect.getfile(algorithm.ParameterServer)).parent == copy


@pytest.mark.parametrize(
    ("path", "guess"), [("reinforc.py", "reinforce.py"), ("my_da3", "my_da3c.py"), ("x/min", "x/mine.py")]
)
def test_unknown_algorithm_suggests_a_similar_file(path: str, guess: str, tmp_path: Path) -> None:
    write(tmp_path / guess, ONE_FILE)
    with pytest.raises(ConfigurationError, match=re.escape(f"no algorithm {path!r}; did you mean {guess!r}?")):
        find_algorithm(path, tmp_path)


@pytest.mark.parametrize("path", ["da3", "DA3C", "../algorithms/dac3", "da3c_contt"])
def test_unknown_algorithm_suggests_a_similar_bundled_name(path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        find_algorithm(path, tmp_path / "config")
    message = str(refused.value)
    assert message.startswith(f"algorithm.path: no algorithm {path!r}; did you mean 'da3c")
    assert str(tmp_path / "config") in message
    assert str(tmp_path / "cwd") in message


def test_unknown_algorithm_lists_bundled_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no algorithm 'zzzzzz'; bundled algorithms: .*da3c.* \(looked for "):
        find_algorithm("zzzzzz", tmp_path)


@pytest.mark.parametrize("path", ["/", ".", "..", ""])
def test_path_without_a_name_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"no algorithm {path!r}")):
        find_algorithm(path, tmp_path)


def test_name_with_a_dot_is_refused(tmp_path: Path) -> None:
    copy_out(tmp_path / "da3c.v2")
    with pytest.raises(
        ConfigurationError, match=r"da3c\.v2: the name of an algorithm must not contain a dot; please rename it"
    ):
        load_algorithm("da3c.v2", tmp_path)


@pytest.mark.parametrize("missing", ["Config", "Agent", "ParameterServer"])
def test_missing_export_is_named(missing: str, tmp_path: Path) -> None:
    source = write(tmp_path / "mine.py", textwrap.dedent(ONE_FILE) + f"\ndel {missing}\n")
    with pytest.raises(ConfigurationError) as refused:
        load_algorithm("mine", tmp_path)
    assert str(refused.value).startswith(
        f"{source}: an algorithm must export {missing}, a subclass of relaax.algorithm_base.{missing}"
    )


@pytest.mark.parametrize("value", ["int", "3", "object()"])
def test_export_of_a_wrong_type_is_refused(value: str, tmp_path: Path) -> None:
    write(tmp_path / "mine.py", textwrap.dedent(ONE_FILE) + f"\nAgent = {value}\n")
    with pytest.raises(ConfigurationError, match=r"mine\.py: an algorithm must export Agent"):
        load_algorithm("mine", tmp_path)


def test_import_error_is_reported_with_its_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)  # the level of servers; commands show only warnings
    write(tmp_path / "mine" / "__init__.py", "from .network import Agent\n")
    network = write(tmp_path / "mine" / "network.py", "# a comment\nimport no_such_library\n")
    with pytest.raises(ConfigurationError) as refused:
        load_algorithm("mine", tmp_path)
    assert str(refused.value) == (
        f"{network}, line 2: the algorithm cannot be imported: ModuleNotFoundError: No module named 'no_such_library'"
    )
    assert f'File "{network}", line 2, in <module>' in caplog.text


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("import sys\nsys.exit(7)\n", "line 2: the algorithm cannot be imported: SystemExit: 7"),
        ("\ndef f(:\n", "line 2: the algorithm cannot be imported: SyntaxError: invalid syntax"),
        ("import json\njson.loads('{')\n", "line 2: the algorithm cannot be imported: json.decoder.JSONDecodeError: "),
    ],
)
def test_exception_during_import_is_reported_with_its_line(text: str, place: str, tmp_path: Path) -> None:
    source = write(tmp_path / "mine.py", text)
    with pytest.raises(ConfigurationError) as refused:
        load_algorithm("mine", tmp_path)
    assert str(refused.value).startswith(f"{source}, {place}")


def test_failing_config_module_is_reported_with_its_line(tmp_path: Path) -> None:
    write(tmp_path / "mine" / "__init__.py", "from .config import Config\n")
    config = write(tmp_path / "mine" / "config.py", "import math\nmath.sqrt(-1)\n")
    with pytest.raises(ConfigurationError, match=re.escape(f"{config}, line 2: ")):
        load_config("mine", tmp_path)


def test_missing_library_of_an_extra_is_raised_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write(tmp_path / "mine.py", "import matplotlib\n")
    with pytest.raises(ModuleNotFoundError):
        load_algorithm("mine", tmp_path)


def test_failed_import_can_be_repaired_and_retried(tmp_path: Path) -> None:
    source = write(tmp_path / "mine.py", "1 / 0\n")
    with pytest.raises(ConfigurationError, match="ZeroDivisionError"):
        load_algorithm("mine", tmp_path)
    source.unlink()
    write(tmp_path / "mine" / "__init__.py", ONE_FILE)
    assert load_algorithm("mine", tmp_path).name == "mine"


def test_loaded_algorithm_and_its_path_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        load_algorithm("da3c", tmp_path)
    assert f"algorithm da3c is loaded from {BUNDLED}" in caplog.text


def test_bundled_names_include_algorithms_and_configurations() -> None:
    assert "da3c" in bundled_names("algorithms")
    assert "da3c_gym_cartpole" in bundled_names("config", ".yaml")
    assert not [name for name in bundled_names("algorithms") if name.startswith(("_", "."))]
