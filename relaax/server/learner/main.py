"""The command `relaax-learner`."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import ExitStack
from typing import Annotated, Any, NoReturn

from relaax.library_variables import missing_from

# The libraries imported below read these.
os.environ.update(missing_from(os.environ))

import typer

from relaax.configuration import Configuration, ConfigurationError, overrides_of
from relaax.configuration.roles import LEARNER
from relaax.extras import named
from relaax.hosting.errors import described
from relaax.hosting.loader import load_algorithm
from relaax.log_lines import print_error
from relaax.output import replace_unknown_characters
from relaax.parameters.interfaces import ParameterServerError, ParameterServerUnavailable, TrainingEnded
from relaax.replay.interfaces import ReplayError, ReplayUnavailable
from relaax.server.address import AddressError
from relaax.server.blas import restarting, use_kernels
from relaax.server.command_configuration import configured, require_private_ports, show, whole
from relaax.server.key_options import key_options
from relaax.server.learner.interruption import Interruption, SignalReceived
from relaax.server.logs import configure_logging
from relaax.server.native_messages import load_tensorflow_quietly
from relaax.server.options import (
    CheckConfigOption,
    ConfigOption,
    PrintConfigOption,
    SetOption,
    VersionOption,
    command_app,
)

_log = logging.getLogger("relaax.server.learner")

app = command_app()


@app.command()
@key_options(
    LEARNER,
    "parameter_server", "replay_server", "bridge", "status_bind", "log_level", "log_format", "device",
    "allow_anonymous",
)  # fmt: skip
def serve(
    config: ConfigOption,
    keys: dict[str, Any],
    learner: Annotated[int, typer.Option(min=0, metavar="N", help="Its number among the learners, from 0.")] = 0,
    set_: SetOption = None,
    print_config: PrintConfigOption = False,
    check_config: CheckConfigOption = False,
    version: VersionOption = False,
) -> None:
    """Learn from replay memory: sample batches, and send gradients to the parameter server.

    It waits for the first worker, which brings the model's spaces, and ends with the training. The command line wins
    over environment variables (RELAAX_LEARNER__PARAMETER_SERVER=...), and these over the file.
    """
    try:
        configuration = configured(config, [*(set_ or []), *overrides_of(keys)])
        if print_config or check_config:
            show(config, whole(configuration), print_config)
            raise typer.Exit(0)
        settings = configuration.learner
        configure_logging(settings.log_level, settings.log_format)
        use_kernels(settings.blas_kernels, os.environ)
        require_private_ports(settings)
        code = _run(configuration, learner)
    except (ConfigurationError, AddressError) as error:
        _give_up(error, 2)
    raise typer.Exit(code)


def _run(configuration: Configuration, number: int) -> int:
    """Learn until the end; return the exit code. Raises ConfigurationError and AddressError."""
    load_tensorflow_quietly()
    from relaax.server.learner.assembly import assemble
    from relaax.server.learner.learning import LearnerState
    from relaax.server.learner.process import run
    from relaax.server.learner.status import status_server

    settings = configuration.learner
    algorithm = load_algorithm(configuration.algorithm_path, configuration.folder)
    state = LearnerState(number)
    config = algorithm.configure(configuration.algorithm)
    plan = assemble(settings, algorithm, config, number, lambda: print("relaax-learner ready", flush=True))
    interruption = Interruption()
    try:
        with interruption.signals(), ExitStack() as ended:
            if settings.status_bind is not None:
                status = status_server(settings.status_bind, state)
                ended.callback(status.close)
                status.start()
                print(f"relaax-learner status at http://{status.address}", flush=True)
            run(plan, state, interruption)
    except TrainingEnded as end:
        _log.info("training has ended at global step %d", end.global_step)
        print("relaax-learner done", flush=True)  # exit code 0 is that of SIGTERM, too
    except SignalReceived as signalled:
        _log.info("ended by %s", signalled)
        return 130 if signalled.number == signal.SIGINT else 0
    except (ParameterServerUnavailable, ReplayUnavailable) as error:
        _give_up(error, 1)
    except (ParameterServerError, ReplayError) as error:
        _give_up(error, 2)
    except Exception as error:
        _log.exception("the learner failed")
        _give_up(f"the learner failed at {described(error, algorithm.source)}", 1)
    return 0


def _give_up(error: object, code: int) -> NoReturn:
    print_error("relaax-learner", error)
    raise typer.Exit(code) from None


def main() -> None:
    """Entry point."""
    replace_unknown_characters()
    with named("relaax-learner"), restarting("relaax-learner"):
        app(prog_name="relaax-learner")


if __name__ == "__main__":
    main()
