"""The command `relaax-learner`."""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack
from typing import Annotated

import typer

from relaax.configuration import Configuration
from relaax.configuration.roles import LEARNER
from relaax.server.command.role import CommandError, announce, role_app, run_app

_log = logging.getLogger("relaax.server.learner")


def serve(
    configuration: Configuration,
    learner: Annotated[int, typer.Option(min=0, metavar="N", help="Number of this learner, from 0.")] = 0,
) -> int:
    """Learn from replay memory: sample batches, and send gradients to the parameter server.

    The learner waits for the first worker, which registers the model's spaces, and ends when training has ended. The
    command line overrides environment variables (RELAAX_LEARNER__PARAMETER_SERVER=...), which override the file.
    """
    from relaax.hosting.errors import describe_error
    from relaax.hosting.loader import load_algorithm
    from relaax.parameters.interfaces import ParameterServerError, ParameterServerUnavailable, TrainingEnded
    from relaax.replay.interfaces import ReplayError, ReplayUnavailable
    from relaax.server.learner.learning import Interruption, LearnerState, SignalReceived, status_server
    from relaax.server.learner.process import make_plan, run

    settings = configuration.learner
    algorithm = load_algorithm(configuration.algorithm_path, configuration.folder)
    state = LearnerState(learner)
    config = algorithm.configure(configuration.algorithm)
    plan = make_plan(settings, algorithm, config, learner, lambda: print("relaax-learner ready", flush=True))
    interruption = Interruption()
    try:
        with interruption.signals(), ExitStack() as ended:
            if settings.status_bind is not None:
                status = status_server(settings.status_bind, state)
                ended.callback(status.close)
                status.start()
                announce(LEARNER, status=status.address)
            run(plan, state, interruption)
    except TrainingEnded as end:
        _log.info("learner ends: training has ended at global step %d", end.global_step)
        # This line distinguishes the exit from one by SIGTERM, whose exit code is also 0.
        print("relaax-learner done", flush=True)
    except SignalReceived as signalled:
        _log.info("learner ends because of %s", signalled)
        return 130 if signalled.number == signal.SIGINT else 0
    except (ParameterServerUnavailable, ReplayUnavailable) as error:
        raise CommandError(error, 1) from None
    except (ParameterServerError, ReplayError) as error:
        raise CommandError(error, 2) from None
    except Exception as error:
        _log.exception("learner stopped by an exception")
        raise CommandError(f"the learner failed at {describe_error(error, algorithm.source)}", 1) from None
    return 0


app = role_app(
    LEARNER, serve,
    "parameter_server", "replay_server", "bridge", "status_bind", "log_level", "log_format", "device",
    "allow_anonymous",
)  # fmt: skip


def main() -> None:
    """Run the command."""
    run_app(LEARNER, app)


if __name__ == "__main__":
    main()
