"""Mutants of allocation, copies, fills and views."""

from dataclasses import replace

from hal.core.description import MemorySpace, SpaceKind
from hal.core.errors import InvalidCall, OutOfMemory
from hal.core.values import Buffer, MemoryStats, Region
from hal.hosted.machine import Part
from hal.hosted.slab import Slab
from tests.mutants.zoo import checked, declare, hook, lax, mutant, unchecked


@mutant("memory-always-zeroed", "gives zeroed memory, asked or not", "alloc.zero", passes=True)
def _(device):
    real = device.alloc

    def alloc(nbytes, options):
        return real(nbytes, replace(options, zero=True))

    hook(device, alloc)


@mutant("memory-never-zeroed", "forgets `zero=True`", "alloc.zero")
def _(device):
    real = device.alloc

    def alloc(nbytes, options):
        return real(nbytes, replace(options, zero=False))

    hook(device, alloc)


@mutant("buffers-overlap", "gives every other buffer the memory of the one before", "alloc.apart")
def _(device):
    machine, last = device._session.machine, []
    real = machine.allocate

    def allocate(nbytes, options):
        if last and len(last[0].array) >= nbytes:
            return Slab(last.pop().array[:nbytes])
        last[:] = [real(nbytes, options)]
        return last[0]

    machine.allocate = allocate


@mutant("buffers-misaligned", "gives memory that starts one byte too late", "alloc.apart")
def _(device):
    machine = device._session.machine
    real = machine.allocate

    def allocate(nbytes, options):
        slab = real(nbytes + 1, options)
        slab.array = slab.array[1:]
        return slab

    machine.allocate = allocate


@mutant("space-not-served", "describes a host space and allocates nothing there", "alloc.spaces")
def _(device):
    space = MemorySpace("host", SpaceKind.HOST, 1 << 20, 64)
    declare(device, spaces=(*device._session.info.spaces, space))


def _any_space(device):
    real = device.alloc

    def alloc(nbytes, options):
        buffer = real(nbytes, replace(options, space=""))
        return replace(buffer, space=options.space or buffer.space)

    hook(device, alloc)


@lax(
    "scratchpad-served",
    "allocates in the scratchpad as if it were memory",
    "alloc.spaces",
    device=_any_space,
)
def _(checks):
    def alloc(nbytes, options):
        return checks._new("alloc", Buffer, (yield))

    checked(checks, alloc)


@mutant("no-empty-buffer", "refuses a buffer of 0 bytes", "alloc.empty")
def _(device):
    real = device.alloc

    def alloc(nbytes, options):
        if nbytes == 0:
            raise InvalidCall("a buffer has at least one byte")
        return real(nbytes, options)

    hook(device, alloc)


@mutant("out-of-memory-counts", "counts memory that it could not give as given", "alloc.exhausted")
def _(device):
    real, account = device.alloc, device._memory._accounts["memory"]

    def alloc(nbytes, options):
        try:
            return real(nbytes, options)
        except OutOfMemory:
            account.live = account.capacity
            raise

    hook(device, alloc)


@mutant("out-of-memory-is-invalid", "says InvalidCall when there is no room", "alloc.exhausted")
def _(device):
    real = device.alloc

    def alloc(nbytes, options):
        try:
            return real(nbytes, options)
        except OutOfMemory as error:
            raise InvalidCall(str(error)) from error

    hook(device, alloc)


@mutant("copy-drops-last-byte", "copies all bytes but the last (of more than 4)", "copy.exact")
def _(device):
    machine = device._session.machine
    real = machine.write

    def write(memory, offset, data):
        real(memory, offset, data[:-1] if len(data) > 4 else data)

    machine.write = write


@mutant("copy-one-byte-too-many", "copies one byte past the end of the region", "copy.exact")
def _(device):
    machine = device._session.machine
    real = machine.write

    def write(memory, offset, data):
        room = len(memory.array) - offset - len(data)
        real(memory, offset, bytes(data) + b"\0" if room and len(data) else data)

    machine.write = write


