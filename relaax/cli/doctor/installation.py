"""Check Python, libraries, the configuration and its algorithm."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator

from packaging.requirements import Requirement

from relaax import __version__
from relaax.cli.doctor.finding import FIX, Finding, MissingPrerequisite, Subject, ok, warning, wrong
from relaax.cli.run.environment_check import CHECK_SECONDS, EnvironmentCheck, check_spaces
from relaax.cli.run.plan import plan_of
from relaax.configuration import ConfigurationError
from relaax.supervision.process import StartError

_OLDEST_PYTHON, _FIRST_UNTESTED_PYTHON = (3, 10), (3, 14)
_SHOWN = ("tensorflow", "grpcio", "protobuf", "numpy")


def versions(subject: Subject) -> Iterator[Finding]:
    """Check Python and the servers' dependencies against the ranges that this installation declares."""
    extras = {"", "server"}
    if _version_of("tensorflow") is not None:  # optional: for GPUs, and for algorithms that import it
        extras.add("tensorflow")
    if subject.found is not None and subject.found.parameter_server.checkpoint_aws_s3:
        extras.add("s3")
    good = True
    for text in importlib.metadata.requires("relaax") or ():
        requirement = Requirement(text)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        version = _version_of(requirement.name)
        if version is None:
            good = False
            yield wrong(f"{requirement.name} is not installed", "pip install 'relaax[server]' ('relaax[s3]' for S3)")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            good = False
            wanted = f"{requirement.name}{requirement.specifier}"
            yield wrong(f"{requirement.name} {version} is not known to work", f"pip install '{wanted}'")
    if sys.version_info[:2] < _OLDEST_PYTHON:
        yield wrong(f"Python {platform.python_version()} is too old", "3.10 to 3.13 are tested")
    elif sys.version_info[:2] >= _FIRST_UNTESTED_PYTHON:
        yield warning(f"Python {platform.python_version()} is not tested", "3.10 to 3.13 are")
    elif good:
        installed = ((name, _version_of(name)) for name in _SHOWN)
        libraries = ", ".join(f"{name} {version}" for name, version in installed if version is not None)
        yield ok(f"relaax {__version__}, Python {platform.python_version()}, {libraries}")


def kernels(_: Subject) -> Iterator[Finding]:
    """Check whether the servers use compiled kernels, and do not load numba."""
    from relaax.machine_code.build import declared
    from relaax.machine_code.prebuilt import kernel_of, library

    found, again = library(), "to compile them: python -m relaax.machine_code.build"
    if found.module is None:
        yield warning(f"numba compiles the kernels in every server, which takes 100 MB: {found.reason}", again)
    elif changed := sorted({kernel.function.__name__ for kernel in declared() if kernel_of(kernel) is None}):
        yield warning(f"numba compiles {', '.join(changed)}, which changed after the kernels were compiled", again)
    else:
        yield ok(f"compiled kernels for {found.level}")


def _version_of(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def configuration(subject: Subject) -> Iterator[Finding]:
    """Check the file with variables and overrides, and the protection of ports that other machines can reach."""
    from relaax.server.address import AddressError
    from relaax.server.command.configuration import configured, require_private_ports

    try:
        subject.found = configured(subject.name, subject.overrides)
    except ConfigurationError as error:
        yield wrong(str(error), "`relaax run CONFIG --print-config` shows the source of each value")
        return
    try:
        found = subject.found
        require_private_ports(found.parameter_server, found.rlx_server, found.replay_server, found.learner)
    except AddressError as error:
        yield wrong(str(error), "`relaax docs security` explains it")
    else:
        yield ok(f"{subject.name} can be used")


def algorithm(subject: Subject) -> Iterator[Finding]:
    """Check whether the algorithm can be imported, accepts its section, and supports the bridge."""
    from relaax.algorithm_base import ConfigBase
    from relaax.hosting.loader import load_algorithm
    from relaax.server.command.configuration import check_bridge
    from relaax.server.command.hardware import device_of, load_tensorflow_quietly

    found = subject.configuration
    try:
        load_tensorflow_quietly()
        subject.algorithm = load_algorithm(found.algorithm_path, found.folder)
        subject.config = subject.algorithm.configure(found.algorithm)
        if isinstance(subject.config, ConfigBase):
            check_bridge(found.rlx_server, subject.config)
            subject.algorithm.prepare(subject.config, device_of(found.rlx_server, subject.config))
    except ConfigurationError as error:
        yield wrong(str(error), FIX)
    else:
        yield ok(f"{subject.algorithm.name} from {subject.algorithm.source}")


def forking(subject: Subject) -> Iterator[Finding]:
    """Check whether workers can be forked, right after the algorithm's import."""
    from relaax.server.rlx_server.workers.spawners import thread_count

    if subject.configuration.rlx_server.worker_start == "spawn":
        yield ok("workers are fresh processes (worker_start: spawn)")
        return
    if subject.algorithm is None:
        raise MissingPrerequisite
    threads = thread_count()
    if sys.platform == "darwin":
        yield wrong("a process cannot be forked safely on macOS", "set relaax-rlx-server.worker_start to spawn")
    elif threads > 1:
        yield wrong(
            f"{subject.algorithm.source} leaves {threads} threads running after its import: workers cannot be forked",
            "start them in the agent's constructor, or set relaax-rlx-server.worker_start to spawn",
        )
    else:
        yield ok("workers can be forked: all imports are done, and there is one thread")


def environment(subject: Subject) -> Iterator[Finding]:
    """Check whether an environment can be made, if the configuration names one.

    A failure is only a warning: servers run without environments, which may be on other machines.
    """
    run = subject.configuration.run
    if run.environment is None or run.name is None:
        return
    try:
        plan = plan_of(subject.name, subject.configuration)
        with EnvironmentCheck(plan) as check:
            spaces = check.wait()
        check_spaces(plan, spaces)
    except (ConfigurationError, StartError) as error:
        way_out = f"{FIX}; servers run without environments"
        yield warning(f"`relaax run` cannot start its environments: {error}", way_out)
        return
    if spaces is not None:
        subject.spaces = spaces
        yield ok("{} can be made: observations {}, actions {}".format(run.name, *spaces))
    elif not check.is_possible:
        yield ok(f"{plan.environment_main} is your own program, and was not started")
    else:
        sentence = f"making {run.name} took longer than {CHECK_SECONDS:g} s"
        yield warning(sentence, f"try `{plan.environment_main} check {run.name}`")
