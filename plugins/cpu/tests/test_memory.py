import gc
import itertools
import mmap
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.core.errors import InvalidCall, OutOfMemory, StaleHandle, Unsupported
from hal.core.values import AllocOptions, Point, SharedHandle

PLAIN = AllocOptions()


def address(view):
    return np.frombuffer(view, np.uint8).ctypes.data if len(view) else 0


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 4095, 4097, 2**21 - 1, 2**21, 2**21 + 1, 2**26])
@pytest.mark.parametrize("shareable", [False, True])
def test_buffers_are_aligned_and_as_large_as_asked(rig, nbytes, shareable):
    buffer = rig.device.alloc(nbytes, AllocOptions(shareable=shareable))
    assert buffer.nbytes == nbytes
    view = rig.device.map(buffer.region(), True)
    assert len(view) == nbytes
    assert address(view) % 64 == 0
    if nbytes >= 2**21 and not shareable:
        assert address(view) % 2**21 == 0
    if nbytes:
        view[0] = view[-1] = 7


@pytest.mark.parametrize("nbytes", [1, 1000, 2**21])
def test_zero_gives_zeros(rig, nbytes):
    for _ in range(3):
        dirty = rig.device.alloc(nbytes, PLAIN)
        rig.wait(rig.device.fill(dirty.region(), b"\xff", rig.timeline, ()))
        rig.device.free(dirty)
        clean = rig.device.alloc(nbytes, AllocOptions(zero=True))
        assert not np.frombuffer(rig.device.map(clean.region(), False), np.uint8).any()
        rig.device.free(clean)


def test_many_small_buffers_do_not_overlap(rig):
    sizes = [1 + i * 37 % 500 for i in range(10_000)]
    views = [rig.device.map(rig.device.alloc(n, PLAIN).region(), True) for n in sizes]
    spans = sorted((address(v), address(v) + len(v)) for v in views)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert rig.device.stats("").live_nbytes == sum(sizes)


def test_stats_are_exact(rig):
    base = rig.device.stats("")
    a, b = rig.device.alloc(1000, PLAIN), rig.device.alloc(3 << 20, AllocOptions(shareable=True))
    both = rig.device.stats("memory")
    rig.device.free(a)
    one = rig.device.stats("")
    rig.device.free(b)
    none = rig.device.stats("")
    assert both.live_nbytes - base.live_nbytes == 1000 + (3 << 20)
    assert (both.live_buffers, one.live_buffers, none.live_buffers) == (2, 1, 0)
    assert (one.live_nbytes, none.live_nbytes) == (3 << 20, 0)
    assert none.peak_nbytes == both.live_nbytes
    assert none.allocations - base.allocations == 2
    with pytest.raises(InvalidCall):
        rig.device.stats("moon")


def test_out_of_memory_says_who_holds_it_and_leaves_the_device_usable(open_cpu):
    device = open_cpu(memory_nbytes="1000000")
    big = device.alloc(700_000, AllocOptions(label="weights"))
    small = device.alloc(100_000, AllocOptions(label="batch"))
    with pytest.raises(OutOfMemory) as caught:
        device.alloc(200_001, PLAIN)
    assert (caught.value.requested, caught.value.available) == (200_001, 200_000)
    assert caught.value.held == {"weights": 700_000, "batch": 100_000}
    rest = device.alloc(200_000, PLAIN)
    with pytest.raises(OutOfMemory):
        device.alloc(1, PLAIN)
    for buffer in (big, small, rest):
        device.free(buffer)
    whole = device.alloc(device.describe().limits.alloc_nbytes, PLAIN)
    assert device.stats("").live_nbytes == 1_000_000
    device.free(whole)
    with pytest.raises(OutOfMemory):
        device.alloc(2**80, PLAIN)


def test_bad_allocations_are_refused(rig):
    with pytest.raises(InvalidCall):
        rig.device.alloc(-1, PLAIN)
    with pytest.raises(InvalidCall):
        rig.device.alloc(8, AllocOptions(space="stack"))


