"""The command `relaax doctor`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.text import Text

from relaax.cli import completion
from relaax.cli.doctor.finding import Check, Finding, MissingPrerequisite, Severity, Subject, wrong
from relaax.console import log_to_stderr
from relaax.plain_console import PlainConsole, visible
from relaax.server.command.options import SetOption

COLORS = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.WRONG: "red"}


def doctor(
    config: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.configurations,
            help="A YAML file, or the name of a bundled one: da3c_gym_cartpole.",
        ),
    ],
    set_: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Check a configuration and this machine for problems.

    Reports whether the servers can run, in one line per finding: ok, warning or wrong, a sentence, and a remedy.
    The last line is a summary. Servers may be running. The only change is a value that is written to the checkpoint
    store and removed again.

    Exit code 0: no finding is wrong (there may be warnings); 1: a finding is wrong.
    """
    log_to_stderr("relaax doctor: %(message)s")
    console = PlainConsole(highlight=False, soft_wrap=True)
    found = []
    for name, finding in run_checks(Subject(config, set_ or ())):
        found.append((name, finding))
        if not as_json:
            shown = Text(visible(line(name, finding)))
            shown.stylize(COLORS[finding.level], 0, len(finding.level.value))
            console.print(shown)
    worst = max((finding.level for _, finding in found), key=list(Severity).index)
    if as_json:
        findings = [
            {"check": name, "level": finding.level.value, "sentence": finding.sentence, "way_out": finding.way_out}
            for name, finding in found
        ]
        print(json.dumps({"ok": worst is not Severity.WRONG, "findings": findings}, indent=2))
    else:
        console.print(Text(f"\n{summary(found)}", COLORS[worst]))
    raise typer.Exit(1 if worst is Severity.WRONG else 0)


def summary(found: Sequence[tuple[str, Finding]]) -> str:
    """Return the closing line: whether the servers can run, and the checks with problems or warnings."""
    problems, warnings = (_count_text(found, level) for level in (Severity.WRONG, Severity.WARNING))
    if problems:
        return f"{problems}; {warnings}" if warnings else problems
    passed = len({name for name, _ in found} - {name for name, one in found if one.level is not Severity.OK})
    checks_passed = f"{passed} check{'s' * (passed != 1)} passed"
    return f"ready: {checks_passed}; {warnings}" if warnings else f"ready: {checks_passed}"


def _count_text(found: Sequence[tuple[str, Finding]], level: Severity) -> str:
    """Return the number of findings of this level and the names of their checks; an empty string without findings."""
    names = [name for name, finding in found if finding.level is level]
    word = "problem" if level is Severity.WRONG else level.value
    return f"{len(names)} {word}{'s' * (len(names) != 1)}: {', '.join(dict.fromkeys(names))}" if names else ""


def run_checks(subject: Subject) -> Iterator[tuple[str, Finding]]:
    """Yield the findings of each check, in order."""
    for check in checks():
        try:
            for finding in check.run(subject):
                yield check.name, finding
        except MissingPrerequisite:
            continue
        except Exception as error:  # a failing check must not hide the others
            yield check.name, wrong(f"this could not be checked: {type(error).__name__}: {error}", "please report it")


def line(name: str, finding: Finding) -> str:
    """Return a finding as one line, even if its sentence has several."""
    text = finding.sentence.replace("\n", "; ")
    if finding.way_out:
        text += f"{'' if text.endswith('?') else '.'} {finding.way_out[0].upper()}{finding.way_out[1:]}"
    return f"{finding.level.value:<8} {name}: {text}"


def checks() -> tuple[Check, ...]:
    """Return all checks. Prerequisites are first, and forking is before the first check that starts a thread."""
    from relaax.cli.doctor import certificates, installation, machine, network, storage

    return (
        Check("configuration", installation.configuration),
        Check("versions", installation.versions),
        Check("kernels", installation.kernels),
        Check("algorithm", installation.algorithm),
        Check("fork", installation.forking),
        Check("environment", installation.environment),
        Check("memory", machine.memory),
        Check("replay memory", network.replay_memory),
        Check("open files", machine.descriptors),
        Check("shared memory", machine.shared_memory),
        Check("tokens", certificates.tokens),
        Check("certificates", certificates.certificates),
        Check("ports", network.ports),
        Check("parameter server", network.parameter_server),
        Check("replay server", network.replay_server),
        Check("store", storage.store),
        Check("disk", storage.disk),
        Check("clock", storage.clock),
    )
