"""What the text of a kernel says: where tiles lie, and where lanes wait for each other."""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.tile.build import (
    Builder,
    add,
    binary,
    broadcast,
    const,
    dot,
    mul,
    reduce,
    reshape,
    transpose,
)
from hal.tile.kernel import Kernel
from hal.tile.node import Node
from stack.compiler.lower.simt import render_opencl
from stack.compiler.lower.simt.layout import blocked, registers
from stack.compiler.lower.simt.mapping import group_size, map_kernel
from tests.compiler.simt.machine import groups_of

F32 = DType.F32


def text(kernel: Kernel, lanes: int = 64) -> str:
    return render_opencl(kernel, groups_of(lanes)).text


def waits(kernel: Kernel, lanes: int = 64) -> int:
    """The barriers in a kernel's text."""
    return text(kernel, lanes).count("barrier(")


def test_elementwise_kernels_need_no_scratch_memory_and_no_barrier() -> None:
    b = Builder("bias")
    x, w, y = b.buffer("x", F32), b.buffer("w", F32), b.buffer("y", F32, writes=True)
    tile = b.load(x, 0, (16, 64), (64, 1))
    row = broadcast(b.load(w, 0, (1, 64), (64, 1)), (16, 64))
    column = broadcast(reshape(b.load(w, 64, (16,), (1,)), (16, 1)), (16, 64))
    b.store(y, 0, add(mul(tile, row), column), (64, 1))
    written = text(b.kernel())
    assert "__local" not in written
    assert "barrier" not in written


def test_a_transposed_tile_is_read_and_written_by_neighbours() -> None:
    b = Builder("turn")
    x, y = b.buffer("x", F32), b.buffer("y", F32, writes=True)
    tile = b.load(x, 0, (16, 64), (64, 1))
    b.store(y, 0, transpose(tile, (1, 0)), (16, 1))
    mapping = map_kernel(b.kernel(), 64)
    (layout,), (work,) = mapping.tiles.values(), mapping.works.values()
    assert [s.every for s in layout if s.lanes > 1] == [1]
    assert (layout[1].lanes, work[1].every, work[1].lanes) == (64, 1, 16)
    assert waits(b.kernel()) == 1


def test_what_follows_a_product_lies_where_its_sums_lie() -> None:
    b = Builder("product")
    x, w, y = b.buffer("x", F32), b.buffer("w", F32), b.buffer("y", F32, writes=True)

    def step(k: Node, total: Node) -> list[Node]:
        left = b.load(x, mul(k, 8), (64, 8), (32, 1))
        return [dot(left, b.load(w, mul(k, 8 * 64), (8, 64), (64, 1)), total)]

    (total,) = b.loop(0, 4, 1, step, [const(0, F32, (64, 64))])
    bias = b.load(w, 0, (1, 64), (64, 1))
    b.store(y, 0, add(total, broadcast(bias, (64, 64))), (64, 1))
    sums = blocked((64, 64), 64)
    mapping = map_kernel(b.kernel(), 64)
    assert mapping.tiles[total] == sums
    assert mapping.tiles[bias][1] == sums[1]
    assert registers(sums) == (8, 8)
    assert waits(b.kernel()) == 2, "a step waits before and after it fills the staging area"


def test_an_update_in_place_waits_for_nobody() -> None:
    b = Builder("update")
    x = b.buffer("x", F32, writes=True)
    b.loop(0, 4096, 256, lambda i: b.store(x, i, mul(b.load(x, i, (256,), (1,)), 2), (1,)))
    assert waits(b.kernel()) == 0


def test_steps_that_meet_wait_for_each_other() -> None:
    b = Builder("shift")
    x = b.buffer("x", F32, writes=True)
    b.loop(0, 4096, 128, lambda i: b.store(x, i, mul(b.load(x, i, (256,), (1,)), 2), (1,)))
    assert waits(b.kernel()) == 1


def test_lanes_wait_for_what_others_have_written() -> None:
    b = Builder("two")
    x = b.buffer("x", F32, writes=True)
    y = b.buffer("y", F32, writes=True)
    b.store(x, 0, mul(b.load(y, 0, (64,), (1,)), 2), (1,))
    b.store(y, 0, b.load(x, 1, (64,), (1,)), (1,))
    assert waits(b.kernel()) == 1
    assert "CLK_GLOBAL_MEM_FENCE" in text(b.kernel())


def test_a_result_of_all_lanes_is_computed_before_the_loop_that_uses_it() -> None:
    b = Builder("mean")
    x, y = b.buffer("x", F32), b.buffer("y", F32, writes=True)
    total = reduce("sum", b.load(x, 0, (64,), (1,)), 0)

    def step(i: Node) -> None:
        tile = b.load(x, i, (64,), (1,))
        b.store(y, i, binary("sub", tile, broadcast(total, (64,))), (1,))

    b.loop(0, 4096, 64, step)
    written = text(b.kernel())
    assert "barrier" not in written[written.index("for (long") :]


def test_the_group_grows_with_the_tiles() -> None:
    def size(elements: int, lanes: int) -> int:
        b = Builder("copy")
        x, y = b.buffer("x", F32), b.buffer("y", F32, writes=True)
        b.store(y, 0, b.load(x, 0, (elements,), (1,)), (1,))
        return group_size(b.kernel(), groups_of(lanes))

    assert [size(n, 256) for n in (1, 256, 1024, 4096)] == [64, 64, 256, 256]
    assert [size(n, 48) for n in (1, 4096)] == [32, 32]
