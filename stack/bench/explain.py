"""The command `hal explain`: where the time of a script's kernels goes, and what the limits of the
device would allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import hal
from hal.cache import cache_dir
from hal.core.description import DeviceInfo, Feature
from hal.core.errors import Unsupported
from hal.core.facts import dataclass
from hal.core.values import OpenOptions
from hal.tile.errors import TileError
from stack.bench.roof import Roof, roof_of
from stack.bench.watch import KernelWatch, LaunchedKernel, Ran
from stack.compiler.kernels import TileCalls, TileLoop, lower_graph
from stack.compiler.program import GraphRequest
from stack.compiler.targets import choose
from stack.compiler.templates.emit import TileCall
from stack.compiler.work import Operations, operations
from stack.runtime import engine_of
from stack.runtime.opening import engine_for
from stack.runtime.script import run_script
from stack.runtime.tuned import read_choices

PICTURE = "stack.bench.picture"
MOST = 10
"""How many shortfalls are shown, and how many compilations."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """All launches of one kind. `flops` is None where the compiler did not tell; `least_s` what the
    device's limits allow, of which `by` names the one that decides."""

    name: str
    calls: int
    seconds: float
    nbytes: int
    flops: int | None
    least_s: float
    by: str

    @property
    def shortfall_s(self) -> float:
        """The time beyond the limit: none for what ran out of caches, faster than memory allows."""
        return max(self.seconds - self.least_s, 0.0)

    @property
    def share(self) -> float:
        """Of the limit."""
        return self.least_s / self.seconds


def run(device: str, script: Sequence[str], picture: Path | None, every: bool) -> int:
    """Run a script and print what its kernels did on a device, with an SVG in `picture` if that is
    given. Gives the script's exit status, 1 for one that is no number.

    Raises Unsupported for a device that does not tell when operations ran.
    """
    if picture is not None and find_spec("matplotlib") is None:
        raise click.UsageError('--picture draws with matplotlib: pip install "hal-accel[train]"')
    if picture is not None and not picture.resolve().parent.is_dir():
        raise click.UsageError(f"there is no folder for {picture}; make it first")
    watch, heard = KernelWatch(), list[GraphRequest]()
    engine = engine_for(device, [watch], heard.append)
    if Feature.TIMESTAMPS not in engine.device.info.features:
        raise Unsupported(f"{device} does not tell when its operations ran (no timestamps)")
    status = run_script(script[0], script[1:])
    options = OpenOptions(cache_dir=str(cache_dir()))
    with hal.open(device, (), options) as opened, engine_of(opened) as own:
        roof, info = roof_of(own), opened.info
    work = operations_of(heard, info, options.cache_dir)
    rows = explained(watch.ran, work, roof, info)
    console = Console()
    _print(console, info, roof, rows, every)
    # What was compiled and why; equal reasons once.
    notes = list(engine.families.notes)
    reasons = Counter(map(str, notes))
    shown = list(reasons.items()) if every else reasons.most_common(MOST)
    console.print(f"{len(notes)} notes on what was compiled, or found compiled:", markup=False)
    for reason, times in shown:
        console.print(f"  {times} x {reason}", markup=False)
    if len(shown) < len(reasons):
        console.print(f"  and {len(reasons) - len(shown)} more; --all shows them", markup=False)
    if picture is not None:
        title = f"{info.name}: {info.description}"
        import_module(PICTURE).draw_explained(title, roof, rows, watch.longest, picture)
        console.print(f"The roofline and the timeline are in {picture}.", markup=False)
    return status if isinstance(status, int) else 1


def operations_of(
    requests: Iterable[GraphRequest], info: DeviceInfo, cache: str
) -> dict[LaunchedKernel, Operations]:
    """What each launch of these graphs computes, as the compiler lowers them for the device."""
    target, choices, found = (
        choose(info),
        read_choices(cache, info),
        dict[LaunchedKernel, Operations](),
    )
    write = target.writer(info)
    for request in requests:
        for call in _kernels(lower_graph(request, info, target.templates, choices).calls):
            try:
                work = operations(call.kernel, call.grid, call.sizes)
            except TileError:
                continue  # a loop as long as data says
            found[LaunchedKernel(write(call.kernel, info), call.grid)] = work
    return found


def _kernels(calls: TileCalls) -> Iterator[TileCall]:
    """The calls of kernels, those in loops too."""
    for call in calls:
        if isinstance(call, TileLoop):
            yield from _kernels(call.calls)
        elif isinstance(call, TileCall):
            yield call


def explained(
    ran: Mapping[LaunchedKernel, Ran],
    work: Mapping[LaunchedKernel, Operations],
    roof: Roof,
    info: DeviceInfo,
) -> list[KernelTime]:
    """A row for each kind of launch, the most expensive shortfall first."""
    # Of each element type the rate of what computes it fastest, a matrix unit if it has one.
    peaks = dict(roof.peaks)
    for unit in info.matrix_units:
        if unit.rate:
            peaks[unit.inputs] = max(peaks.get(unit.inputs, 0.0), unit.rate)
    rows = []
    for launched, r in ran.items():
        done = work.get(launched, None if launched.source else Operations())
        computing = sum(n / peaks[d] for d, n in (done or {}).items() if d in peaks) * r.calls
        moving = r.nbytes / roof.bandwidth
        flops = None if done is None else done.total() * r.calls
        least, by = max((moving, "memory"), (computing, "compute"))
        rows.append(KernelTime(launched.name, r.calls, r.seconds, r.nbytes, flops, least, by))
    return sorted([r for r in rows if r.seconds], key=lambda r: -r.shortfall_s)


def table(title: str, rows: Iterable[KernelTime]) -> Table:
    """A line for each kind of launch: MB and Mop of one of them, and the limit that decides.
    `share` is the least time that the limits allow over the time that it took."""
    made = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    made.add_column("kernel", overflow="fold", min_width=22)
    for column in ("calls", "ms", "MB", "Mop", "limit", "share", "over ms"):
        made.add_column(column, justify="right", no_wrap=True)
    for r in rows:
        made.add_row(
            escape(r.name),
            str(r.calls),
            _short(r.seconds * 1e3),
            _short(r.nbytes / r.calls / 1e6),
            "?" if r.flops is None else _short(r.flops / r.calls / 1e6),
            r.by,
            f"{r.share:.0%}",
            _short(r.shortfall_s * 1e3),
        )
    return made


def _short(x: float) -> str:
    """Three digits, or those before the point where there are more."""
    return f"{x:.3g}" if x < 1000 else f"{x:.0f}"


def _print(
    console: Console, info: DeviceInfo, roof: Roof, rows: Sequence[KernelTime], every: bool
) -> None:
    if not rows:
        console.print(f"No kernel ran on {info.name}.", markup=False)
        return
    total = sum(r.seconds for r in rows)
    shown = rows if every else rows[:MOST]
    what = "all kernels" if len(shown) == len(rows) else f"{len(shown)} of {len(rows)} kernels"
    title = f"{what} of {info.name} by the time beyond the limit"
    console.print(table(escape(title), shown))
    calls, beyond = sum(r.calls for r in rows), sum(r.shortfall_s for r in rows)
    console.print(
        f"{calls} launches took {total * 1e3:.4g} ms of the device, "
        f"{beyond * 1e3:.4g} ms more than the limits allow. "
        f"Memory: {roof.bandwidth / 1e9:.4g} GB/s ({roof.source}).",
        markup=False,
    )
    if any(r.flops is None for r in rows):
        console.print("?: of kernels for many sizes operations are not counted.", markup=False)
