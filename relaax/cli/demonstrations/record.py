"""The command `relaax record`: record the episodes that clients play."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from relaax.cli import completion
from relaax.cli.demonstrations.clone import description_of, read_episodes
from relaax.cli.options import OverridesOption
from relaax.cli.reporting import exit_on_errors, resilient
from relaax.configuration import ConfigurationError
from relaax.console import log_to_stderr

ADDRESS = "ADDRESS"
CONFIGURATION = "configuration.yaml"
_DEFAULT_BIND = "localhost:7001"
_END_SECONDS = 30.0


def record(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for the Parquet files; others remain.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND",
            help=f"A client's program; the word {ADDRESS} becomes the server's address. Recording ends with it.",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.configurations, help="Play the environment of this configuration, not COMMAND."
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|LOCATION",
            autocompletion=completion.configurations_and_runs,
            help="Act with the newest checkpoint: of a run directory, whose environment is played, or with --config of "
            "a folder or s3:// location. By default actions are random: for clients that choose theirs.",
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of the environment of a configuration.")] = 20,
    bind: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help=f"Address for clients; by default {_DEFAULT_BIND}.")
    ] = None,
    set_: OverridesOption = None,
) -> None:
    """Record the episodes that clients play, as Parquet files.

    `relaax record drives -- ./my_game ADDRESS` records what a person or a script plays: the game's client chooses its
    actions. `relaax record demos --agent runs/da3c_gym_cartpole` records a trained agent. Without a program, the server
    records all clients that connect, until Ctrl-C.

    `relaax run --record FOLDER` records while it trains. Exit code 0: done; 1: the server or the program failed; 2: the
    request is invalid.
    """
    log_to_stderr("relaax record: %(message)s")
    with exit_on_errors("relaax record"):
        if command and config:
            raise ConfigurationError(f"a program and --config {config}: give one of them, because both are clients")
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt), _server(folder, config, agent, bind, command, set_) as address:
            client = command or _environment(config, agent, episodes, set_)
            if not client:
                print(f"recording clients of {address} to {folder}; Ctrl-C ends it", file=resilient(sys.stdout))
                signal.pause()
            from relaax.supervision.process import StartError

            started = [address if part == ADDRESS else part for part in client]
            try:
                code = subprocess.run(started, check=False).returncode
            except OSError as error:
                raise ConfigurationError(f"{client[0]} cannot be started: {error.strerror}") from None
            if code:
                raise StartError(f"the client's program ended with code {code}: {' '.join(client)}")
        print(f"{folder}: {description_of(read_episodes(folder))}", file=resilient(sys.stdout))


@contextlib.contextmanager
def _server(
    folder: Path,
    config: str | None,
    agent: str | None,
    bind: str | None,
    command: Sequence[str] | None,
    overrides: list[str] | None,
) -> Iterator[str]:
    """Run an RLX server that records, and yield its address. Raises StartError."""
    from relaax.supervision.process import LISTENS, StartError, ending_with_parent, environment_of

    listens = bind or (_DEFAULT_BIND if not (command or config or agent) else "localhost:0")
    if agent is None:
        settings = {"record": str(folder), "bind": listens}
        arguments = ["-m", "relaax.server.rlx_server.random_server", json.dumps(settings)]
    else:
        arguments = ["-m", "relaax.server.rlx_server.main", "--checkpoint", agent, "--record", str(folder)]
        arguments += ["--bind", listens, *(["--config", config] if config else [])]
        arguments += [part for each in overrides or [] for part in ("--set", each)]
    server = subprocess.Popen(
        ending_with_parent([sys.executable, *arguments]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment_of(None),
    )
    assert server.stdout is not None
    try:
        line = next((line for line in server.stdout if LISTENS in line), "")
        if not line:
            refused = server.wait() == 2
            sentence = "the RLX server did not start; its message is above"
            raise StartError(sentence, sentence if refused else None)
        yield line.rpartition(LISTENS)[2].strip()
    finally:
        server.terminate()
        try:
            server.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()


def _environment(config: str | None, agent: str | None, episodes: int, overrides: list[str] | None) -> list[str]:
    """Return the command of a configuration's environment; empty without one. Raises ConfigurationError."""
    if config is None and (agent is None or not (Path(agent) / CONFIGURATION).is_file()):
        return []
    from relaax.cli.run.plan import make_plan

    plan = make_plan(config or str(Path(agent or "") / CONFIGURATION), overrides or [])
    mode = ["--exploit"] if agent is not None else []
    return [*plan.environment_command(ADDRESS, 1, 0), "--episodes", str(episodes), *mode]
