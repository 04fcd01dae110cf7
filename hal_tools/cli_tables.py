"""What the command `hal` shows, as rich tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from hal.core.description import DeviceInfo, Limits, MatrixUnit, MemorySpace, NumericProfile
from hal.core.discovery.registry import DeviceRow

_STYLES = {"ok": "green", "broken": "red", "blocked": "yellow"}
_STEPS = ("B", "KiB", "MiB", "GiB", "TiB")


def devices_table(rows: Sequence[DeviceRow]) -> Table:
    """One row per device or unusable plugin."""
    table = _table("", "device", "plugin", "status", "description or cause")
    for row in rows:
        text = row.description if row.status == "ok" else row.cause
        status = f"[{_STYLES[row.status]}]{row.status}[/]"
        table.add_row(escape(row.name), escape(row.plugin), status, escape(text))
    return table


def info_tables(info: DeviceInfo) -> Iterator[Table]:
    """A device's description; tables without rows are left out."""
    rates = ((dtype.short, _rate(rate)) for dtype, rate in info.dtypes.items())
    links = ((x.peer, x.kind, _rate(x.bandwidth), _rate(x.latency)) for x in info.links)
    pages = (
        _pairs(info.name, _head(info)),
        _pairs("limits", _limits(info.limits)),
        _spaces(info.spaces),
        _table("element types", "type", "peak operations/s", rows=rates),
        _matrix_units(info.matrix_units),
        _pairs("numbers", _numeric(info.numeric)),
        _table("links", "peer", "kind", "bytes/s", "latency in s", rows=links),
        _pairs("declared performance", ((k, f"{v:.4g}") for k, v in info.declared.items())),
        _pairs("facts", info.facts.items()),
    )
    return (page for page in pages if page.row_count)


def size(nbytes: int) -> str:
    """A number of bytes with a binary unit."""
    step = min(max(nbytes.bit_length() - 1, 0) // 10, len(_STEPS) - 1)
    return f"{nbytes / 1024**step:.4g} {_STEPS[step]}"


def _head(info: DeviceInfo) -> Iterator[tuple[str, str]]:
    yield "description", info.description
    yield "plugin", f"{info.plugin}, contract version {info.contract}"
    yield "program formats", ", ".join(info.formats)
    yield "features", ", ".join(sorted(feature.value for feature in info.features))
    yield "fingerprint", info.fingerprint


def _limits(limits: Limits) -> Iterator[tuple[str, str]]:
    yield "grid", " x ".join(str(most) for most in limits.grid)
    yield "arguments of a program", str(limits.args)
    yield "one allocation", size(limits.alloc_nbytes)
    yield "timelines", str(limits.queues)
    yield "instances at once", str(limits.instances)
    yield "vector register", size(limits.vector_nbytes)
    yield "vector registers", str(limits.registers)
    yield "lanes of a group", str(limits.lanes)
    yield "mesh of cores", " x ".join(map(str, limits.mesh))
    yield "data caches", ", ".join(size(nbytes) for nbytes in limits.caches)


def _numeric(numeric: NumericProfile) -> Iterator[tuple[str, str]]:
    yield "denormals", _yes(numeric.denormals)
    yield "fused multiply-add", _yes(numeric.fma)
    yield "deterministic", _yes(numeric.deterministic)
    adds = (f"{k.short} in {v.short}" for k, v in numeric.accumulate.items())
    yield "dot adds", ", ".join(adds)
    yield "ulp", ", ".join(f"{name} {bound:g}" for name, bound in numeric.ulp.items())


def _spaces(spaces: Sequence[MemorySpace]) -> Table:
    table = _table("memory spaces", "name", "kind", "size", "granularity", "bytes/s", "properties")
    for s in spaces:
        flags = {"host-visible": s.host_visible, "coherent": s.coherent, "DMA only": s.dma_only}
        properties = ", ".join(name for name, holds in flags.items() if holds)
        sizes = size(s.nbytes), size(s.granularity), _rate(s.bandwidth)
        table.add_row(s.name, s.kind.value, *sizes, properties)
    return table


def _matrix_units(units: Sequence[MatrixUnit]) -> Table:
    table = _table(
        "matrix units", "m", "n", "k", "left", "right", "accumulate", "op/s", "denormals"
    )
    for u in units:
        types = u.inputs.short, u.right_inputs.short, u.accumulate.short
        kept = "kept" if u.denormals else "zero"
        table.add_row(str(u.m), str(u.n), str(u.k), *types, _rate(u.rate), kept)
    return table


def _pairs(title: str, pairs: Iterable[tuple[str, str]]) -> Table:
    table = _table(title, "what", "value")
    for what, value in pairs:
        table.add_row(escape(what), escape(value))
    return table


def _table(title: str, *columns: str, rows: Iterable[tuple[str, ...]] = ()) -> Table:
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _rate(value: float) -> str:
    return f"{value:.4g}" if value else "not known"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
