from __future__ import annotations

from relaax.cli.run import supervisor
from relaax.server.parameter_server import checkpointing
from relaax.server.parameter_server.coordination import follower
from relaax.server.rlx_server import listener, status


def test_an_rlx_server_has_time_to_end_in_order() -> None:
    assert supervisor.RLX_SERVER_SECONDS > listener.STOP_SECONDS + status.END_SECONDS


def test_a_parameter_server_has_time_for_its_last_attempt_at_a_checkpoint() -> None:
    assert supervisor.CHECKPOINT_SECONDS >= checkpointing.LAST_SECONDS + 30
    assert supervisor.CHECKPOINT_SECONDS >= follower.LEAVING + 30
