"""The findings of `relaax conformance`."""

from __future__ import annotations

from relaax.conformance.report import Report, Verdict


def not_passed(report: Report) -> dict[str, str]:
    """Return the verdict and the sentence of each rule that has not passed."""
    return {f.rule: f"{f.verdict.value}: {f.sentence}" for f in report.findings if f.verdict is not Verdict.PASSED}
