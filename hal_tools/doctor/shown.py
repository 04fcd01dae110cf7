"""Findings as text: a block per plugin, a line per check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from hal_tools.doctor.finding import Finding


def findings_text(findings: Sequence[Finding]) -> str:
    """What `hal doctor` prints."""
    return "\n".join(
        line
        for plugin, block in groupby(findings, lambda finding: finding.plugin)
        for line in (plugin, *_lines(block))
    )


def _lines(block: Iterable[Finding]) -> Iterator[str]:
    for finding in block:
        yield f"  {finding.outcome:<5} {finding.check:<12} {finding.text}".rstrip()
        if finding.advice:
            yield f"        what to do: {finding.advice}"
