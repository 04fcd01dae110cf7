"""`hal bench comm`: starts ranks and shows what they measured, or is one of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

import hal
from hal.core.errors import InvalidCall
from stack.bench.comm.rank import RanksReport, Sweep, found_by, found_in
from stack.bench.comm.shown import table_of
from stack.bench.comm.sizes import sizes_in
from stack.bench.comm.times import FLOAT, kind_of
from stack.comm.choose.choices import choices_in, own_choices
from stack.comm.choose.chooser import AlgorithmChooser
from stack.comm.choose.explain import explain
from stack.comm.choose.network import network_of_hosts
from stack.comm.world import World
from stack.launch.command import run as run_job

RANK = "stack.bench.comm.rank"


def run(
    size: int | None,
    kind: str,
    sizes: str,
    shared: bool,
    devices: str,
    predicted: str,
    hosts_file: Path | None,
    shell: str,
    address: str,
    as_json: bool,
) -> int:
    """Gives the exit status. Raises InvalidCall for what cannot be measured."""
    wanted = Sweep(kind_of(kind).value, sizes_in(sizes), shared, bool(devices))
    if predicted:
        sys.stdout.write(predicted_table(predicted, wanted))
        return 0
    if world := World.present():
        found = found_by(world, wanted)
        if world.rank == 0:
            _show(found, as_json)
        return 0
    with TemporaryDirectory() as folder:
        logs = Path(folder)
        named = devices or f"{hal.registry().found()[0].name}:0"  # which none opens
        status = run_job(
            RANK, (wanted.text(),), size or (None if hosts_file else 2), True, named, hosts_file,
            logs, shell, address, 300.0,
        )  # fmt: skip
        if status == 0:
            _show(found_in((logs / "rank-0.stdout").read_text().splitlines()[-1]), as_json)
        return status


def predicted_table(layout: str, wanted: Sweep) -> str:
    """What runs among the ranks of a layout, "4x2" for four hosts of two, and what it and the
    others are held to take by the model and the measured table of this user."""
    hosts, x, ranks = layout.partition("x")
    numbers = [int(part) for part in (hosts, ranks) if part.isascii() and part.isdecimal()]
    if not x or len(numbers) != 2 or not 0 < numbers[0] * numbers[1] <= 256:
        raise InvalidCall(
            f"--explain is HOSTSxRANKS such as 4x2, of at most 256 ranks; got {layout!r}"
        )
    network = network_of_hosts(
        tuple(rank // numbers[1] * numbers[1] for rank in range(numbers[0] * numbers[1]))
    )
    choices = choices_in(own_choices(network), network)
    chooser = AlgorithmChooser(network, choices.rows, choices.rules)
    return explain(chooser, kind_of(wanted.kind), FLOAT, wanted.sizes)


def _show(found: RanksReport, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps([row.as_json() for row in found.times], indent=2) + "\n")
        return
    console = Console()
    console.print(table_of(found))
    if found.table:
        console.print(f"later groups choose by {found.table}", soft_wrap=True)
