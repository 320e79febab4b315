"""docs/limits.md: its keys exist, and it gives the values of defaults and constants."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from relaax.algorithm_base import ConfigBase
from relaax.algorithm_base.config import DEFAULT_RING, MAX_RING
from relaax.checkpoint import lease, s3
from relaax.cli.run import environment_check
from relaax.client.connection import client as base
from relaax.client.connection import scalars
from relaax.configuration import (
    LearnerSection,
    ParameterServerSection,
    ReplayServerSection,
    RlxServerSection,
    RunSection,
)
from relaax.configuration.roles import PARAMETER_SERVER
from relaax.metrics import copying
from relaax.replay import spec, wire
from relaax.replay import wire as replay_messages
from relaax.replay.client import writer as remote_writer
from relaax.replay.table import table_copy
from relaax.rlx import Limits, array_spaces, handshake, messages
from relaax.rlx.wire import arrays, framing, space_encoding
from relaax.server import http_server
from relaax.server.checkpoints import checkpointing
from relaax.server.learner import learning as sampling
from relaax.server.parameter_server.coordination import follower, leader
from relaax.server.parameter_server.coordination import leader as barrier
from relaax.server.parameter_server.coordination import members as introduction
from relaax.server.parameter_server.service import core
from relaax.server.parameter_server.service import service as requests
from relaax.server.ports import connections, guard, request_reader, wait_slots
from relaax.server.replay_server import served_table, table_checkpoints
from relaax.server.replay_server import service as replay_service
from relaax.server.rlx_server.clients import accounts as client_accounts
from relaax.server.rlx_server.clients import claims, meters
from relaax.server.rlx_server.connection import channel, peer
from relaax.server.rlx_server.inference import keeper, parameter_source, process
from relaax.server.rlx_server.listening import children, listener
from relaax.server.security import strikes, tokens
from relaax.transport.grpc_options import MAX_PARAMETERS, MAX_STATISTICS
from support.pages import DOCS

PAGE = (DOCS / "limits.md").read_text("utf-8")
SECTIONS: dict[str, type[BaseModel]] = {
    "relaax-rlx-server": RlxServerSection,
    "relaax-parameter-server": ParameterServerSection,
    "relaax-run": RunSection,
    "relaax-replay-server": ReplayServerSection,
    "relaax-learner": LearnerSection,
    "algorithm": ConfigBase,
}
CONSTANTS: dict[str, float] = {
    "MAX_AXES": arrays.MAX_AXES,
    "MAX_ELEMENTS": array_spaces.MAX_ELEMENTS,
    "MAX_LEAVES": space_encoding.MAX_LEAVES,
    "MAX_DEPTH": space_encoding.MAX_DEPTH,
    "MAX_WAITING": listener.MAX_WAITING,
    "SEND_SECONDS": peer.SEND_SECONDS,
    "VANISHED_SECONDS": peer.VANISHED_SECONDS,
    "THREADS": request_reader.THREADS,
    "MESSAGE_SECONDS": request_reader.MESSAGE_SECONDS,
    "OPEN_SECONDS": request_reader.OPEN_SECONDS,
    "UNFINISHED": request_reader.UNFINISHED,
    "OPEN_UNFINISHED": request_reader.OPEN_UNFINISHED,
    "JAM_SECONDS": request_reader.JAM_SECONDS,
    "MAX_CONNECTIONS": connections.MAX_CONNECTIONS,
    "MAX_STRANGERS": connections.MAX_STRANGERS,
    "STRANGER_SECONDS": connections.STRANGER_SECONDS,
    "WORKERS": connections.WORKERS,
    "NEW_SECONDS": connections.NEW_SECONDS,
    "MAX_REQUESTS": http_server.MAX_REQUESTS,
    "REQUEST_SECONDS": http_server.REQUEST_SECONDS,
    "CHECK_SECONDS": environment_check.CHECK_SECONDS,
    "HANDSHAKE_FRAME_BYTES": framing.HANDSHAKE_FRAME_BYTES,
    "MAX_ENVIRONMENTS": messages.MAX_ENVIRONMENTS,
    "MAX_FRAME_SKIP": messages.MAX_FRAME_SKIP,
    "_MAX_ENTRIES": requests._MAX_ENTRIES,
    "_MAX_ENV_STEPS": requests._MAX_ENV_STEPS,
    "MIN_TOKEN_BYTES": tokens.MIN_TOKEN_BYTES,
    "MAX_ADDRESSES": strikes.MAX_ADDRESSES,
    "MAX_CLIENTS": client_accounts.MAX_CLIENTS,
    "BURST_SECONDS": meters.BURST_SECONDS,
    "STUCK_SECONDS": claims.STUCK_SECONDS,
    "MAX_STALLED": children.MAX_STALLED,
    "MAX_REQUEST_BYTES": channel.MAX_REQUEST_BYTES,
    "LOGGED": guard.LOGGED,
    "MAX_TOKEN_BYTES": handshake.MAX_TOKEN_BYTES,
    "MAX_TEXT_BYTES": handshake.MAX_TEXT_BYTES,
    "MAX_PARAMETERS": MAX_PARAMETERS,
    "MAX_ENVIRONMENT_PARAMETERS": messages.MAX_ENVIRONMENT_PARAMETERS,
    "MAX_STATISTICS": MAX_STATISTICS,
    "DEFAULT_RING": DEFAULT_RING,
    "MAX_RING": MAX_RING,
    "TTL": lease.TTL,
    "MAX_PUT_BYTES": s3.MAX_PUT_BYTES,
    "ATTEMPTS": s3.ATTEMPTS,
    "CONNECT_SECONDS": s3.CONNECT_SECONDS,
    "READ_SECONDS": s3.READ_SECONDS,
    "LAST_SECONDS": checkpointing.LAST_SECONDS,
    "PARAMETER_SERVER.stop_seconds": int(PARAMETER_SERVER.stop_seconds({})),
    "LAST_ATTEMPTS": checkpointing.LAST_ATTEMPTS,
    "CUT": core.CUT,
    "HOLD": introduction.HOLD,
    "ANSWER": leader.ANSWER,
    "PREPARE": barrier.PREPARE,
    "LAST_HOLD": barrier.LAST_HOLD,
    "PATIENCE": follower.PATIENCE,
    "LEAVING": follower.LEAVING,
    "MAX_ROWS": process.MAX_ROWS,
    "PULL_SECONDS": parameter_source.PULL_SECONDS,
    "RESTART_SECONDS": keeper.RESTART_SECONDS,
    "MAX_TABLES": replay_service.MAX_TABLES,
    "MAX_CAPACITY": spec.MAX_CAPACITY,
    "MAX_FIELDS": replay_messages.MAX_FIELDS,
    "MAX_DIMENSIONS": replay_messages.MAX_DIMENSIONS,
    "MAX_ITEMS": wire.MAX_ITEMS,
    "MAX_MESSAGE": wire.MAX_MESSAGE,
    "MAX_WRITERS": served_table.MAX_WRITERS,
    "SILENT_SECONDS": served_table.SILENT_SECONDS,
    "MAX_WAITING_CALLS": wait_slots.MAX_WAITING_CALLS,
    "MAX_WAITING_WORKERS": requests.MAX_WAITING_WORKERS,
    "LONGEST_WAIT": remote_writer.LONGEST_WAIT,
    "GRACE_SECONDS": remote_writer.GRACE_SECONDS,
    "MAX_PREFETCHED": sampling.MAX_PREFETCHED,
    "table_copy.PIECE_BYTES": table_copy.PIECE_BYTES,
    "MAX_INCARNATIONS": table_checkpoints.MAX_INCARNATIONS,
    "COPY_SECONDS": copying.COPY_SECONDS,
    "BYTES_PER_SECOND": copying.BYTES_PER_SECOND,
    "MAX_PENDING_SCALARS": scalars.MAX_PENDING_SCALARS,
    "max_metric_names": Limits().max_metric_names,
    "max_metric_name_bytes": Limits().max_metric_name_bytes,
}
SPELLED = {
    "MAX_ELEMENTS": "2³¹ - 1",
    "_MAX_ENV_STEPS": "10⁹",
    "MAX_PUT_BYTES": f"{s3.MAX_PUT_BYTES / 2**30:g} GiB",
    "table_copy.PIECE_BYTES": f"{table_copy.PIECE_BYTES / 2**20:g} MiB",
    "MAX_MESSAGE": f"{wire.MAX_MESSAGE / 2**20:g} MiB",
    "MAX_REQUEST_BYTES": f"{channel.MAX_REQUEST_BYTES / 1024:g} KiB",
    "HANDSHAKE_FRAME_BYTES": f"{framing.HANDSHAKE_FRAME_BYTES / 1024:g} KiB",
}


def rows() -> Iterator[tuple[str, str]]:
    """Yield value and origin of each row of the tables of bounds."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[2].startswith("`"):
            yield cells[1], cells[2]


def row_of(name: str) -> str:
    found = [value for value, where in rows() if f"`{name}`" in where]
    assert len(found) == 1, f"docs/limits.md should name {name} in one row: {found}"
    return found[0]


@pytest.mark.parametrize("name", CONSTANTS)
def test_page_gives_value_of_constant(name: str) -> None:
    assert SPELLED.get(name, f"{int(CONSTANTS[name]):,}") in row_of(name)


def test_page_gives_defaults_of_keys() -> None:
    checked = 0
    for value, where in rows():
        for section, key in re.findall(r"`([a-z-]+)\.([a-z_]+)`", where):
            fields = SECTIONS[section].model_fields
            assert key in fields or section == "algorithm", f"{section}.{key} is not a key"
            default = fields[key].default if key in fields else None
            if isinstance(default, int | float):
                assert f"{default:g}" in value.replace(",", ""), (
                    f"{section}.{key} is {default:g} by default, the page says {value}"
                )
                checked += 1
    assert checked >= 7


def test_page_gives_timeouts_of_client() -> None:
    defaults = base.ClientBase.__init__.__kwdefaults__
    times = [f"{defaults[name]:g} s" for name in ("connect_timeout", "response_timeout", "retry_seconds")]
    assert all(time in row_of("retry_seconds") for time in times)
