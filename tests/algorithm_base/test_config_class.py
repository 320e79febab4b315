"""An algorithm's Config without its algorithm."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from relaax.algorithm_base.config_class import OpenConfig, config_class
from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration import ConfigurationError
from support.processes import Processes

EACH = """
import json, sys
from pathlib import Path
from relaax.algorithm_base import load_algorithm
from relaax.algorithm_base.config_class import config_class
from relaax.bundled import bundled_folder, bundled_names
folder = bundled_folder("algorithms")
alone = {name: config_class(name, folder).model_json_schema() for name in bundled_names("algorithms")}
loaded = "tensorflow" in sys.modules
whole = {name: load_algorithm(name, folder).Config.model_json_schema() for name in alone}
print(json.dumps([loaded, alone, whole]))
"""


def test_those_of_the_bundled_algorithms_are_had_without_tensorflow(processes: Processes) -> None:
    command = processes.start_python(EACH)
    assert command.wait(120) == 0, command.report()
    loaded, alone, whole = json.loads(command.lines[-1])
    assert not loaded
    assert alone == whole
    assert sorted(alone) == bundled_names("algorithms")


def test_a_copy_builds_on_the_bundled_ones_and_is_its_own(tmp_path: Path) -> None:
    copy = tmp_path / "mine"
    shutil.copytree(bundled_folder("algorithms") / "da3c_cont", copy)
    text = (copy / "config.py").read_text()
    (copy / "config.py").write_text(text.replace("spherical: Fixed", "round: Fixed"))
    fields = config_class("mine", tmp_path).model_fields
    assert {"round", "entropy_beta", "gae_lambda"} <= set(fields)
    assert "spherical" not in fields
    assert "spherical" in config_class("da3c_cont", tmp_path).model_fields


@pytest.mark.parametrize(
    ("init", "config"),
    [
        ("from .config import Config\n", "import tensorflow\nfrom relaax.algorithm_base import ConfigBase\n"),
        ("from .config import Config\n", "from relaax.nn.engine import NetworkSpec\n"),
        ("from .config import Config\n", "from .network import Network\n"),
        ("from .config import Config\n", "from ..elsewhere.config import Config\n"),
        (
            "from .config import Config as Base\nclass Config(Base): pass\n",
            "from relaax.algorithm_base import ConfigBase",
        ),
        ("from .config import Config\n", "from relaax.algorithm_base import ConfigBase\nConfig = 3\n"),
        ("from .config import Config\n", "this is no Python"),
        ("from .agent import Config\n", "from relaax.algorithm_base import ConfigBase as Config\n"),
    ],
)
def test_where_only_the_whole_algorithm_can_tell_any_key_is_taken(init: str, config: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text(init)
    (tmp_path / "mine" / "config.py").write_text(config)
    assert config_class("mine", tmp_path) is OpenConfig


def test_an_algorithm_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"algorithm\.path: no algorithm 'da3'; did you mean 'da3c'"):
        config_class("da3", tmp_path)


def test_a_name_with_a_dot_is_refused(tmp_path: Path) -> None:
    shutil.copytree(bundled_folder("algorithms") / "da3c", tmp_path / "da3c.v2")
    with pytest.raises(ConfigurationError, match=r"da3c\.v2: the name of an algorithm has no dot; please rename it"):
        config_class("da3c.v2", tmp_path)
