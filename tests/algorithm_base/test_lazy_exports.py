"""Loading an algorithm's Config without its other modules."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration import ConfigurationError
from relaax.hosting.loader import load_algorithm, load_config
from support.processes import Processes

CONFIGS_PROGRAM = """
import json, sys
from pathlib import Path
from relaax.algorithm_base import load_algorithm
from relaax.hosting.loader import load_config
from relaax.bundled import bundled_folder, bundled_names
folder = bundled_folder("algorithms")
alone = {name: load_config(name, folder).model_json_schema() for name in bundled_names("algorithms")}
loaded = [name for name in ("tensorflow", "numba", "relaax.nn.engine") if name in sys.modules]
whole = {name: load_algorithm(name, folder).Config.model_json_schema() for name in alone}
print(json.dumps([loaded, alone, whole]))
"""


def test_bundled_configs_load_without_engines(processes: Processes) -> None:
    command = processes.start_python(CONFIGS_PROGRAM)
    assert command.wait(120) == 0, command.report()
    loaded, alone, whole = json.loads(command.lines[-1])
    assert loaded == []
    assert alone == whole
    assert sorted(alone) == bundled_names("algorithms")


def test_edited_copy_does_not_change_the_bundled_algorithm(tmp_path: Path) -> None:
    copy = tmp_path / "mine"
    shutil.copytree(bundled_folder("algorithms") / "da3c", copy)
    text = (copy / "model.py").read_text()
    (copy / "model.py").write_text(text.replace("spherical: Fixed", "round: Fixed"))
    fields = load_config("mine", tmp_path).model_fields
    assert {"round", "entropy_beta", "gae_lambda"} <= set(fields)
    assert "spherical" not in fields
    assert "spherical" in load_config("da3c", tmp_path).model_fields


AGENT = """
from relaax.algorithm_base import AgentBase
class Agent(AgentBase):
    def reset(self, observations): ...
    def step(self, step): ...
"""
SERVER = """
from relaax.algorithm_base import ParameterServerBase
class ParameterServer(ParameterServerBase):
    def initial_parameters(self, seed): ...
"""
LAZY = """
from relaax.algorithm_base import lazy_exports
from .config import Config
__getattr__ = lazy_exports(__name__, {"Agent": ".agent", "ParameterServer": ".parameter_server"})
"""
PLAIN = """
from .agent import Agent
from .config import Config
from .parameter_server import ParameterServer
"""


@pytest.mark.parametrize(("init", "lazy"), [(LAZY, True), (PLAIN, False)], ids=["lazy", "plain"])
def test_lazy_export_is_imported_at_first_use(init: str, lazy: bool, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "__init__.py").write_text(init)
    (folder / "config.py").write_text("from relaax.algorithm_base import ConfigBase as Config\n")
    (folder / "agent.py").write_text(AGENT)
    (folder / "parameter_server.py").write_text(SERVER)
    config = load_config("mine", tmp_path)

    def agents() -> list[str]:
        mine = [name for name in sys.modules if name.endswith(".mine.agent")]
        return [name for name in mine if str(tmp_path) in str(sys.modules[name].__file__)]

    assert bool(agents()) is not lazy
    algorithm = load_algorithm("mine", tmp_path)
    assert (algorithm.Config, algorithm.Agent.__name__) == (config, "Agent")
    assert agents()


def test_failing_lazy_export_is_reported_with_its_line(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "__init__.py").write_text(LAZY)
    (folder / "config.py").write_text("from relaax.algorithm_base import ConfigBase as Config\n")
    (folder / "agent.py").write_text("1 / 0\n")
    load_config("mine", tmp_path)
    with pytest.raises(ConfigurationError, match=r"agent\.py, line 1: the algorithm cannot be imported: ZeroDivision"):
        load_algorithm("mine", tmp_path)


def test_missing_export_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "__init__.py").write_text(LAZY.replace(', "ParameterServer": ".parameter_server"', ""))
    (folder / "config.py").write_text("from relaax.algorithm_base import ConfigBase as Config\n")
    (folder / "agent.py").write_text(AGENT)
    with pytest.raises(ConfigurationError, match="an algorithm must export ParameterServer, a subclass of relaax"):
        load_algorithm("mine", tmp_path)


def test_missing_algorithm_suggests_a_similar_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"algorithm\.path: no algorithm 'da3'; did you mean 'da3c'"):
        load_config("da3", tmp_path)


def test_name_with_a_dot_is_refused(tmp_path: Path) -> None:
    shutil.copytree(bundled_folder("algorithms") / "da3c", tmp_path / "da3c.v2")
    with pytest.raises(
        ConfigurationError, match=r"da3c\.v2: the name of an algorithm must not contain a dot; please rename it"
    ):
        load_config("da3c.v2", tmp_path)
