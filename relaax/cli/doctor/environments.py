"""Check the environments that `relaax run` would start on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from relaax.cli.doctor.finding import Finding, Subject, ok, warning
from relaax.cli.run.environment_check import CHECK_SECONDS, EnvironmentCheck
from relaax.cli.run.fitting import require_fitting
from relaax.cli.run.plan import plan_of
from relaax.configuration import ConfigurationError
from relaax.supervision.process import StartError


def environment(subject: Subject) -> Iterator[Finding]:
    """Check whether an environment can be made, if the configuration names one.

    A failure is only a warning: servers run without, and their environments may be on other machines.
    """
    run = subject.configuration.run
    if run.environment is None or run.name is None:
        return
    try:
        plan = plan_of(subject.name, subject.configuration)
        with EnvironmentCheck(plan) as check:
            spaces = check.wait()
        require_fitting(plan, spaces)
    except (ConfigurationError, StartError) as error:
        way_out = "fix what is named; servers run without environments"
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
