"""One client that reports false returns among honest ones, over real gRPC."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from relaax.parameters.status import TrainingStatus
from support.parameter_servers import parameter_client, registration, running


def status_among(lie: float, lies: int, named: bool) -> tuple[TrainingStatus, dict[str, float]]:
    """Return the status and the scalars after 40 rounds of episodes of four clients.

    Three clients have returns from 10 to 60. In each round the fourth reports `lie` as the return of `lies` episodes.
    """
    with running() as server, ExitStack() as stack:
        clients = [stack.enter_context(parameter_client(server.address)) for _ in range(4)]
        for number, client in enumerate(clients):
            client.register(registration(**({"client": f"c{number}"} if named else {"session_id": f"s{number}"})))
            client.pull()
        for episode in range(40):
            for _ in range(lies):
                clients[3].metrics.episode(lie, 1)
            for number, client in enumerate(clients[:3]):
                client.metrics.episode(10.0 + (7 * episode + 13 * number) % 51, 10)
            for client in clients:
                client.push(None, env_steps=1)
        return TrainingStatus.from_message(server.core.status().to_message()), server.core.scalars()[1]


@pytest.mark.parametrize(("named", "lies"), [(True, 1), (False, 100)])
def test_false_returns_neither_raise_the_mean_nor_reach_a_target(named: bool, lies: int) -> None:
    status, scalars = status_among(1e15, lies, named)
    for mean in (status.mean_return_100, scalars["episode/mean_return_100"], scalars["episode/return"]):
        assert mean is not None and 10.0 <= mean <= 60.0
    assert status.discarded_returns == scalars["outliers/returns"] == 40 * lies
    assert status.reaches(10.0) and not status.reaches(100.0)
    plausible, _ = status_among(500.0, lies, named)
    assert plausible.mean_return_100 is not None and plausible.mean_return_100 > 100.0
    assert not plausible.reaches(100.0)