def test_free_during_use_waits_for_the_last_operation(rig):
    gate = rig.device.create_timeline(True)
    source = rig.device.alloc(1 << 20, PLAIN)
    target = rig.upload(np.zeros(1 << 20, np.uint8))
    rig.device.fill(source.region(), b"\x5a", rig.timeline, ())
    point = rig.device.copy(target.region(), source.region(), rig.timeline, (Point(gate, 1),))
    before = rig.device.stats("").live_nbytes
    rig.device.free(source)
    assert rig.device.stats("").live_nbytes == before
    rig.device.signal(gate, 1, None)
    rig.wait(point)
    assert rig.device.stats("").live_nbytes == before - (1 << 20)
    assert (rig.download(target, np.uint8) == 0x5A).all()


def test_a_lost_handle_frees_its_memory_but_not_under_a_view(rig):
    view = rig.device.map(rig.device.alloc(5000, PLAIN).region(), True)
    gc.collect()
    view[:] = bytes(range(250)) * 20
    assert rig.device.stats("").live_nbytes == 5000
    del view
    gc.collect()
    assert rig.device.stats("").live_nbytes == 0


def test_a_launchable_does_not_keep_freed_memory(rig, texts):
    buffer = rig.upload(np.zeros(100, np.int64))
    bound = rig.device.bind(rig.load(texts["increment"], "increment", "bi"), (buffer, 1))
    rig.device.free(buffer)
    assert rig.device.stats("").live_nbytes == 0
    rig.device.free(bound)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    nbytes=st.integers(0, 700_000),
    dst_offset=st.integers(0, 9),
    src_offset=st.integers(0, 9),
    way=st.sampled_from(["upload", "download", "device"]),
)
def test_copies_move_exactly_the_region(shared_rig, nbytes, dst_offset, src_offset, way):
    rig = shared_rig
    rng = np.random.default_rng(nbytes)
    source = rng.integers(0, 256, nbytes + 20, np.uint8)
    target = np.full(nbytes + 20, 0xEE, np.uint8)
    src, dst = slice(src_offset, src_offset + nbytes), slice(dst_offset, dst_offset + nbytes)
    expected = target.copy()
    expected[dst] = source[src]
    device_source, device_target = rig.upload(source), rig.upload(target)
    to = device_target.region(dst_offset, nbytes)
    of = device_source.region(src_offset, nbytes)
    if way == "upload":
        rig.wait(rig.device.copy(to, memoryview(source[src]), rig.timeline, ()))
    elif way == "device":
        rig.wait(rig.device.copy(to, of, rig.timeline, ()))
    if way == "download":
        rig.wait(rig.device.copy(memoryview(target[dst]), of, rig.timeline, ()))
        assert np.array_equal(target, expected)
    else:
        assert np.array_equal(rig.download(device_target, np.uint8), expected)
    rig.device.free(device_source)
    rig.device.free(device_target)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    pattern=st.sampled_from([1, 2, 4, 8]).flatmap(lambda n: st.binary(min_size=n, max_size=n)),
    repeats=st.integers(0, 70_000),
    offset=st.integers(0, 5),
)
def test_fills_keep_to_their_region(shared_rig, pattern, repeats, offset):
    rig = shared_rig
    before, n = offset * len(pattern), repeats * len(pattern)
    buffer = rig.upload(np.full(before + n + 8, 0xEE, np.uint8))
    rig.device.fill(buffer.region(before, n), pattern, rig.timeline, ())
    got = rig.download(buffer, np.uint8).tobytes()
    assert got == b"\xee" * before + pattern * repeats + b"\xee" * 8
    rig.device.free(buffer)


def test_bad_copies_and_fills_are_refused(rig):
    a, b = rig.device.alloc(100, PLAIN), rig.device.alloc(100, PLAIN)
    t = rig.timeline
    readonly = memoryview(bytes(100))
    strided = memoryview(np.zeros(200, np.uint8)[::2])
    for dst, src in [
        (a.region(), b.region(0, 99)), (a.region(1, 100), b.region()),
        (a.region(), b.region(-1, 100)),
        (bytearray(100), bytes(100)), (a.region(), bytes(99)), (readonly, a.region()),
        (a.region(), strided), (bytes(100), a.region()),
    ]:  # fmt: skip
        with pytest.raises(InvalidCall):
            rig.device.copy(dst, src, t, ())
    for region, pattern in [
        (a.region(), b""), (a.region(), b"123"), (a.region(1, 4), b"12"),
        (a.region(0, 98), b"1234"),
        (a.region(96, 8), b"1"),
    ]:  # fmt: skip
        with pytest.raises(InvalidCall):
            rig.device.fill(region, pattern, t, ())


