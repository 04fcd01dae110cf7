"""Generated faults in what the hooks of a device do beyond sizes and numbers that are usual: views,
imported memory, graphs, subscribers, words of a failure, and copies by one direction alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from hal.core.values import Buffer, CopyCommand, FillCommand, Region, Slot
from tests.mutants.population import KIB, MIB, Generated, around

Wrong = Callable[..., Any]


def _upload_early(above: int) -> Wrong:
    """Copies from the host above a size wait for nothing."""

    def wrong(real: Any, dst: Any, src: Any, timeline: Any, waits: Any) -> Any:
        early = not isinstance(src, Region) and memoryview(src).nbytes > above
        return real(dst, src, timeline, () if early else waits)

    return wrong


def _download_early(above: int) -> Wrong:
    def wrong(real: Any, dst: Any, src: Any, timeline: Any, waits: Any) -> Any:
        early = not isinstance(dst, Region) and src.nbytes > above
        return real(dst, src, timeline, () if early else waits)

    return wrong


def _source_from_zero(above: int) -> Wrong:
    """Copies within a buffer above a size read from its start."""

    def wrong(real: Any, dst: Any, src: Any, *rest: Any) -> Any:
        regions = isinstance(dst, Region) and isinstance(src, Region)
        if regions and dst.buffer is src.buffer and dst.nbytes > above:
            src = replace(src, offset=0)
        return real(dst, src, *rest)

    return wrong


def _half_pattern(above: int) -> Wrong:
    def wrong(real: Any, dst: Any, pattern: Any, *rest: Any) -> Any:
        short = len(pattern) == 8 and dst.nbytes > above
        return real(dst, pattern[:4] * 2 if short else pattern, *rest)

    return wrong


def _view_wrapped(bits: int) -> Wrong:
    def wrong(real: Any, region: Any, writable: Any) -> Any:
        return real(replace(region, offset=region.offset % (1 << bits)), writable)

    return wrong


def _view_late(above: int) -> Wrong:
    """Views above a size begin 64 bytes late, where the buffer has so many bytes more."""

    def wrong(real: Any, region: Any, writable: Any) -> Any:
        late = region.offset + 64
        if region.nbytes > above and late + region.nbytes <= region.buffer.nbytes:
            region = replace(region, offset=late)
        return real(region, writable)

    return wrong


def _view_copied(above: int) -> Wrong:
    def wrong(real: Any, region: Any, writable: Any) -> Any:
        view = real(region, writable)
        return memoryview(bytearray(view)) if region.nbytes > above else view

    return wrong


def _import_copied(above: int) -> Wrong:
    def wrong(real: Any, memory: Any) -> Any:
        return real(memoryview(bytearray(memory)) if memory.nbytes > above else memory)

    return wrong


def _slots_kept(most: int) -> Wrong:
    """Slots beyond so many keep what the graph's first replay gave."""
    first: dict[int, tuple[Any, ...]] = {}

    def wrong(real: Any, graph: Any, slots: Any, *rest: Any) -> Any:
        kept = first.setdefault(id(graph), tuple(slots))
        return real(graph, (*tuple(slots)[:most], *kept[most:]), *rest)

    return wrong


def _scalar_lost(number: int) -> Wrong:
    def wrong(real: Any, program: Any, args: Any) -> Any:
        args = list(args)
        if len(args) > number and not isinstance(args[number], Buffer | Region | Slot):
            args[number] = type(args[number])(0)
        return real(program, tuple(args))

    return wrong


def _after_cut(most: int) -> Wrong:
    def wrong(real: Any, commands: Any) -> Any:
        cut = (c if c.after is None else replace(c, after=c.after[:most]) for c in commands)
        return real(tuple(cut))

    return wrong


def _command_cut(kind: type[CopyCommand | FillCommand], above: int) -> Wrong:
    """Transfers of a graph above a size lose their last 64 bytes."""

    def cut(command: Any) -> Any:
        if not isinstance(command, kind) or command.dst.nbytes <= above:
            return command
        short = {"dst": replace(command.dst, nbytes=command.dst.nbytes - 64)}
        if isinstance(command, CopyCommand):
            short["src"] = replace(command.src, nbytes=command.src.nbytes - 64)
        return replace(command, **short)

    return lambda real, commands: real([cut(command) for command in commands])


