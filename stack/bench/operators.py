"""The command `hal bench --device`: the operator library of a device against its limits."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import hal
from hal.cache import cache_dir
from hal.core.errors import HalError
from hal.core.facts import dataclass
from hal.core.values import OpenOptions
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from stack.bench.cases import Case, cases
from stack.bench.clock import DeviceTime, time_of
from stack.bench.roof import Roof, roof_of
from stack.runtime import Array, Engine, engine_of

PICTURE = "stack.bench.picture"


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """What an operator took, or why it could not be measured."""

    case: Case
    time: DeviceTime | None
    why: str = ""


def run(device: str, roofline: bool, out: Path) -> int:
    """Measure the operators of a device and print them, with a picture in `out` where `roofline`
    asks for it. Gives the exit status: 1 where an operator could not be measured."""
    if roofline and find_spec("matplotlib") is None:
        raise click.UsageError('--roofline draws with matplotlib: pip install "hal-accel[train]"')
    if roofline and not out.resolve().parent.is_dir():
        raise click.UsageError(f"there is no folder for {out}; make it first")
    options = OpenOptions(cache_dir=str(cache_dir()))
    console, results = Console(), list[OperatorTime]()
    with (
        hal.open(device, (), options) as opened,
        engine_of(opened, cache_dir=options.cache_dir) as engine,
    ):
        roof, info = roof_of(engine), opened.info
        with console.status("") as status:
            for case in cases():
                status.update(f"{case.name} {case.size}")
                results.append(measured(engine, case))
    console.print(table(f"operators of {escape(info.name)}", roof, results))
    peaks = ", ".join(f"{d.short} {rate / 1e9:.4g}" for d, rate in roof.peaks.items())
    rates = f"Gop/s: {peaks}" if peaks else "the device knows no peak rate"
    console.print(f"Limits: {roof.bandwidth / 1e9:.4g} GB/s ({roof.source}); {rates}.")
    clock = "the device, which is emulated" if is_emulated(results) else "the host"
    console.print(f"Times are those of {clock}.", markup=False)
    for why in dict.fromkeys(r.why for r in results if r.time is None):
        names = ", ".join(r.case.name for r in results if r.time is None and r.why == why)
        console.print(f"not measured: {names}: {why}", markup=False)
    if roofline:
        import_module(PICTURE).draw(f"{info.name}: {info.description}", roof, results, out)
        console.print(f"The roofline is in {out}.", markup=False)
    return int(any(r.time is None for r in results))


def measured(engine: Engine, case: Case) -> OperatorTime:
    """One operator, on numbers between a half and one and a half and indices in any order."""
    try:
        plan = engine.plan(case.request)
        arrays = [_filled(engine, n, case) for n in case.inputs]
        return OperatorTime(case, time_of(engine, lambda: plan.run(arrays)))
    except HalError as error:
        return OperatorTime(case, None, str(error))


def _filled(engine: Engine, node: Node, case: Case) -> Array:
    rng = np.random.default_rng(len(node.shape))
    if node.dtype.is_float:
        return engine.put(rng.random(node.shape, np.float32) + np.float32(0.5), node.dtype)
    most = case.inputs[0].shape[0]
    return engine.put(rng.integers(0, most, node.shape).astype(NUMPY[node.dtype]), node.dtype)


def is_emulated(results: Iterable[OperatorTime]) -> bool:
    """Whether times are in the clock of an emulated device."""
    return any(r.time.emulated for r in results if r.time)


def table(title: str, roof: Roof, results: Iterable[OperatorTime]) -> Table:
    """A line for each operator that was measured: `of limit` is the least time that the roof allows
    over the time that it took; that of the memory alone where the element type's rate is not
    known."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    made.add_column("operator")
    for column in ("size", "us", "GB/s", "Gop/s", "op/B", "of limit"):
        made.add_column(column, justify="right")
    for result in results:
        case, time = result.case, result.time
        if time is not None:
            share = roof.seconds(case.peak, case.flops, case.nbytes) / time.seconds
            made.add_row(
                case.name,
                case.size,
                f"{time.seconds * 1e6:.4g}",
                f"{case.nbytes / time.seconds / 1e9:.4g}",
                f"{case.flops / time.seconds / 1e9:.4g}",
                f"{case.intensity:.3g}",
                f"{share:.0%}" if case.peak in roof.peaks else f"memory's: {share:.0%}",
            )
    return made
