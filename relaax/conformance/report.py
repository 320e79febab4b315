"""The report of a check: one verdict for each rule."""

from __future__ import annotations

import enum
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

MAX_CHARACTERS = 240  # of a sentence in the table; the JSON has the whole sentence
WIDTH = 130  # of the table without a terminal


class Verdict(enum.Enum):
    """The result of a rule."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"  # the peer refused for a valid reason, or lacks the feature
    NOT_SEEN = "not seen"  # the peer never reached the point of the rule


_STYLES = {
    Verdict.PASSED: "green",
    Verdict.FAILED: "bold red",
    Verdict.NOT_APPLICABLE: "yellow",
    Verdict.NOT_SEEN: "yellow",
}

_OTHER_SPACES = ("nested_spaces", "every_dtype")  # rules about spaces that few servers support


@dataclass(frozen=True)
class RuleResult:
    """The verdict of one rule, with a sentence. `section`: the sections of protocol/RLX.md that have the rule."""

    rule: str
    section: str
    verdict: Verdict
    sentence: str


class Report:
    """The verdicts of one client or server."""

    def __init__(self, peer: str, findings: list[RuleResult]) -> None:
        self.peer = peer
        self.findings = findings

    @property
    def failed(self) -> bool:
        """Whether any rule failed."""
        return any(finding.verdict is Verdict.FAILED for finding in self.findings)

    @property
    def totals(self) -> dict[str, int]:
        """The number of rules with each verdict."""
        counts = Counter(finding.verdict for finding in self.findings)
        return {verdict.value: counts[verdict] for verdict in Verdict}

    def print(self, console: Console) -> None:
        """Print a table, the totals, and hints about rules that could not be checked."""
        console.print(Text(f"Conformance of {self.peer} with RLX, version 1"))
        table = Table("rule", "RLX.md", "verdict", "", box=box.SIMPLE_HEAD, pad_edge=False)
        table.columns[0].no_wrap = table.columns[2].no_wrap = True
        for finding in self.findings:
            verdict = Text(finding.verdict.value, style=_STYLES[finding.verdict])
            sentence = shorten(finding.sentence, MAX_CHARACTERS, placeholder=" ...")
            table.add_row(finding.rule, finding.section, verdict, Text(sentence))
        console.print(table)
        console.print(", ".join(f"{count} {verdict}" for verdict, count in self.totals.items()))
        for hint in self.hints():
            console.print(Text(hint))

    def hints(self) -> list[str]:
        """Return advice on options that make refused rules applicable."""
        refused = [f for f in self.findings if f.verdict is Verdict.NOT_APPLICABLE]
        reasons = " ".join(f.sentence for f in refused if not f.rule.startswith(_OTHER_SPACES))
        hints = []
        if "UNSUPPORTED_SPACE" in reasons or "SPACE_MISMATCH" in reasons:
            hints.append("The server refused spaces: give its own with --observation-space and --action-space.")
        if "UNAUTHENTICATED" in reasons:
            hints.append("The server requires a token: give it with --token-file.")
        return hints

    def write(self, path: Path) -> None:
        """Write the report as JSON. Raises OSError."""
        rules = [vars(finding) | {"verdict": finding.verdict.value} for finding in self.findings]
        tree = {"peer": self.peer, "protocol_version": 1, "totals": self.totals, "rules": rules}
        path.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
