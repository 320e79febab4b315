"""The command `relaax doctor`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

import typer

from relaax.cli import completion
from relaax.cli.doctor.finding import Check, Finding, Severity, Subject, Unusable, wrong
from relaax.log_lines import log_to_stderr
from relaax.server.options import SetOption


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
    """Check whether the servers can run with this configuration on this machine, and report problems.

    Prints one line per finding: ok, warning or wrong, a sentence, and a remedy. Servers may be running; nothing is
    changed, except that a value is written to the checkpoint store and removed again.

    Exit code 0: nothing is wrong (there may be warnings); 1: something is.
    """
    log_to_stderr("relaax doctor: %(message)s")
    found = []
    for name, finding in examined(Subject(config, set_ or ())):
        found.append((name, finding))
        if not as_json:
            print(line(name, finding), flush=True)
    healthy = all(finding.level is not Severity.WRONG for _, finding in found)
    if as_json:
        findings = [
            {"check": name, "level": finding.level.value, "sentence": finding.sentence, "way_out": finding.way_out}
            for name, finding in found
        ]
        print(json.dumps({"ok": healthy, "findings": findings}, indent=2))
    raise typer.Exit(0 if healthy else 1)


def examined(subject: Subject) -> Iterator[tuple[str, Finding]]:
    """Yield the findings of each check, in order."""
    for check in checks():
        try:
            for finding in check.look(subject):
                yield check.name, finding
        except Unusable:
            continue
        except Exception as error:  # a failing check must not hide the others
            yield check.name, wrong(f"this could not be checked: {type(error).__name__}: {error}", "please report it")


def line(name: str, finding: Finding) -> str:
    """Return a finding as text; a sentence of several lines stays one finding."""
    text = finding.sentence.replace("\n", "; ")
    if finding.way_out:
        text += f". {finding.way_out[0].upper()}{finding.way_out[1:]}"
    return f"{finding.level.value:<8} {name}: {text}"


def checks() -> tuple[Check, ...]:
    """Return all checks: those that others depend on first, and forking before anything starts a thread."""
    from relaax.cli.doctor import (
        certificates,
        environments,
        installation,
        machine,
        parameter_server,
        ports,
        replay_server,
        shared_host,
        storage,
    )

    return (
        Check("configuration", installation.configuration),
        Check("versions", installation.versions),
        Check("algorithm", installation.algorithm),
        Check("fork", installation.forking),
        Check("environment", environments.environment),
        Check("memory", machine.memory),
        Check("replay memory", replay_server.replay_memory),
        Check("open files", ports.descriptors),
        Check("shared memory", shared_host.shared_memory),
        Check("tokens", certificates.tokens),
        Check("certificates", certificates.certificates),
        Check("ports", ports.ports),
        Check("parameter server", parameter_server.parameter_server),
        Check("replay server", replay_server.replay_server),
        Check("store", storage.store),
        Check("disk", storage.disk),
        Check("clock", storage.clock),
    )