@mutant("copy-backwards", "copies from buffer to buffer in the wrong direction", "copy.exact")
def _(device):
    real = device.copy

    def copy(dst, src, timeline, waits):
        if isinstance(dst, Region) and isinstance(src, Region):
            dst, src = src, dst
        return real(dst, src, timeline, waits)

    hook(device, copy)


@mutant("copy-aligns-offsets", "copies from the word in which the region begins", "copy.exact")
def _(device):
    machine = device._session.machine
    real = machine.read

    def read(memory, offset, nbytes):
        return real(memory, offset & ~3, nbytes)

    machine.read = read


@mutant("copy-loses-large-tails", "copies only whole 64 KiB of what is larger", "copy.exact")
def _(device):
    machine = device._session.machine
    real = machine.write

    def write(memory, offset, data):
        size = len(data)
        real(memory, offset, data[: size >> 16 << 16] if size > 1 << 16 else data)

    machine.write = write


@mutant("put-is-get", "fetches from a peer where it should send to it", "copy.peer")
def _(device):
    real, name = device.copy, device._session.name

    def copy(dst, src, timeline, waits):
        if isinstance(dst, Region) and isinstance(src, Region) and dst.buffer.device != name:
            dst, src = src, dst
        return real(dst, src, timeline, waits)

    hook(device, copy)


def _copies_unless(checks, *checked_first):
    def copy(dst, src, timeline, waits):
        where = checks._submit("copy", timeline, waits)
        for check in checked_first:
            check(where, dst, src)
        return checks._point("copy", timeline, (yield))

    checked(checks, copy)


@lax("copy-of-two-sizes", "copies as much as fits when the sizes differ", "copy.sizes")
def _(checks):
    _copies_unless(checks)


@lax("copy-overlapping", "copies between overlapping regions of a buffer", "copy.ranges")
def _(checks):
    def sizes(where, dst, src):
        sides = [s.nbytes if isinstance(s, Region) else memoryview(s).nbytes for s in (dst, src)]
        ends = [s.offset + s.nbytes > s.buffer.nbytes for s in (dst, src) if isinstance(s, Region)]
        if sides[0] != sides[1] or any(ends):
            raise InvalidCall(f"{where}: {sides}")

    _copies_unless(checks, sizes)


@mutant("fill-ignores-offset", "fills from the start of the buffer", "fill.exact")
def _(device):
    real = device.fill

    def fill(dst, pattern, timeline, waits):
        return real(replace(dst, offset=0), pattern, timeline, waits)

    hook(device, fill)


@mutant("fill-of-one-byte", "fills with the pattern's first byte alone", "fill.exact")
def _(device):
    real = device.fill

    def fill(dst, pattern, timeline, waits):
        return real(dst, pattern[:1] * len(pattern), timeline, waits)

    hook(device, fill)


@mutant("fill-drops-tail", "leaves what does not fill 16 bytes as it is", "fill.exact")
def _(device):
    real = device.fill

    def fill(dst, pattern, timeline, waits):
        size = dst.nbytes // 16 * 16 if dst.nbytes > 16 else dst.nbytes
        return real(replace(dst, nbytes=size), pattern, timeline, waits)

    hook(device, fill)


@lax("fill-of-any-pattern", "takes patterns of any size at any offset", "fill.refused")
def _(checks):
    def fill(dst, pattern, timeline, waits):
        checks._submit("fill", timeline, waits)
        checks._region("fill", dst)
        return checks._point("fill", timeline, (yield))

    checked(checks, fill)


@mutant("frees-while-in-use", "gives memory back while an operation uses it", "free.deferred")
def _(device):
    real, machine = device.free, device._session.machine

    def free(handle):
        if isinstance(handle, Buffer) and handle.native.holds:
            machine.release(handle.native.memory)
        real(handle)

    hook(device, free)


