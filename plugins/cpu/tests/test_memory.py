import gc
import mmap
import os

import numpy as np
import pytest

from hal.core.errors import InvalidCall, Unsupported
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


def test_bad_allocations_are_refused(rig):
    with pytest.raises(InvalidCall):
        rig.device.alloc(-1, PLAIN)
    with pytest.raises(InvalidCall):
        rig.device.alloc(8, AllocOptions(space="stack"))


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


def test_malformed_shared_handles_are_refused(rig):
    for token, nbytes in (((1, 2, 3), 10), ((), 10), ((os.getpid(), 1), -1)):
        with pytest.raises(InvalidCall):
            rig.device.import_buffer(SharedHandle("memfd", token, nbytes))
