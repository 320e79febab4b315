"""Commands of all pages: each is valid, and runs in an empty folder with a wheel or has a reason not to."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from relaax.bundled import bundled_folder
from relaax.cli.app import app
from relaax.server.learner import main as learner
from relaax.server.parameter_server import main as parameter_server
from relaax.server.replay_server import main as replay_server
from relaax.server.rlx_server import main as rlx_server
from support.page_runner import PageRunner
from support.pages import DOCS, ROOT, all_pages, blocks, files
from support.processes import Processes
from support.wheel import install, quick_wheel, run, share_test_libraries

# Reasons why no test runs a block: ```sh needs REASON.
REASONS = {
    "checkout": "development tools are not part of a wheel",
    "wheel": "it installs a wheel; the tests install it in another way",
    "servers": "another page starts them",
    "machines": "addresses of the reader's machines",
    "yours": "a program or a path of the reader",
    "S3": "a store",
    "docker": "a container engine",
    "Kubernetes": "a cluster, kubectl and helm",
    "cloud": "an account",
    "machines of Ray": "Ray's own program, on each machine",
    "Ray": "a cluster",
    "GPU": "a device",
    "time": "minutes or hours",
    "Lab": "DeepMind Lab is built from source",
}
# Blocks that mostly run programs of others.
OTHER_PROGRAMS = ("needs docker", "needs Kubernetes", "needs cloud", "needs machines of Ray")
PAGES = {str(page.relative_to(ROOT)): page for page in all_pages() if "tests" not in page.relative_to(ROOT).parts}
RUNNABLE = [
    name
    for name, page in PAGES.items()
    if any(made.language == "sh" and not made.name.startswith("needs ") for made in blocks(page))
]
# Files that, with the page itself, decide the outcome of its commands.
COMMAND_FILES = ("relaax/cli", "relaax/configuration", "pyproject.toml", "setup.py", "tests/support/page_runner.py")
# Patterns of the output of blocks, by page and name.
EXPECTED = {
    "README.md": {"watch": "http://.*connected"},
    "docs/getting-started.md": {
        "doctor": r"ok +versions: .*ok +environment: CartPole-v1 can be made",
        "train": "target_reached",
        "plot": "figure written to plot.png",
        "resume": r"\(resuming\)",
        "watch": "http://",
        "exploit": "20 episodes, mean return [45].{4} ",
        "play": r"^[1-5]\d\d",
        "settings": "figure written to",
        "mine": "target_reached",
    },
    "docs/evaluation.md": {
        "four": "figure written to plot.png",
        "atari": "human-normalised",
        "plot": "figure written to curve.png",
    },
    "docs/environments.md": {"one": "return"},
    "docs/gymnasium.md": {"check": "no warnings", "trained": "mean return", "gymnasium": "steps=1000"},
    "docs/multi-agent.md": {"selfplay": "max_steps", "teams": r"archer: \d+ actions.*knight: \d+ actions"},
    "docs/many-environments.md": {"lives": "minutes", "slow": "answers in"},
    "docs/troubleshoot.md": {"health": '"version"'},
    "docs/seeds.md": {"one": "the same"},
    "docs/write-an-algorithm.md": {"test": r"2\d passed in"},  # no warnings follow the count
}
# Pages that use the files of another page.
FILES_OF = {"docs/many-environments.md": "docs/environments.md", "docs/gymnasium.md": "docs/environments.md"}
NEED_LEARNING = ("train", "exploit", "play", "mine")
STEPS = 1000  # limit of a training that is cut short
# A resumed run needs a limit well beyond the first, because a fast training exceeds its own by thousands of steps.
SHORTER = {"=20000": "=3000", "steps 20000": "steps 2000", "steps 100000": "steps 1000"}
PROGRAMS = {
    "relaax-parameter-server": parameter_server.app,
    "relaax-rlx-server": rlx_server.app,
    "relaax-replay-server": replay_server.app,
    "relaax-learner": learner.app,
}


@pytest.mark.parametrize("name", PAGES)
def test_each_block_is_run_or_has_a_reason_not_to(name: str) -> None:
    for made in blocks(PAGES[name]):
        if made.language == "sh":
            assert made.name, f"no test runs this block, and it has no reason: {made.text}"
            assert not made.name.startswith("needs ") or made.name.split(" ", 1)[1] in REASONS, made.name
        elif made.language != "text":
            commands = re.findall(r"(?m)^(?:relaax|relaax-[\w-]+|python3?|pip|make|honcho) .*", made.text)
            assert made.language or not commands, f"commands must be in ```sh: {commands}"
        if made.language == "python":
            compile(made.text if not made.text.startswith(" ") else f"class _:\n{made.text}", name, "exec")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that pages show or that their commands write."""
    folder = tmp_path_factory.mktemp("shown")
    for page in PAGES.values():
        for name, text in files(page).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for line in (
            "algorithm my_algorithm",
            "algorithm my_da3c --from da3c",
            "environment my_world",
            "environment --browser my_game",
        ):
            assert CliRunner().invoke(app, ["new", *line.split()]).exit_code == 0
    for name in ("da3c_gym_cartpole", "pong"):
        (folder / "runs" / name).mkdir(parents=True)
        text = (bundled_folder("config") / "da3c_gym_cartpole.yaml").read_text("utf-8")
        (folder / "runs" / name / "configuration.yaml").write_text(text.replace("../algorithms/", ""), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", PAGES)
def test_commands_and_options_of_pages_are_valid(name: str, shown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs, files and options exist, and configurations with their overrides are valid."""
    monkeypatch.chdir(shown)
    for made in blocks(PAGES[name]):
        if made.language == "sh" and made.name not in OTHER_PROGRAMS:
            for words in commands_of(made.text):
                check(words)


def commands_of(text: str) -> list[list[str]]:
    """Return the commands of a shell script, each as words, without variables, loops and comments."""
    found: list[list[str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        found.append([])
        for word in lexer:
            if set(word) <= set(";&|"):
                found.append([])
            elif found[-1] or not (word in ("do", "done", ".", "true") or re.match(r"[A-Z_]+=", word)):
                found[-1].append(re.sub(r"\$\w+", "1", word))
    return [words for words in found if words and words[0] != "for"]


def check(words: list[str]) -> None:
    program, *arguments = words
    if program in PROGRAMS or words[:2] == ["relaax", "run"]:
        if any(word.startswith("10.0.0.") for word in words):  # the page explains that such addresses need tokens
            arguments.append("--allow-anonymous")
        result = CliRunner().invoke(PROGRAMS.get(program, app), [*arguments, "--check-config"])
        assert result.exit_code == 0, f"{shlex.join(words)}: {result.output}{result.stderr}"
    elif program == "relaax":
        parse(typer.main.get_command(app), arguments)
    elif program.removeprefix(".venv/bin/") == "python" and arguments[0] == "-m":
        if arguments[1].startswith("relaax.environments."):
            importlib.import_module(arguments[1].removeprefix("relaax.")).parser().parse_args(arguments[2:])
    elif program.removeprefix(".venv/bin/") == "python":
        assert (ROOT / arguments[0]).is_file() or Path(arguments[0]).is_file(), shlex.join(words)
    elif re.fullmatch(r"environments/\w+/main", program):
        importlib.import_module(program.replace("/", ".")).parser().parse_args(arguments)
    elif program == "make":
        assert re.search(rf"(?m)^{arguments[0]}:", (ROOT / "Makefile").read_text("utf-8")), shlex.join(words)
    elif program == "honcho":
        assert (ROOT / arguments[1]).is_file(), shlex.join(words)
    else:
        known = (
            "activate",
            "apt-get",
            "build",
            "pip",
            "tensorboard",
            "curl",
            "cmp",
            "echo",
            "mv",
            "python3",
            "pytest-benchmark",
            "sed",
        )
        assert Path(program).name in known, shlex.join(words)


def parse(command: Any, words: list[str]) -> None:
    """Parse the words of a command, and start nothing."""
    with command.make_context(command.name, list(words)) as context:
        if hasattr(command, "resolve_command"):
            _, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            parse(inner, rest)


@pytest.mark.parametrize(
    "words",
    [
        "relaax run da3c_gym_cartpole --clints 4",
        "relaax run da3c_gym_cartpole --set algorithm.entropy_bta=1",
        "relaax plot runs --tilte x",
        "relaax new algorithm",
        "relaax docks",
        "relaax-rlx-server --config room.yaml --bnd localhost:0",
        "python -m relaax.environments.OpenAI_Gym.main localhost:7001 CartPole-v1 --expliot",
        "python tests/gone.py",
        "make luck",
        "environments/ALE/main localhost:7001 pong --stcky 0.1",
        "sudo rm",
    ],
)
def test_invalid_commands_are_found(words: str, shown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shown)
    with pytest.raises((Exception, SystemExit)):
        check(shlex.split(words))


def test_shell_text_is_split_into_commands() -> None:
    text = "for s in 1 2; do\n  A_B=1 relaax run x --seed $s \\\n    --fresh || true # why\ndone; cmp 'a#b' && echo c\n"
    assert commands_of(text) == [["relaax", "run", "x", "--seed", "1", "--fresh"], ["cmp", "a#b"], ["echo", "c"]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The short form uses the Python that runs the tests; the long form also uses another one."""
    if "environment" in metafunc.fixturenames:
        another = None if metafunc.config.getoption("--short") else another_python()
        pythons = {"here": sys.executable} | ({"another_python": another} if another else {})
        metafunc.parametrize("environment", pythons.values(), indirect=True, ids=pythons.keys())


def another_python() -> str | None:
    """Return the newest supported Python on the path with another version than this one."""
    for minor in (13, 12, 11, 10):
        found = shutil.which(f"python3.{minor}")
        if minor != sys.version_info.minor and found is not None:
            if subprocess.run([found, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0:
                return found
    return None


@pytest.fixture(scope="session")
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with a wheel of the checkout.

    With the Python that runs the tests, its libraries are shared. With another Python they are installed with pip.
    """
    folder = tmp_path_factory.mktemp("wheel")
    wheel = quick_wheel(folder)
    if request.param == sys.executable:
        share_test_libraries(install(wheel, folder))
    else:
        run(request.param, "-m", "venv", "venv", cwd=folder)
        run("venv/bin/pip", "install", f"{wheel}[server,gym,plot,watch]", cwd=folder)
    return folder / "venv"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.checks(name, *COMMAND_FILES)) for name in RUNNABLE]
)
def test_commands_of_page_run_in_empty_folder(
    name: str, environment: Path, processes: Processes, tmp_path: Path, short: bool
) -> None:
    page = PAGES[name]
    whole = not short and page == DOCS / "getting-started.md"
    folder = tmp_path / "empty"
    folder.mkdir()
    runner = PageRunner(folder, environment, processes, limit=None if whole else STEPS)
    if name in FILES_OF:
        runner.write_files(PAGES[FILES_OF[name]])
    output = runner.run(page, SHORTER if short else {})
    for block, pattern in EXPECTED.get(name, {}).items():
        if whole or block not in NEED_LEARNING:
            assert re.search(pattern, output[block], re.MULTILINE | re.DOTALL), (block, output[block])
