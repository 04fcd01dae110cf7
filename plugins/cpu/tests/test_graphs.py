import threading

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall, StaleHandle
from hal.core.values import (
    LLVM_IR,
    AllocOptions,
    FillCommand,
    KernelSource,
    LaunchCommand,
    Param,
    ParamKind,
    Slot,
)

PLAIN = AllocOptions()


def chain(rig, texts, n, **after):
    """A cell, and commands that each turn it from v into 4 v + c."""
    cell = rig.upload(np.zeros(64, np.int64))
    program = rig.load(texts["mix"], "mix", "bbbi")
    bound = [rig.device.bind(program, (cell, cell, cell, c)) for c in range(n)]
    return cell, [LaunchCommand(b, (64, 1, 1), **after) for b in bound]


def test_a_long_chain_without_work_needs_no_more_stack_than_a_short_one(rig):
    cell = rig.upload(np.zeros(8, np.int64))
    nothing, something = cell.region(0, 0), cell.region(0, 8)
    chain_ = [FillCommand(nothing, b"\0", (k - 1,) if k else ()) for k in range(20_000)]
    graph = rig.device.record([*chain_, FillCommand(something, b"\7", (len(chain_) - 1,))])
    before = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(
            target=rig.device.replay, args=(graph, (), rig.timeline, ()), daemon=True
        )
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join(60)
    assert rig.download(cell, np.uint8)[:8].tolist() == [7] * 8


def test_a_slot_takes_regions_and_checks_them(rig, texts):
    program = rig.load(texts["increment"], "increment", "bi")
    graph = rig.device.record([LaunchCommand(rig.device.bind(program, (Slot(0), 1)), (2, 1, 1))])
    buffer = rig.upload(np.zeros(8, np.int64))
    rig.device.replay(graph, (buffer.region(16, 16),), rig.timeline, ())
    assert rig.download(buffer, np.int64).tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    for slots in ((), (buffer, buffer), (buffer.region(60, 16),), (7,)):
        with pytest.raises(InvalidCall):
            rig.device.replay(graph, slots, rig.timeline, ())
    rig.device.free(buffer)
    with pytest.raises(StaleHandle):
        rig.device.replay(graph, (buffer,), rig.timeline, ())


def test_one_slot_fills_parameters_of_different_types(rig):
    text = """
    define void @echo(ptr %args, ptr %grid, i64 %begin, i64 %end) {
      %slot = getelementptr i64, ptr %args, i64 1
      %out = load ptr, ptr %args
      %bits = load i64, ptr %slot
      store i64 %bits, ptr %out
      ret void
    }"""
    outs = [rig.upload(np.zeros(1, np.uint64)) for _ in range(2)]
    commands = []
    for out, dtype in zip(outs, (DType.F32, DType.I16), strict=True):
        params = (Param("out", ParamKind.BUFFER, DType.I64), Param("v", ParamKind.SCALAR, dtype))
        program = rig.device.load(KernelSource(LLVM_IR, text, "echo", params))
        commands.append(LaunchCommand(rig.device.bind(program, (out, Slot(0))), (1, 1, 1)))
    graph = rig.device.record(commands)
    assert graph.slots == 1
    rig.device.replay(graph, (3,), rig.timeline, ())
    assert rig.download(outs[0], np.float32)[0] == 3.0
    assert rig.download(outs[1], np.uint64)[0] == 3


def test_commands_may_name_only_earlier_ones(rig, texts):
    _, commands = chain(rig, texts, 2)
    for after in ((1,), (2,), (-1,)):
        with pytest.raises(InvalidCall):
            rig.device.record(
                [commands[0], LaunchCommand(commands[1].launchable, (1, 1, 1), after)]
            )
