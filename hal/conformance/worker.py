"""Runs cases in this process and prints a line of JSON for each.

python -m hal.conformance.worker DEVICE [TEXT-IN-ID ...] is the quick way while a case is written.
"""

from __future__ import annotations

import sys
import tempfile

import click

import hal
from hal.conformance.catalog import catalog
from hal.conformance.judge import Outcome, judge
from hal.conformance.rig import Setting


def main(name: str, *texts: str) -> None:
    """Run the cases whose id has one of the texts; print those that are not green, and a count."""
    plugin = name.partition(":")[0]
    peers = tuple(row.name for row in hal.devices() if row.plugin == plugin and row.status == "ok")
    with tempfile.TemporaryDirectory() as cache:
        setting = Setting(name, peers, cache_dir=cache)
        results = [
            judge(c, setting) for c in catalog() if not texts or any(t in c.id for t in texts)
        ]
    for result in results:
        if result.outcome not in (Outcome.PASS, Outcome.UNSUPPORTED) or result.seconds > 1:
            click.echo(f"{result.outcome.value} {result.id} {result.seconds:.2f} s {result.detail}")
    counts = {o.value: sum(r.outcome is o for r in results) for o in Outcome}
    click.echo(f"{counts} in {sum(r.seconds for r in results):.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
