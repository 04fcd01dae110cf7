"""The reference device as a plugin: settings, honest limits, programs, and the stack on top."""

import numpy as np
import pytest

import hal
from hal.core.dtypes import DType
from hal.core.errors import CompileError, InvalidCall, OperationFailed, OutOfMemory
from hal.core.values import HAL_TILE, AllocOptions, KernelSource, OpenOptions, Param, ParamKind
from hal.tile.interpret import interpret
from hal.tile.parser import parse_kernel

TEXT = """hal-tile/1
kernel double(x: buffer f32 reads, y: buffer f32 writes) {
  %1 = program_id axis=0 : i64
  %2 = load x[%1] : f32
  %3 = add %2, %2 : f32
  store %3 to y[%1]
}
"""
PARAMS = (
    Param("x", ParamKind.BUFFER, DType.F32),
    Param("y", ParamKind.BUFFER, DType.F32, reads=False, writes=True),
)
SOURCE = KernelSource(HAL_TILE, TEXT, "double", PARAMS)


@pytest.fixture
def device():
    with hal.open("reference:0", options=OpenOptions(settings={"memory_nbytes": "4096"})) as opened:
        yield opened


def run(device, grid, source):
    """y of the program over the grid."""
    timeline = device.create_timeline(False)
    x, y = (device.alloc(source.nbytes, AllocOptions(zero=True)) for _ in range(2))
    device.copy(x.region(), source.tobytes(), timeline, ())
    launchable = device.bind(device.load(SOURCE), (x, y))
    device.launch(launchable, grid, timeline, ())
    out = np.zeros_like(source)
    device.wait([device.copy(memoryview(out), y.region(), timeline, ())], 60.0, True)
    return out


def test_it_computes_what_the_interpreter_does(device):
    x, expected = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    interpret(parse_kernel(TEXT), (16,), {"x": x, "y": expected}, {})
    np.testing.assert_array_equal(run(device, (16, 1, 1), x), expected)


def test_an_access_outside_a_buffer_fails_the_launch(device):
    with pytest.raises(OperationFailed, match="index 16 is outside of x"):
        run(device, (17, 1, 1), np.zeros(16, np.float32))


def test_the_whole_memory_can_be_had_and_not_a_byte_more(device):
    device.free(device.alloc(4096, AllocOptions()))
    with pytest.raises(OutOfMemory) as caught:
        device.alloc(4097, AllocOptions())
    assert (caught.value.requested, caught.value.available) == (4097, 4096)


def test_damaged_text_is_refused_with_log_and_line(device):
    damaged = KernelSource(HAL_TILE, TEXT.replace("add", "ad"), "double", PARAMS)
    with pytest.raises(CompileError) as caught:
        device.load(damaged)
    assert caught.value.line == 5
    assert "ad" in caught.value.log


@pytest.mark.parametrize(
    ("entry", "params"), [("triple", PARAMS), ("double", PARAMS[:1]), ("double", PARAMS[::-1])]
)
def test_another_entry_or_signature_is_refused(device, entry, params):
    with pytest.raises(CompileError, match="asked was"):
        device.load(KernelSource(HAL_TILE, TEXT, entry, params))


def test_unknown_settings_and_devices_are_refused(monkeypatch):
    with pytest.raises(InvalidCall, match="unknown settings speed"):
        hal.open("reference:0", options=OpenOptions(settings={"speed": "1"}))
    monkeypatch.setenv("HAL_REFERENCE_DEVICES", "1")
    with pytest.raises(InvalidCall, match="there is no device 'reference:1'"):
        hal.open("reference:1")


def test_an_import_that_only_looks_starts_nothing():
    names = [row.name for row in hal.registry().devices()]
    assert {"reference:0", "reference:1"} <= set(names)
