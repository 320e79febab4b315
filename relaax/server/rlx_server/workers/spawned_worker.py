"""The process of a spawned worker: from its orders to its exit code (see `spawning`)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.server.devices import device_error
from relaax.server.logs import configure_logging
from relaax.server.rlx_server.child_process import GROUP_SIGNALS, NONE
from relaax.server.rlx_server.clients.authentication import read_authentication
from relaax.server.rlx_server.clients.meters import Meters
from relaax.server.rlx_server.exit_codes import EXIT_DONE, EXIT_FAILED
from relaax.server.rlx_server.temporary_folders import own_folder
from relaax.server.rlx_server.workers.planning import plan_workers
from relaax.server.rlx_server.workers.worker_plan import WorkerPlan
from relaax.server.rlx_server.workers.worker_process import run_worker

_log = logging.getLogger(__name__)

WATCH_MILLISECONDS = 500


def main() -> None:
    """Run a worker. The last arguments are descriptors: connection (or NONE), lifeline, reports, meters, orders."""
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    given = [int(argument) for argument in sys.argv[-5:]]
    for descriptor in given:
        if descriptor != NONE:
            os.set_inheritable(descriptor, False)  # inherited, and not to be passed on
    connection, lifeline, reports, meters, orders = given
    code = EXIT_FAILED
    try:
        with os.fdopen(orders, encoding="utf-8") as written:
            code = _follow(json.load(written), connection, lifeline, reports, meters)
    except BaseException:
        _log.exception("the worker failed")
    finally:
        logging.shutdown()
        os._exit(code)  # as in a forked worker: threads of libraries are not waited for


def _follow(orders: dict[str, Any], connection: int, lifeline: int, reports: int, memory: int) -> int:
    settings = RlxServerSection.model_validate(orders["settings"])
    configure_logging(settings.log_level, settings.log_format)

    def load() -> WorkerPlan:
        with _ending_with(lifeline):
            return plan_workers(settings, orders["section"], orders["path"], Path(orders["folder"]))

    if connection == NONE:
        with contextlib.suppress(BrokenPipeError):  # the server has died
            os.write(reports, _refusal(load).encode())
        return EXIT_DONE
    authentication = read_authentication(
        settings, orders["names"]
    )  # read again from the files: orders contain no secrets
    rows, buckets = orders["meters"]
    meters = Meters(rows, buckets, memory)
    sock, temporary = socket.socket(fileno=connection), orders["temporary"]
    with own_folder(Path(temporary) if temporary is not None else None):
        refusal, finished = orders["refusal"], orders["training_finished"]
        return run_worker(settings, load, sock, lifeline, reports, meters, refusal, finished, authentication)


@contextlib.contextmanager
def _ending_with(lifeline: int) -> Iterator[None]:
    """End the process if the lifeline closes during the block, which may hang and must not outlive the server."""
    done = threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(lifeline, select.POLLIN)
        while not done.is_set():
            if poll.poll(WATCH_MILLISECONDS) and not done.is_set():
                os._exit(EXIT_DONE)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _refusal(load: Callable[[], WorkerPlan]) -> str:
    """Return why workers could not work, in one sentence; empty if they could."""
    try:
        plan = load()
        from relaax.nn.devices import NoSuchDevice, use_device

        use_device(plan.device)
    except ConfigurationError as error:
        return str(error)
    except NoSuchDevice as error:
        return str(device_error(plan.settings, str(error)))
    return ""