def test_host_memory_of_a_copy_lives_until_the_copy(rig):
    gate = rig.device.create_timeline(True)
    n = 3 << 20
    target = rig.device.alloc(n, PLAIN)
    rig.device.copy(
        target.region(), np.arange(n, dtype=np.uint8).data, rig.timeline, (Point(gate, 1),)
    )
    gc.collect()
    noise = [np.zeros(n, np.uint8) for _ in range(4)]
    rig.device.signal(gate, 1, None)
    assert np.array_equal(rig.download(target, np.uint8), np.arange(n, dtype=np.uint8))
    assert len(noise) == 4


def test_imported_memory_lives_until_the_last_operation_that_uses_it(rig, texts):
    gate = rig.device.create_timeline(True)
    source = np.arange(1 << 20, dtype=np.int64)
    alive = weakref.ref(source)
    buffer = rig.device.import_host(memoryview(source))
    target = rig.upload(np.zeros(1 << 20, np.int64))
    point = rig.device.copy(target.region(), buffer.region(), rig.timeline, (Point(gate, 1),))
    rig.device.free(buffer)
    del source, buffer
    gc.collect()
    assert alive() is not None
    rig.device.signal(gate, 1, None)
    rig.wait(point)
    assert np.array_equal(rig.download(target, np.int64), np.arange(1 << 20))
    gc.collect()
    assert alive() is None


def test_map_shows_the_device_memory(rig):
    buffer = rig.upload(np.arange(16, dtype=np.uint8))
    view = rig.device.map(buffer.region(4, 8), True)
    assert view.tolist() == list(range(4, 12))
    view[0] = 99
    assert rig.download(buffer, np.uint8)[4] == 99
    assert rig.device.map(buffer.region(), False).readonly
    with pytest.raises(InvalidCall):
        rig.device.map(buffer.region(10, 7), True)
    rig.device.free(buffer)
    with pytest.raises(StaleHandle):
        rig.device.map(buffer.region(), True)


def test_import_host_shares_memory_without_a_copy(rig, texts):
    array = np.arange(1000, dtype=np.int64)
    buffer = rig.device.import_host(memoryview(array))
    before = rig.device.stats("")
    bound = rig.device.bind(rig.load(texts["increment"], "increment", "bi"), (buffer, 10))
    rig.wait(rig.device.launch(bound, (1000, 1, 1), rig.timeline, ()))
    assert np.array_equal(array, np.arange(10, 1010))
    assert rig.device.stats("") == before
    rig.device.free(buffer)
    assert np.array_equal(array, np.arange(10, 1010))
    with pytest.raises(InvalidCall):
        rig.device.import_host(memoryview(array[::2]))


IMPORTER = """
import sys, numpy as np
from hal_plugin_cpu.plugin import open_device
from hal.core.values import OpenOptions, SharedHandle
device = open_device(0, OpenOptions(settings={"threads": "1"}))
pid, fd, nbytes = map(int, sys.argv[1:])
buffer = device.import_buffer(SharedHandle("memfd", (pid, fd), nbytes))
view = np.frombuffer(device.map(buffer.region(), True), np.uint8)
print(int(view.sum()), flush=True)
sys.stdin.readline()
print(int(view.sum()), flush=True)
view[:] = 3
device.close()
"""


