"""What `relaax cluster status` shows of a training: its processes, where they run, and the machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from relaax.cluster.remote_process import RemoteProcess
from relaax.cluster.scaling import REFUSALS, Occupancy
from relaax.supervision.process import Supervised

_FIGURE = "relaax_rlx_server_{}"
_REFUSALS = tuple(f'{_FIGURE.format("refusals_total")}{{reason="{reason}"}}' for reason in REFUSALS)


def occupancy(server: Supervised) -> Occupancy | None:
    """Return what an RLX server has said of its connections; None before that."""
    figures = server.seen.figures if isinstance(server, RemoteProcess) and server.seen is not None else {}
    if not figures:
        return None
    return Occupancy(
        int(figures[_FIGURE.format("workers")]),
        int(figures[_FIGURE.format("free_places")]),
        int(sum(figures.get(name, 0.0) for name in _REFUSALS)),
    )


def report(
    processes: Mapping[str, Sequence[Supervised]], machines: Iterable[Mapping[str, Any]], scaling: str
) -> dict[str, Any]:
    """Return it as JSON can hold it. `machines`: Ray's records. `scaling`: the policy."""
    return {
        "scaling": scaling,
        "processes": [_process(each) for ours in processes.values() for each in ours],
        "machines": [
            {"address": node["NodeManagerAddress"], "cpus": node["Resources"].get("CPU", 0.0)} for node in machines
        ],
    }


def _process(process: Supervised) -> dict[str, Any]:
    seen = process.seen if isinstance(process, RemoteProcess) else None
    code = process.exit_code()
    if code is not None:
        state = f"ended ({code})"
    elif seen is None:
        state = "waits for a machine"
    else:
        state = "runs"
    connections = occupancy(process)
    return {
        "name": process.name,
        "state": state,
        "machine": seen.host if seen is not None else None,
        "address": process.address,
        "pid": seen.pid if seen is not None else None,
        "restarts": process.restarts,
        "connections": None if connections is None else connections.workers,
        "free_places": None if connections is None else connections.free,
        "refused": None if connections is None else connections.refused,
    }
