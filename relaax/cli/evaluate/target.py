"""What is evaluated: an environment's program and a policy, found from what a person names."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from relaax.bundled import bundled_folder, bundled_names
from relaax.cli.checkpoints import catalogue
from relaax.cli.run.plan import Plan, make_plan
from relaax.configuration import ConfigurationError
from relaax.configuration.secrets import HIDDEN
from relaax.files import write_whole
from relaax.policy.file import Description, PolicyError, description_of, policy_of, read

CONFIGURATION = "configuration.yaml"
_SUFFIX = ".safetensors"
_RUN_KEYS = ("environment", "name", "kwargs", "wrappers", "register", "modules", "arguments")


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that choose what is evaluated; see `relaax eval --help`."""

    name: str
    config: str | None = None
    overrides: Sequence[str] = ()
    run_dir: Path | None = None
    checkpoint_id: str | None = None
    best: bool = False
    random: bool = False
    aws_keys: str | None = None
    aws_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class EvaluationTarget:
    """An environment, and the policy that acts in it.

    `policy`: arguments of `relaax.policy.load`, None to act at random. `source`: the location of the policy,
    `checkpoint` and `global_step` those of the policy's description.
    """

    plan: Plan
    policy: Mapping[str, Any] | None
    source: str | None = None
    checkpoint: str | None = None
    global_step: int | None = None
    mean_return: float | None = None


def find(asked: Asked, stack: ExitStack) -> EvaluationTarget:
    """Return what was asked for. Files made for it last as long as `stack`.

    Raises ConfigurationError, CatalogueError, PolicyError, StoreError and Damaged.
    """
    if asked.random and (asked.checkpoint_id is not None or asked.best):
        raise ConfigurationError("--random uses no checkpoint: leave out --id and --best")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relaax-eval-")))
    of_run = Path("runs") / asked.name
    if (of_run / CONFIGURATION).is_file() and not _is_configuration(asked.name):
        asked = replace(asked, name=str(of_run))
    path = Path(asked.name)
    if path.suffix == _SUFFIX:
        if asked.checkpoint_id is not None or asked.best:
            raise ConfigurationError(f"{asked.name} is one policy: --id and --best choose from checkpoints")
        described = read(path).description
        return _target(_plan_of(asked, described, folder), asked.name, path, described)
    if not asked.name.startswith("s3://") and not path.is_dir():  # a configuration
        plan = make_plan(asked.config or asked.name, asked.overrides)
        run = asked.run_dir or Path("runs") / plan.name
        if asked.random:
            return EvaluationTarget(plan, None)
        if not run.is_dir():
            raise ConfigurationError(
                f"there is no run of {plan.name} in {run}: train first, `relaax run {asked.name}`; or name a run "
                "directory, a location of checkpoints or a .safetensors file; --random acts at random"
            )
        described = _policy(asked, str(run), folder)
        if asked.config is None and (run / CONFIGURATION).is_file():  # with what the run overrode
            plan = make_plan(str(run / CONFIGURATION), asked.overrides)
        return _target(plan, str(run), folder / f"policy{_SUFFIX}", described)
    run_file = path / CONFIGURATION
    if asked.random:
        return EvaluationTarget(make_plan(asked.config or str(run_file), asked.overrides), None)
    described = _policy(asked, asked.name, folder)
    if run_file.is_file():
        plan = make_plan(asked.config or str(run_file), asked.overrides)
    else:
        plan = _plan_of(asked, described, folder)
    return _target(plan, asked.name, folder / f"policy{_SUFFIX}", described)


def _is_configuration(name: str) -> bool:
    return Path(name).exists() or name.removesuffix(".yaml") in bundled_names("config", ".yaml")


def _target(plan: Plan, source: str, file: Path, described: Description) -> EvaluationTarget:
    policy = {"file": str(file), "algorithm": str(plan.algorithm)}
    return EvaluationTarget(plan, policy, source, described.checkpoint, described.global_step, described.mean_return)


def _policy(asked: Asked, location: str, folder: Path) -> Description:
    """Export the checkpoint that is asked for to policy.safetensors in `folder`."""
    store = catalogue.opened(location, asked.aws_keys, asked.aws_endpoint)
    checkpoint = catalogue.loaded(store, asked.checkpoint_id, asked.best)
    write_whole(folder / f"policy{_SUFFIX}", policy_of(checkpoint))
    return description_of(checkpoint)


def _plan_of(asked: Asked, described: Description, folder: Path) -> Plan:
    """Return the plan of a checkpoint without its run: by --config, or by what it says of itself.

    A checkpoint does not choose which code is run: it names nothing but what comes with RELAAX.
    """
    if asked.config is not None:
        return make_plan(asked.config, asked.overrides)
    name = str(described.fingerprint.get("algorithm"))
    run = dict(described.configuration.get("relaax-run", {}))
    environment = run.get("environment")
    if environment is None:
        served = f"relaax-rlx-server --config FILE --exploit --checkpoint {asked.name}"
        alone = f'; a program that connects by itself acts with Client(..., mode="exploit") on `{served}`'
        alone = "" if asked.name.endswith(_SUFFIX) else alone
        raise PolicyError(f"{asked.name} names no environment: name its configuration with --config FILE{alone}")
    if name not in bundled_names("algorithms") or environment not in bundled_names("environments"):
        raise PolicyError(
            f"{asked.name} was trained by {name} in the environment {environment}, which do not both come with RELAAX: "
            "name its configuration with --config FILE"
        )
    keys = {key: value for key, value in described.fingerprint["configuration"].items() if value != HIDDEN}
    document = {
        "relaax-run": {key: run[key] for key in _RUN_KEYS if key in run},
        "algorithm": {**keys, "path": str(bundled_folder("algorithms") / name)},
    }
    file = folder / f"{Path(asked.name).stem or 'checkpoint'}.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return make_plan(str(file), asked.overrides)
