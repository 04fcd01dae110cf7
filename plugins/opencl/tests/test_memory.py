"""Memory that host and device, or two sessions, see at once; where the device computes in it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hal_plugin_opencl import describe, machine

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.values import AllocOptions, Collective, CollectiveKind, CopyCommand, GroupSpec
from plugins.opencl.tests.conftest import Bench, buffer, source

DOUBLE = """
__kernel void f(__global uchar *x_base, ulong x_offset) {
  __global int *x = (__global int *)(x_base + x_offset);
  x[get_global_id(0)] *= 2;
}
"""
DOUBLED = source(DOUBLE, buffer("x", DType.I32, True))


@pytest.fixture
def shared(bench: Bench) -> Bench:
    if Feature.MAP not in bench.device.info.features:
        pytest.skip("the device has memory of its own")
    return bench


def test_mapped_memory(shared: Bench) -> None:
    x = shared.put(np.arange(6, dtype=np.int32))
    view = np.frombuffer(shared.device.map(x.region(), True), np.int32)
    view += 1
    shared.run(DOUBLED, x.region(8, 12), grid=(3, 1, 1))
    np.testing.assert_array_equal(view, [1, 2, 6, 8, 10, 6])
    np.testing.assert_array_equal(shared.get(x, np.int32), view)


def test_memory_of_the_host_at_any_address(shared: Bench) -> None:
    host = bytearray(1 + 4 * 8)
    view = memoryview(host)[1:]
    view[:] = np.arange(8, dtype=np.int32).tobytes()
    x = shared.device.import_host(view)
    shared.run(DOUBLED, x, grid=(8, 1, 1))
    np.testing.assert_array_equal(np.frombuffer(view, np.int32), 2 * np.arange(8))


def test_memory_that_cannot_be_written(shared: Bench) -> None:
    with pytest.raises(InvalidCall):
        shared.device.import_host(memoryview(bytes(16)))


def test_memory_of_another_session(shared: Bench, open_bench: Callable[..., Bench]) -> None:
    x = shared.device.alloc(16, AllocOptions(shareable=True, zero=True))
    other = open_bench()
    y = other.device.import_buffer(shared.device.export_buffer(x))
    fill = other.device.fill(y.region(), np.int32(3).tobytes(), other.timeline, ())
    other.done(fill)
    shared.device.free(x)
    other.run(DOUBLED, y, grid=(4, 1, 1))
    np.testing.assert_array_equal(other.get(y, np.int32), [6] * 4)


def test_a_device_with_memory_of_its_own(
    monkeypatch: pytest.MonkeyPatch, open_bench: Callable[..., Bench]
) -> None:
    """The same device, whose memory the host is not to touch. Collectives move it by copies."""
    for module in (machine, describe):
        monkeypatch.setattr(module, "computes_in_host_memory", lambda device: False)
    bench = open_bench()
    device = bench.device
    assert not {Feature.MAP, Feature.IMPORT_HOST, Feature.IPC} & device.info.features
    assert not bench.get(device.alloc(1000, AllocOptions(zero=True)), np.uint8).any()
    x, y = bench.put(np.arange(6, dtype=np.int32)), bench.put(np.zeros(6, np.int32))
    bench.run(DOUBLED, x, grid=(6, 1, 1))
    graph = device.record([CopyCommand(y.region(4, 8), x.region(12, 8))])
    bench.done(device.replay(graph, (), bench.timeline, ()))
    np.testing.assert_array_equal(bench.get(y, np.int32), [0, 6, 8, 0, 0, 0])
    group = device.create_group(GroupSpec("alone", 0, (device.name,), 20))
    call = Collective(CollectiveKind.ALL_REDUCE, DType.I32, 6)
    bench.done(device.collective(group, call, y.region(), x.region(), bench.timeline, ()))
    np.testing.assert_array_equal(bench.get(y, np.int32), 2 * np.arange(6))
