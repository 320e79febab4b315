"""The command `relaax web`: the live page of a run."""

from __future__ import annotations

import signal
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relaax.cli import completion
from relaax.cli.live.addresses import is_address, section_of_service
from relaax.cli.options import AuthorityOption, ReplayServersOption, TokenFileOption
from relaax.cli.reporting import exit_on_errors
from relaax.configuration import ConfigurationError, unknown
from relaax.console import log_to_stderr
from relaax.server.address import AddressError

if TYPE_CHECKING:
    from relaax.cli.live.top import ServiceWatcher
    from relaax.cli.web.page import RunPage

BIND = "localhost:7080"
SPEED_SECONDS = 10.0
"""Seconds over which speeds are averaged."""
_RUNS = Path("runs")
_CONFIGURATIONS = (".yaml", ".yml")


def web(
    where: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.runs,
            metavar="RUN|HOST:PORT|FILE",
            help="The directory of a run, or its name in runs/; a parameter server, or several shards separated by "
            "commas; a YAML file that names it, with its token and certificates; or a folder of metrics.",
        ),
    ],
    bind: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the page; port 0 picks a free port.")
    ] = BIND,
    page_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token of the page, which a browser asks for as a password; required on other "
            "addresses than loopback."
        ),
    ] = None,
    page_certificate: Annotated[Path | None, typer.Option(help="Certificate of the page (PEM); enables HTTPS.")] = None,
    page_key: Annotated[Path | None, typer.Option(help="Private key of that certificate (PEM).")] = None,
    metrics: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="With HOST:PORT: the folder of the training's metrics.")
    ] = None,
    replay_server: ReplayServersOption = None,
    token_file: TokenFileOption = None,
    tls_ca: AuthorityOption = None,
) -> None:
    """Show a run in a browser, while it trains or later.

    The page has curves, workers, connections, replay memory, evaluations, warnings of the logs, and the observation of
    the first environment if it is an image. Nothing is read while no browser shows it. It changes nothing. Ctrl-C ends
    only this command. Exit code 130: interrupted; 2: the request is invalid.
    """
    log_to_stderr("relaax web: %(message)s")
    with exit_on_errors("relaax web", (AddressError,)):
        page = page_of(where, metrics, replay_server, token_file, tls_ca)
        code = serve(
            page, bind, *(None if one is None else str(one) for one in (page_token_file, page_certificate, page_key))
        )
    raise typer.Exit(code)


def page_of(
    where: str, metrics: Path | None, replay: str | None, token_file: Path | None, tls_ca: Path | None
) -> RunPage:
    """Return the page of a run, of servers or of a folder of metrics. Raises ConfigurationError."""
    from relaax.cli.web.page import RunPage

    def section() -> ServiceWatcher | None:
        from relaax.cli.live.top import ServiceWatcher
        from relaax.server.access import replay_targets, targets

        found = section_of_service(place, replay, token_file, tls_ca)
        return ServiceWatcher(targets(found), replay_targets(found), SPEED_SECONDS)

    place = where
    if is_address(where):
        if metrics is not None and not metrics.is_dir():
            raise ConfigurationError(f"--metrics {metrics}: there is no such folder")
        section_of_service(where, replay, token_file, tls_ca)
        return RunPage(where, section, None, metrics)
    if metrics is not None:
        raise ConfigurationError("--metrics is for HOST:PORT: a run or a YAML file names its own folder")
    if where.endswith(_CONFIGURATIONS):
        from relaax.server.command.configuration import configured

        settings = configured(where, [])
        section_of_service(where, replay, token_file, tls_ca)
        folder = settings.parameter_server.metrics_dir
        return RunPage(Path(where).stem, section, None, None if folder is None else Path(folder))
    run = find_run(where)
    place = str(run)
    if not (run / "logs").is_dir():
        return RunPage(run.name, None, None, run)
    return RunPage(run.name, section, run, run / "metrics")


def find_run(where: str) -> Path:
    """Return a folder by its path or by its name in runs/. Raises ConfigurationError, which names the nearest run."""
    found = [run for run in (Path(where), _RUNS / where) if run.is_dir()]
    for run in found:
        if (run / "logs").is_dir() or any(run.glob("events.out.tfevents.*")):
            return run.resolve()
    if found:
        raise ConfigurationError(f"{found[0]} is not the directory of a run: it has neither logs nor metrics")
    folder = _RUNS if Path(where).name == where else Path(where).parent
    known = sorted(path.name for path in folder.glob("*") if path.is_dir())
    if not known:
        raise ConfigurationError(f"unknown run {where!r}: {folder} has no runs")
    raise ConfigurationError(unknown("run", Path(where).name, known))


def serve(page: RunPage, bind: str, token_file: str | None, certificate: str | None, key: str | None) -> int:
    """Serve a page until a signal, and return the exit code. Raises ConfigurationError and AddressError."""
    from relaax.cli.web.access import page_access
    from relaax.cli.web.server import PageServer
    from relaax.server.address import listen, name_of

    token, tls = page_access(bind, token_file, certificate, key)
    with listen(bind) as sock:
        address = name_of(sock)
        server = PageServer(sock, page, token, tls)
        ended = threading.Event()
        code = [0]
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, partial(_end, ended, code))
        threading.Thread(target=server.serve_forever, args=(0.2,), name="page", daemon=True).start()
        threading.Thread(target=page.data, args=("", 0), name="first reading", daemon=True).start()
        print(f"relaax web listening on {address}", flush=True)
        print(f"open {'https' if tls else 'http'}://{address}/ in a browser", flush=True)
        ended.wait()
        server.shutdown()
        page.close()
    return code[0]


def _end(ended: threading.Event, code: list[int], number: int, _frame: object) -> None:
    code[0] = 130 if number == signal.SIGINT else 0
    ended.set()