@pytest.mark.slow
def test_another_process_imports_an_exported_buffer(rig):
    n = 100_000
    buffer = rig.device.alloc(n, AllocOptions(shareable=True))
    rig.wait(rig.device.fill(buffer.region(), b"\x01", rig.timeline, ()))
    shared = rig.device.export_buffer(buffer)
    arguments = [*map(str, shared.token), str(shared.nbytes)]
    command = [sys.executable, "-c", IMPORTER, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        killer = threading.Timer(60, child.kill)  # and its pipe ends, if it says nothing
        killer.start()
        assert int(child.stdout.readline()) == n
        rig.wait(rig.device.fill(buffer.region(), b"\x02", rig.timeline, ()))
        assert int(child.communicate(b"\n", timeout=60)[0]) == 2 * n
        killer.cancel()
    assert child.returncode == 0
    assert (rig.download(buffer, np.uint8) == 3).all()


def test_an_imported_buffer_outlives_the_exporter(open_cpu):
    exporter, importer = open_cpu(), open_cpu()
    buffer = exporter.alloc(5000, AllocOptions(shareable=True))
    exporter.map(buffer.region(), True)[:] = b"\x07" * 5000
    imported = importer.import_buffer(exporter.export_buffer(buffer))
    exporter.close()
    assert bytes(importer.map(imported.region(), False)) == b"\x07" * 5000
    assert importer.stats("").live_nbytes == 0
    importer.free(imported)


def test_bad_imports_and_exports_are_refused(rig):
    with pytest.raises(InvalidCall, match="shareable"):
        rig.device.export_buffer(rig.device.alloc(10, PLAIN))
    with pytest.raises(Unsupported):
        rig.device.import_buffer(SharedHandle("dmabuf", (1,), 10))
    with pytest.raises(InvalidCall, match="gone"):
        rig.device.import_buffer(SharedHandle("memfd", (2**22 + 1, 3), 10))
    other = os.open("/dev/null", os.O_RDWR)
    with pytest.raises(InvalidCall):
        rig.device.import_buffer(SharedHandle("memfd", (os.getpid(), other), 10))
    os.close(other)
    small = rig.device.export_buffer(rig.device.alloc(10, AllocOptions(shareable=True)))
    too_large = SharedHandle("memfd", small.token, mmap.PAGESIZE + 1)
    with pytest.raises(InvalidCall):
        rig.device.import_buffer(too_large)


def test_exported_memory_cannot_be_cut_off_under_its_users(rig):
    buffer = rig.device.alloc(8192, AllocOptions(shareable=True))
    shared = rig.device.export_buffer(buffer)
    with pytest.raises(PermissionError):
        os.ftruncate(shared.token[1], 4096)
    open_ended = os.memfd_create("hal-cpu", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(open_ended, 8192)
    with pytest.raises(InvalidCall, match="could be made so"):
        rig.device.import_buffer(SharedHandle("memfd", (os.getpid(), open_ended), 8192))
    os.close(open_ended)


def test_allocations_from_many_threads_balance(rig):
    def work(seed):
        rng = np.random.default_rng(seed)
        mine = []
        for _ in range(300):
            if mine and rng.random() < 0.5:
                rig.device.free(mine.pop())
            else:
                mine.append(rig.device.alloc(int(rng.integers(0, 10_000)), PLAIN))
        for buffer in mine:
            rig.device.free(buffer)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    stats = rig.device.stats("")
    assert (stats.live_nbytes, stats.live_buffers) == (0, 0)


def test_malformed_shared_handles_are_refused(rig):
    for token, nbytes in (((1, 2, 3), 10), ((), 10), ((os.getpid(), 1), -1)):
        with pytest.raises(InvalidCall):
            rig.device.import_buffer(SharedHandle("memfd", token, nbytes))


def test_every_buffer_up_to_the_limit_and_none_past_it(open_cpu):
    device = open_cpu(memory_nbytes=str(64 << 20))
    limit = device.describe().limits.alloc_nbytes
    for zero in (False, True):
        with pytest.raises(OutOfMemory) as caught:
            device.alloc(limit + 1, AllocOptions(zero=zero))
        assert (caught.value.requested, caught.value.available) == (limit + 1, limit)
        buffer = device.alloc(limit, AllocOptions(zero=zero))
        with pytest.raises(OutOfMemory):
            device.alloc(1, PLAIN)
        device.free(buffer)
    assert device.stats("").live_nbytes == 0
    assert device.stats("").peak_nbytes == limit
    assert device.stats("").allocations == 2
