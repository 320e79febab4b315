"""All rules for clients, checked one after the other against a real one."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from relaax.conformance.client_rules import CLIENT_RULES, ClientRule
from relaax.conformance.host import ClientRun, Script, run_client
from relaax.conformance.report import Report, RuleResult, Verdict

QUIET_SECONDS = 5.0
NO_CLIENT = "it never connected"


def client_rules(only: str = "*") -> list[ClientRule]:
    """Those whose name fits the pattern."""
    return [rule for rule in CLIENT_RULES if fnmatch.fnmatchcase(rule.name, only)]


def check_client(
    command: list[str],
    deadline: float,
    rules: list[ClientRule],
    progress: Callable[[str], None] = lambda name: None,
    jobs: int = 1,
) -> Report:
    """Check a client. Rules about the same behaviour of the server share a run of the command; `jobs` run at a time.

    Raises OSError if the command cannot be started.
    """
    runs: dict[Script, ClientRun] = {}

    def perform(rule: ClientRule) -> None:
        progress(rule.name)
        quiet = deadline if rule.patient else min(deadline, QUIET_SECONDS)
        runs[rule.script] = run_client(command, rule.script, deadline, quiet)

    first, *rest = {rule.script: rule for rule in rules}.values()
    perform(first)
    if runs[first.script].talks:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(perform, rest))
        findings = [_finding(rule, runs[rule.script]) for rule in rules]
    else:  # nor will it for the others
        unseen = [RuleResult(rule.name, rule.section, Verdict.NOT_SEEN, NO_CLIENT) for rule in rules[1:]]
        findings = [_finding(rules[0], runs[rules[0].script]), *unseen]
    return Report(f"the client `{' '.join(command)}`", findings)


def _finding(rule: ClientRule, run: ClientRun) -> RuleResult:
    if not run.talks:
        return RuleResult(rule.name, rule.section, Verdict.FAILED, f"{NO_CLIENT}; {run.end}")
    verdict, sentence = rule.judge(run)
    if run.talks[0].cannot:
        verdict, sentence = Verdict.NOT_APPLICABLE, run.talks[0].cannot
    return RuleResult(rule.name, rule.section, verdict, sentence or rule.description)
