from __future__ import annotations

from relaax.cli.run import supervisor
from relaax.server.rlx_server import listener, status


def test_an_rlx_server_has_time_to_end_in_order() -> None:
    assert supervisor.RLX_SERVER_SECONDS > listener.STOP_SECONDS + status.END_SECONDS
