"""Start an RLX server whose workers have no parameter server (see `offline_server.py`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

from support.processes import Processes, Running

HERE = Path(__file__).resolve().parent
ALGORITHM = HERE / "offline_algorithm.py"
SERVER = HERE / "offline_server.py"


def write_config(folder: Path, algorithm: dict[str, Any] | None = None, **settings: Any) -> Path:
    """Write a configuration. `settings`: keys of the section relaax-rlx-server."""
    document = {
        "relaax-rlx-server": {"bind": "127.0.0.1:0", **settings},
        "algorithm": {"path": str(ALGORITHM), **(algorithm or {})},
    }
    path = folder / "offline.yaml"
    path.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML
    return path


def start_offline_server(
    processes: Processes,
    folder: Path,
    *options: str,
    algorithm: dict[str, Any] | None = None,
    constants: dict[str, float] | None = None,
    parameters: Literal["", "values", "names"] = "",
    **settings: Any,
) -> tuple[Running, str]:
    """Start the server. Return it and its address.

    `constants`: values of constants of relaax.server.rlx_server, by `MODULE.NAME`. `parameters`: what changes of the
    parameters of environments; empty: the server has no parameters.
    """
    config = write_config(folder, algorithm, **settings)
    values = {f"relaax.server.rlx_server.{name}": value for name, value in (constants or {}).items()}
    env = {"OFFLINE_SERVER_CONSTANTS": json.dumps(values)} if values else {}
    if parameters:
        env["OFFLINE_SERVER_PARAMETERS"] = parameters
    server = processes.start(sys.executable, SERVER, "--config", config, *options, env=env or None)
    return server, server.wait_for_address()


PACKAGE = """
from relaax.algorithm_base import lazy_exports
from .config import Config
__getattr__ = lazy_exports(__name__, {"Agent": ".rest", "ParameterServer": ".rest"})
"""
CONFIG = """
from relaax.algorithm_base import ConfigBase
class Config(ConfigBase):
    max_global_step: int = 1000
    colour: str = "green"
    hold: str = ""
"""


def write_package(folder: Path, more: str = "") -> Path:
    """Write the algorithm as a package. A server that spawns workers imports only its Config.

    `more`: code that runs when the rest of the package is imported.
    """
    package = folder / "of_the_test"
    package.mkdir()
    (package / "__init__.py").write_text(PACKAGE)
    (package / "config.py").write_text(CONFIG)
    (package / "rest.py").write_text(f"{ALGORITHM.read_text()}\n{more}\n")
    return package