@mutant("caches-freed-memory", "keeps freed memory for later", "free.returns")
def _(device):
    real = device.free

    def free(handle):
        if not isinstance(handle, Buffer):
            real(handle)

    hook(device, free)


def _frees_once(device):
    real, freed = device.free, []

    def free(handle):
        if not any(handle is other for other in freed):
            freed.append(handle)
            real(handle)

    hook(device, free)


@lax("free-twice", "ignores a second free", "free.twice", device=_frees_once)
def _(checks):
    unchecked(checks, "free")


@lax("freed-handles-live", "takes handles that were freed", "handle.stale", device=_frees_once)
def _(checks):
    checks._handles.drop = lambda where, handle: None


@mutant("stats-peak-is-live", "says that the peak is what is live now", "stats.exact")
def _(device):
    real = device.stats

    def stats(space):
        return replace(real(space), peak_nbytes=real(space).live_nbytes)

    hook(device, stats)


@mutant("stats-round-up", "counts every buffer's bytes in whole pages", "stats.exact")
def _(device):
    real = device.stats

    def stats(space):
        true = real(space)
        live, peak = ((n + 4095) // 4096 * 4096 for n in (true.live_nbytes, true.peak_nbytes))
        return MemoryStats(live, peak, true.allocations, true.live_buffers)

    hook(device, stats)


@mutant("map-is-a-copy", "maps a copy of the memory", "map.same")
def _(device):
    real = device.map

    def map(region, writable):
        return memoryview(bytearray(real(region, writable)))

    hook(device, map)


@mutant("import-host-copies", "imports a copy of the host's memory", "import_host.same")
def _(device):
    machine = device._session.machine
    real = machine.adopt
    machine.adopt = lambda memory: real(memoryview(bytearray(memory)))


@mutant("import-host-keeps", "holds imported host memory for ever", "import_host.same")
def _(device):
    real, kept = device.import_host, []

    def import_host(memory):
        kept.append(memory)
        device.kept = kept
        return real(memory)

    hook(device, import_host)


@mutant("import-is-a-copy", "imports a copy of another process's buffer", "import.same")
def _(device):
    machine = device._session.machine
    real = machine.attach
    machine.attach = lambda shared: Slab(real(shared).array.copy())


@mutant(
    "export-ends-with-exporter", "spoils exported memory when its exporter frees it", "export.lives"
)
def _(device):
    machine = device._session.machine
    real = machine.release

    def release(slab):
        if slab.fd >= 0:
            slab.array[:] = 0
        real(slab)

    machine.release = release


@mutant(
    "memory-zeroed-where-copied",
    "zeroes only memory that a copy or fill has written, not what a program wrote",
    "alloc.zero",
)
def _(device):
    machine = device._session.machine
    allocate, release, write, run = machine.allocate, machine.release, machine.write, machine.run
    ran, kept = set(), []

    def wrong_write(memory, offset, data):
        ran.discard(id(memory))
        write(memory, offset, data)

    def wrong_run(program, args, grid):
        ran.update(id(arg.memory) for arg in args if isinstance(arg, Part))
        return run(program, args, grid)

    def wrong_release(memory):
        if id(memory) in ran:
            ran.discard(id(memory))
            kept.append(memory.array.copy())
        release(memory)

    def wrong_allocate(nbytes, options):
        slab = allocate(nbytes, options)
        ran.discard(id(slab))
        if options.zero and kept and kept[-1].size == nbytes:
            slab.array[:] = kept.pop()
        return slab

    machine.write, machine.run = wrong_write, wrong_run
    machine.release, machine.allocate = wrong_release, wrong_allocate


@mutant(
    "memory-lost-by-searching",
    "loses 512 bytes whenever a large buffer is asked for that no hole holds",
    "free.returns",
)
def _(device):
    real, account = device.alloc, device._memory._accounts["memory"]

    def alloc(nbytes, options):
        holes = account.capacity - account.live
        if account.live and holes // 4 < nbytes < holes:
            account.capacity -= 512
        return real(nbytes, options)

    hook(device, alloc)
