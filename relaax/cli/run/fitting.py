"""Check that an algorithm serves the environment's spaces, before anything is started."""

from __future__ import annotations

from relaax.bundled import bundled_folder, bundled_names
from relaax.cli.run.plan import Plan
from relaax.configuration import ConfigurationError
from relaax.hosting.loader import open_algorithm
from relaax.rlx import Space


def require_fitting(plan: Plan, spaces: tuple[Space, Space] | None) -> None:
    """Raise ConfigurationError, with the bundled algorithms that can, if the plan's algorithm refuses these spaces.

    `spaces`: of observations and actions; None if they are not known, and left to the server.
    """
    config = plan.configuration.algorithm_config
    if spaces is None or config is None:
        return
    algorithm = open_algorithm(str(plan.algorithm), plan.configuration.folder)
    refusal = algorithm.refusal(config, *spaces)  # type: ignore[arg-type]
    if refusal is None:
        return
    able = [] if refusal.supported else [name for name in bundled_names("algorithms") if _is_able(name, spaces)]
    way_out = f"; bundled algorithms that can: {', '.join(able)}" if able else ""
    raise ConfigurationError(f"{plan.environment_name}: {refusal.sentence}{way_out}")


def _is_able(name: str, spaces: tuple[Space, Space]) -> bool:
    algorithm = open_algorithm(name, bundled_folder("algorithms"))
    return algorithm.refusal(algorithm.Config(path=name), *spaces) is None
