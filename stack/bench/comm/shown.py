"""What `hal bench comm` prints."""

from __future__ import annotations

from rich import box
from rich.table import Table

from stack.bench.comm.rank import RanksReport
from stack.bench.comm.sizes import size_text

GB = 1e9


def table_of(found: RanksReport) -> Table:
    """A row for each size. Bandwidths are in 10^9 bytes/s."""
    kind, memory = found.times[0].kind, found.times[0].memory
    hosts = "one host" if found.hosts == 1 else f"{found.hosts} hosts"
    title = f"{kind} of float32, {found.size} ranks of {hosts}, {memory} memory"
    shown = Table(title=title, box=box.SIMPLE)
    for name in ("bytes", "algorithm", "time in us", "algorithm GB/s", "bus GB/s"):
        shown.add_column(name, justify="left" if name == "algorithm" else "right")
    for row in found.times:
        rates = (row.algorithm_bandwidth, row.bus_bandwidth)
        cells = (f"{rate / GB:.3g}" for rate in rates)
        shown.add_row(size_text(row.nbytes), row.way, f"{row.seconds * 1e6:.4g}", *cells)
    return shown