def _words_cut(most: int) -> Wrong:
    """A host function's exception is told by its first letters alone."""

    def wrong(real: Any, function: Any, *rest: Any) -> Any:
        def cut() -> None:
            try:
                function()
            except LookupError as error:
                raise type(error)(str(error)[:most]) from None

        return real(cut, *rest)

    return wrong


def _subscribers_cut(most: int) -> Callable[[Any], None]:
    """Subscribers beyond so many are forgotten."""

    def plant(device: Any) -> None:
        heard: list[Any] = []

        def wrong(real: Any, callback: Any) -> Any:
            heard.append(callback)
            return real(callback) if len(heard) <= most else None

        around(device, "subscribe", wrong)

    return plant


def _rows() -> Iterator[tuple[str, str, str, str, Callable[[], Wrong], str]]:
    """Of each fault: its kind, hook, what of it, size, how it is made, and its cases."""
    for above in (256 * KIB, 900 * KIB):
        size = f"above {above // KIB} KiB"
        yield (
            "ignored",
            "copy",
            "waits of uploads",
            size,
            partial(_upload_early, above),
            ".large-",
        )
        yield (
            "ignored",
            "copy",
            "waits of downloads",
            size,
            partial(_download_early, above),
            ".large-",
        )
        yield (
            "narrow",
            "fill",
            "patterns of 8 bytes",
            size,
            partial(_half_pattern, above),
            ".fill-",
        )
        yield (
            "dropped",
            "record",
            "tails of copies",
            size,
            partial(_command_cut, CopyCommand, above),
            ".graph-large",
        )
        yield (
            "dropped",
            "record",
            "tails of fills",
            size,
            partial(_command_cut, FillCommand, above),
            ".graph-large",
        )
    for above in (4000, 60_000, MIB):
        yield (
            "wrapped",
            "copy",
            "source in its own buffer",
            f"above {above} bytes",
            partial(_source_from_zero, above),
            ".copy-within",
        )
    for bits in (12, 16, 20):
        yield "wrapped", "map", "offset", f"2^{bits}", partial(_view_wrapped, bits), ".map"
    for above in (16, 64 * KIB, 256 * KIB, 900 * KIB):
        yield "wrapped", "map", "start", f"above {above} bytes", partial(_view_late, above), ".map"
    for above in (4 * KIB, 64 * KIB, 1000 * KIB):
        yield (
            "stale",
            "map",
            "view",
            f"above {above // KIB} KiB",
            partial(_view_copied, above),
            ".map",
        )
        yield (
            "stale",
            "import_host",
            "memory",
            f"above {above // KIB} KiB",
            partial(_import_copied, above),
            ".import-host",
        )
    for most in (2, 8, 32):
        yield "stale", "replay", "slots", f"beyond {most}", partial(_slots_kept, most), ".slot"
    for most in (2, 8, 64):
        yield (
            "dropped",
            "record",
            "after",
            f"beyond {most}",
            partial(_after_cut, most),
            ".after-many",
        )
    for number in (8, 16):
        yield (
            "dropped",
            "bind",
            "scalar",
            f"number {number}",
            partial(_scalar_lost, number),
            ".argument-order",
        )
    for most in (20, 80, 256):
        yield (
            "dropped",
            "host_call",
            "words",
            f"beyond {most}",
            partial(_words_cut, most),
            ".host-call-fails",
        )


def hooks() -> Iterator[Generated]:
    """Every fault of this file, on the reference device and on the CPU plugin's."""
    for device in ("reference", "cpu"):
        for kind, hook, what, size, make, case in _rows():
            words = (hook, what, *what.split(), case.strip(".-"))

            def plant(opened: Any, hook: str = hook, make: Callable[[], Wrong] = make) -> None:
                around(opened, hook, make())

            yield Generated(kind, f"{hook} {what}", size, device, (case,), words, plant)
        for most in (3, 8, 16):
            words = ("subscriber",)
            yield Generated(
                "dropped", "subscribe callbacks", f"beyond {most}", device, (".subscribers-hear",),
                words, _subscribers_cut(most),
            )  # fmt: skip
