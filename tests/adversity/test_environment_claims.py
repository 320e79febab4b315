"""Clients that repeatedly claim as many environments as the protocol allows, beside honest clients."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import pytest

from relaax import rlx
from relaax.rlx import ErrorCode
from relaax.rlx.messages import MAX_ENVIRONMENTS
from support.processes import Running, wait_until
from support.resource_leaks import expect_clean_log
from support.rlx_line import Line
from support.rlx_pair import make_hello
from support.service import started_service
from support.trainee import Training

pytestmark = pytest.mark.checks("relaax/server", "relaax/rlx")

MEGABYTES = 60  # maximum growth of both servers together


def own_megabytes(*servers: Running) -> float:
    """Return the unique memory of the servers' own processes, without their workers."""
    return sum(psutil.Process(server.pid).memory_full_info().uss for server in servers) / 2**20


@pytest.mark.slow
@pytest.mark.parametrize("environments", [MAX_ENVIRONMENTS, 4096], ids=["protocol limit", "server limit"])
def test_repeated_large_claims_do_not_affect_honest_clients(tmp_path: Path, environments: int, short: bool) -> None:
    """Admitted connections stay open, because closed ones no longer count."""
    with started_service(tmp_path) as service, contextlib.ExitStack() as stack:
        training = [Training(service.address) for _ in range(2)]
        try:
            for each in training:
                each.expect_more()
            servers = service.parameter_server, service.rlx_server
            before, answers = own_megabytes(*servers), []
            for number in range(30 if short else 100):
                line = stack.enter_context(Line(service.address))
                line.send(_hello(environments))
                answers.append(line.receive())
                if isinstance(answers[-1], rlx.Welcome):
                    line.init()  # a connection without an init may be evicted
                if number % 10 == 0:
                    for each in training:
                        each.expect_more(10)
            admitted = sum(isinstance(answer, rlx.Welcome) for answer in answers)
            refused = {answer.code for answer in answers if isinstance(answer, rlx.Error)}
            if environments > 4096:
                assert (admitted, refused) == (0, {ErrorCode.LIMIT_EXCEEDED})
            else:
                assert 10 <= admitted <= MAX_ENVIRONMENTS // environments
                assert refused == {ErrorCode.OVERLOADED}
            assert own_megabytes(*servers) - before < MEGABYTES
            assert max(map(len, service.rlx_server.stderr.splitlines())) < 1000, "no log line lists all environments"
            for each in training:
                each.expect_more(200)
            stack.close()
            wait_until(lambda: len(service.rlx_server.children()) == 2, "closed connections have no worker", 60)
        finally:
            for each in training:
                each.stop()
        expect_clean_log(service.rlx_server)


def _hello(environments: int) -> rlx.Hello:
    """Return a hello with the spaces of CartPole, like that of the training clients."""
    infinite = (float("-inf"), float("inf"))
    space = rlx.Box(*infinite, (4,), "float32")
    return make_hello(space, rlx.Discrete(2), environments)
