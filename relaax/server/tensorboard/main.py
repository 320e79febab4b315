"""The command `relaax-tensorboard`."""

from __future__ import annotations

import signal
from pathlib import Path
from urllib.parse import urlsplit

from relaax.configuration import Configuration, ConfigurationError
from relaax.configuration.roles import TENSORBOARD
from relaax.server.address import AddressError, require_free, split_address
from relaax.server.command.role import announce, exit_code, role_app, run_app
from relaax.server.command.termination import EndRequests, signal_reasons


def serve(configuration: Configuration) -> int:
    """Show the metrics of the parameter server in a browser, with TensorBoard.

    The command line overrides environment variables (RELAAX_TENSORBOARD__BIND=...), and these override the file.
    """
    bind = configuration.tensorboard.bind
    require_free(bind)
    folder = configuration.tensorboard.metrics_dir or configuration.parameter_server.metrics_dir
    if folder is None:
        raise ConfigurationError(
            "relaax-tensorboard.metrics_dir: missing: set it, or relaax-parameter-server.metrics_dir, to a folder"
        )
    return _run(Path(folder), *split_address(bind))


def _run(folder: Path, host: str, port: int) -> int:
    """Serve until a signal; return the exit code. Raises AddressError. The folder need not exist yet."""
    from tensorboard import default, program

    ends = EndRequests()
    with ends.signals(signal_reasons(), afterwards=signal.SIG_IGN):
        board = program.TensorBoard(plugins=default.get_plugins())
        board.configure(logdir=str(folder), host=host, port=port)
        try:
            url = board.launch()  # in a thread that ends with this process
        except program.TensorBoardServerException as error:
            raise AddressError(f"relaax-tensorboard.bind: {error.msg.strip()}") from None
        announce(TENSORBOARD, urlsplit(url).netloc)
        print(f"relaax-tensorboard shows {folder} at {url}", flush=True)
        return exit_code(ends.get())


app = role_app(TENSORBOARD, serve, "bind", "metrics_dir", "allow_anonymous")


def main() -> None:
    """Run the command."""
    run_app(TENSORBOARD, app)


if __name__ == "__main__":
    main()
