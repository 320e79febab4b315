"""Check of a device without touching it in this process.

Listing GPUs starts their driver. A process that has done so cannot fork workers that use them, so a child looks: it is
forked like a worker, sees what a worker will see, and ends before the server listens.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

_log = logging.getLogger(__name__)


def device_refusal(device: str) -> str | None:
    """Return why workers cannot compute on `device`, in one sentence; None if they can."""
    from relaax.nn.devices import CPU

    if device == CPU:
        return None
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            _look(device, write)
            code = 0
        except BaseException:
            _log.exception("looking for %s failed", device)
        finally:
            logging.shutdown()
            os._exit(code)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as answer:
        sentence = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed, as logged above"
        return f"{device} was asked for, but the process that looked for it {how}: use cpu, or repair the GPU's driver"
    return sentence or None


def _look(device: str, answer: int) -> None:
    from relaax.nn.devices import NoSuchDevice, use_device

    try:
        use_device(device)
    except NoSuchDevice as refusal:
        os.write(answer, str(refusal).encode())
