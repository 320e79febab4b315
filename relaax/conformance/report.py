"""What was found, rule by rule."""

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

MOST_CHARACTERS = 240  # of a sentence in the table; the JSON has all of it
WIDTH = 130  # of a table that no terminal shows


class Verdict(enum.Enum):
    """How a rule fared."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"  # the peer refused for a reason of its own, or the rule is about what it has not
    NOT_SEEN = "not seen"  # the peer never came to where the rule matters


_STYLES = {
    Verdict.PASSED: "green",
    Verdict.FAILED: "bold red",
    Verdict.NOT_APPLICABLE: "yellow",
    Verdict.NOT_SEEN: "yellow",
}

_OTHER_SPACES = ("nested_spaces", "every_dtype")  # about spaces that few servers know


@dataclass(frozen=True)
class RuleResult:
    """One rule: its name, the sections of protocol/RLX.md that say it, the verdict, and a sentence."""

    rule: str
    section: str
    verdict: Verdict
    sentence: str


class Report:
    """The findings about one peer."""

    def __init__(self, peer: str, findings: list[RuleResult]) -> None:
        self.peer = peer
        self.findings = findings

    @property
    def failed(self) -> bool:
        """Whether any rule failed."""
        return any(finding.verdict is Verdict.FAILED for finding in self.findings)

    @property
    def totals(self) -> dict[str, int]:
        """How many rules have each verdict."""
        counts = Counter(finding.verdict for finding in self.findings)
        return {verdict.value: counts[verdict] for verdict in Verdict}

    def print(self, console: Console) -> None:
        """A table, then the totals, then what to do about rules that could not be checked."""
        console.print(Text(f"Conformance of {self.peer} with RLX, version 1"))
        table = Table("rule", "RLX.md", "verdict", "", box=box.SIMPLE_HEAD, pad_edge=False)
        table.columns[0].no_wrap = table.columns[2].no_wrap = True
        for finding in self.findings:
            verdict = Text(finding.verdict.value, style=_STYLES[finding.verdict])
            sentence = shorten(finding.sentence, MOST_CHARACTERS, placeholder=" ...")
            table.add_row(finding.rule, finding.section, verdict, Text(sentence))
        console.print(table)
        console.print(", ".join(f"{count} {verdict}" for verdict, count in self.totals.items()))
        for hint in self.hints():
            console.print(Text(hint))

    def hints(self) -> list[str]:
        """Return hints on how to check the rules that could not be checked."""
        refused = [f for f in self.findings if f.verdict is Verdict.NOT_APPLICABLE]
        reasons = " ".join(f.sentence for f in refused if not f.rule.startswith(_OTHER_SPACES))
        hints = []
        if "UNSUPPORTED_SPACE" in reasons or "SPACE_MISMATCH" in reasons:
            ways = "--observation-space and --action-space"
            hints.append(f"The server refused spaces: give it those that it knows with {ways}.")
        if "UNAUTHENTICATED" in reasons:
            hints.append("The server asks for a token: give it with --token-file.")
        return hints

    def write(self, path: Path) -> None:
        """Write the report as JSON. Raises OSError."""
        rules = [vars(finding) | {"verdict": finding.verdict.value} for finding in self.findings]
        tree = {"peer": self.peer, "protocol_version": 1, "totals": self.totals, "rules": rules}
        path.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
