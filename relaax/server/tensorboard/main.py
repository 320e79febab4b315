"""The command `relaax-tensorboard`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from relaax.library_variables import missing_from

# The libraries imported below read these.
os.environ.update(missing_from(os.environ))

import typer

from relaax.configuration import Configuration, ConfigurationError, overrides_of
from relaax.configuration.roles import TENSORBOARD
from relaax.extras import named
from relaax.log_lines import print_error
from relaax.output import replace_unknown_characters
from relaax.server.address import AddressError, require_free, split_address
from relaax.server.command_configuration import configured, require_private_board, show, whole
from relaax.server.key_options import key_options
from relaax.server.options import (
    CheckConfigOption,
    ConfigOption,
    PrintConfigOption,
    SetOption,
    VersionOption,
    command_app,
)
from relaax.server.termination import EndRequests, Reason, signal_reasons

app = command_app()


@app.command()
@key_options(TENSORBOARD, "bind", "metrics_dir", "allow_anonymous")
def serve(
    config: ConfigOption,
    keys: dict[str, Any],
    set_: SetOption = None,
    print_config: PrintConfigOption = False,
    check_config: CheckConfigOption = False,
    version: VersionOption = False,
) -> None:
    """Show the curves of a training in the browser: TensorBoard, on the metrics of the parameter server.

    The command line wins over environment variables (RELAAX_TENSORBOARD__BIND=...), and these over the file.
    """
    try:
        configuration = configured(config, [*(set_ or []), *overrides_of(keys)])
        if print_config or check_config:
            show(config, whole(configuration), print_config)
            raise typer.Exit(0)
        settings = configuration.tensorboard
        require_private_board(settings)
        require_free(settings.bind)
        code = _run(_metrics(configuration), *split_address(settings.bind))
    except (ConfigurationError, AddressError) as error:
        _give_up(error)
    raise typer.Exit(code)


def _metrics(configuration: Configuration) -> Path:
    """Return the folder to show, which need not exist yet. Raises ConfigurationError if no key names one."""
    folder = configuration.tensorboard.metrics_dir or configuration.parameter_server.metrics_dir
    if folder is None:
        raise ConfigurationError(
            "relaax-tensorboard.metrics_dir: there is nothing to show: set it, or relaax-parameter-server.metrics_dir"
        )
    return Path(folder)


def _run(folder: Path, host: str, port: int) -> int:
    """Serve until a signal; return the exit code. Raises AddressError."""
    from tensorboard import default, program

    ends = EndRequests()
    with ends.signals(signal_reasons(), afterwards=signal.SIG_IGN):
        board = program.TensorBoard(plugins=default.get_plugins())
        board.configure(logdir=str(folder), host=host, port=port)
        try:
            url = board.launch()  # in a thread that ends with this process
        except program.TensorBoardServerException as error:
            raise AddressError(f"relaax-tensorboard.bind: {error.msg.strip()}") from None
        print(f"relaax-tensorboard listening on {urlsplit(url).netloc}", flush=True)
        print(f"relaax-tensorboard shows {folder} at {url}", flush=True)
        return 130 if ends.get() is Reason.INTERRUPTED else 0


def _give_up(error: Exception) -> NoReturn:
    print_error("relaax-tensorboard", error)
    raise typer.Exit(2) from None


def main() -> None:
    """Entry point."""
    replace_unknown_characters()
    with named("relaax-tensorboard"):
        app(prog_name="relaax-tensorboard")


if __name__ == "__main__":
    main()
