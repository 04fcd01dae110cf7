"""What a collective touches follows from its kind and the rank's part in it."""

import pytest

import hal
from hal.core.values import Buffer, Collective, CollectiveKind, Group, Region
from hal.core.wrappers.footprint import of_collective

UNUSED = {
    CollectiveKind.REDUCE: (set(), {"dst"}),
    CollectiveKind.GATHER: (set(), {"dst"}),
    CollectiveKind.BROADCAST: (set(), {"src"}),
    CollectiveKind.SCATTER: (set(), {"src"}),
    CollectiveKind.BARRIER: ({"dst", "src"}, {"dst", "src"}),
}
"""The regions that are not touched, on the root and off it; the other kinds touch both."""


@pytest.mark.parametrize("kind", CollectiveKind)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_collective_writes_dst_and_reads_src_where_the_rank_uses_them(kind, rank):
    dst, src = (Buffer("x:0", 0, None, 8, "ram") for _ in range(2))
    call = Collective(kind, hal.DType.U8, 1, root=0)
    group = Group("x:0", 0, None, rank, 2)
    touches = of_collective(group, call, Region(dst, 0, 8), Region(src, 0, 8))
    unused = UNUSED.get(kind, (set(), set()))[rank]
    wanted = {("dst", True), ("src", False)}
    names = {id(dst): "dst", id(src): "src"}
    found = {(names[id(t.buffer)], t.writes) for t in touches}
    assert found == {(name, writes) for name, writes in wanted if name not in unused}


def test_an_empty_region_is_not_touched():
    buffer = Buffer("x:0", 0, None, 8, "ram")
    call = Collective(CollectiveKind.ALL_REDUCE, hal.DType.U8, 0)
    empty = Region(buffer, 4, 0)
    assert of_collective(Group("x:0", 0, None, 0, 2), call, empty, empty) == ()
