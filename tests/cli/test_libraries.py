"""Commands set the variables of numerical libraries in processes that do not inherit them from the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relaax.cli.app import COMMANDS
from relaax.libraries import LIBRARY_VARIABLES
from support.processes import Processes

COUNTED = """
import contextlib, pathlib, sys
from relaax.cli import main
for words in sys.argv[1:]:
    entry, *sys.argv[1:] = *words.split(), "--help"
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(None):
        getattr(main, entry)()
    print(words, len(list(pathlib.Path("/proc/self/task").iterdir())))
"""
WITHOUT_TENSORFLOW = """
import importlib.metadata, sys
sys.modules["tensorflow"] = None
known = importlib.metadata.version

def version(name):
    if name == "tensorflow":
        raise importlib.metadata.PackageNotFoundError(name)
    return known(name)

importlib.metadata.version = version
from relaax.cli.main import main
main()
"""
WATCHED = """
import importlib, os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            print(name, "OPENBLAS_NUM_THREADS" in os.environ)

sys.meta_path.insert(0, Finder())
importlib.import_module(sys.argv[1])
"""
SERVERS = ("parameter_server", "replay_server", "rlx_server", "learner", "tensorboard")
linux = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to count threads")


@linux
def test_each_command_has_one_thread_after_its_imports(processes: Processes) -> None:
    """One process calls all commands. The first line with more than one thread names the command at fault."""
    every = [*(f"main {name}" for name in COMMANDS), *SERVERS]
    command = processes.start_python(COUNTED, *every)
    assert command.wait(150) == 0, command.report()
    assert command.lines == [f"{words} 1" for words in every], command.report()


@linux
def test_numpy_starts_threads_without_the_variables(processes: Processes) -> None:
    """This shows that the test above can fail. A machine with one core cannot show it."""
    code = "import numpy, os, pathlib; print(os.cpu_count(), len(list(pathlib.Path('/proc/self/task').iterdir())))"
    command = processes.start_python(code)
    assert command.wait(60) == 0, command.report()
    cores, threads = map(int, command.lines[-1].split())
    assert threads > 1 or cores == 1


@pytest.mark.parametrize("role", SERVERS)
def test_role_run_as_a_module_sets_the_variables_before_numpy(processes: Processes, role: str) -> None:
    command = processes.start_python(WATCHED, f"relaax.server.{role}.main")
    assert command.wait(60) == 0, command.report()
    assert command.lines == ["numpy True"]


def test_variables_of_a_user_are_kept(processes: Processes) -> None:
    code = "import os; from relaax.cli import main; print(*(os.environ[name] for name in %r))"
    command = processes.start_python(code % (tuple(LIBRARY_VARIABLES),), env={"OMP_NUM_THREADS": "3"})
    assert command.wait(60) == 0, command.report()
    assert command.lines == ["NONE background_thread:false 3 1 3"]


@pytest.mark.parametrize("tensorflow", [True, False], ids=["with_tensorflow", "without_tensorflow"])
def test_doctor_finds_nothing_wrong_on_a_healthy_machine(
    processes: Processes, tmp_path: Path, tensorflow: bool
) -> None:
    ports = (f"--set={section}.bind=127.0.0.1:0" for section in ("relaax-parameter-server", "relaax-rlx-server"))
    words = ("doctor", "da3c_gym_cartpole", "--set=relaax-rlx-server.memory_reserve=0", *ports)
    if tensorflow:
        command = processes.start("relaax", *words, cwd=tmp_path)
    else:
        command = processes.start(sys.executable, "-c", WITHOUT_TENSORFLOW, *words, cwd=tmp_path)
    assert command.wait(120) == 0, command.report()
    found = {name.strip(): line for line in command.lines for name in [line[9:].partition(":")[0]]}
    assert found["fork"].startswith("ok "), found
    assert found["versions"].startswith("ok "), found
    assert ("tensorflow" in found["versions"]) == tensorflow
