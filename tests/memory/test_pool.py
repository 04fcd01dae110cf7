import gc
import random
import weakref
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hal.core.errors import OutOfMemory
from hal.core.values import Buffer
from stack.memory.pool import SLAB_NBYTES, SMALL_NBYTES, Pool


class Memory:
    """A device that has only memory."""

    name = "memory:0"

    def __init__(self, nbytes=1 << 40):
        self.nbytes = nbytes
        self.live = {}

    def alloc(self, nbytes, options):
        available = self.nbytes - sum(self.live.values())
        if nbytes > available:
            raise OutOfMemory("full", nbytes, available)
        buffer = Buffer(self.name, 0, object(), nbytes, "ram")
        self.live[buffer] = nbytes
        return buffer

    def free(self, buffer):
        del self.live[buffer]


def nothing():
    pass


def pool_of(device, reclaim=nothing):
    return Pool(device, 64, reclaim)


SIZES = st.integers(0, 200) | st.integers(0, 3 * SMALL_NBYTES)
STEPS = st.lists(st.tuples(st.booleans(), SIZES), max_size=60)


@given(STEPS, st.randoms(use_true_random=False))
def test_blocks_in_use_never_overlap_and_the_books_balance(steps, choose):
    device = Memory()
    pool = pool_of(device)
    live = []
    for allocate, nbytes in steps:
        if allocate or not live:
            live.append((pool.allocate(nbytes, "x"), nbytes))
        else:
            pool.release(live.pop(choose.randrange(len(live)))[0])
    spans = sorted((id(b.slab), b.offset, b.offset + b.nbytes) for b, _ in live)
    for (slab, _, end), (other, start, _) in pairwise(spans):
        assert slab != other or end <= start
    assert all(b.nbytes >= n and b.offset % 64 == 0 for b, n in live)
    stats = pool.stats()
    assert stats.allocated_nbytes == sum(b.nbytes for b, _ in live) <= stats.peak_nbytes
    assert stats.reserved_nbytes == sum(device.live.values())
    for block, _ in live:
        pool.release(block)
    assert pool.trim() == stats.reserved_nbytes
    assert not device.live


def test_a_repeated_pattern_needs_no_second_raw_allocation():
    pool = pool_of(Memory())
    sizes = [random.Random(0).randrange(1, 5 * SMALL_NBYTES) for _ in range(50)]
    raw = []
    for _ in range(3):
        blocks = [pool.allocate(n, "x") for n in sizes]
        for block in blocks:
            pool.release(block)
        raw.append(pool.stats().raw_allocations)
    stats = pool.stats()
    assert raw == [raw[0]] * 3
    assert stats.cache_hits == 150 - raw[0]
    assert stats.allocated_nbytes == 0


def test_the_block_that_has_just_come_back_is_given_again():
    pool = pool_of(Memory())
    sizes = [64, SMALL_NBYTES, 3 * SMALL_NBYTES]
    blocks = [pool.allocate(n, "x") for n in sizes]
    before = pool.stats()
    for block, n in zip(blocks, sizes, strict=True):
        pool.release(block)
        again = pool.allocate(n, "y")
        assert again is block
        assert again.label == "y"
        assert pool.region(again, n) is pool.region(block, n)
    assert pool.region(blocks[0], 60).nbytes == 60
    after = pool.stats()
    assert after.allocated_nbytes == before.allocated_nbytes == sum(sizes)
    assert after.peak_nbytes == before.peak_nbytes
    assert after.raw_allocations == before.raw_allocations


def test_neighbours_join_so_that_a_slab_becomes_whole_again():
    device = Memory()
    pool = pool_of(device)
    blocks = [pool.allocate(SLAB_NBYTES // 8 - 64, "x") for _ in range(8)]
    for i in (1, 3, 5, 7, 0, 6, 4, 2):
        pool.release(blocks[i])
    assert len(device.live) == 1
    assert pool.trim() == SLAB_NBYTES


def test_blocks_set_aside_are_joined_before_another_slab_is_asked_for():
    device = Memory()
    pool = pool_of(device)
    small = [pool.allocate(1 << 16, "x") for _ in range(SLAB_NBYTES >> 16)]
    for block in reversed(small):
        pool.release(block)
    assert not pool.holders()
    for _ in range(2):
        pool.allocate(SMALL_NBYTES - 64, "y")
    assert pool.stats().raw_allocations == 1
    assert pool.holders() == {"y": 2 * (SMALL_NBYTES - 64)}


def test_what_is_reserved_stays_close_to_what_is_used():
    pool = pool_of(Memory())
    for i in range(150):
        pool.allocate((1 << 20) + i * 12345, "weights")
    stats = pool.stats()
    assert stats.reserved_nbytes <= 1.2 * stats.allocated_nbytes


def test_out_of_memory_says_how_much_was_asked_and_who_holds_the_rest():
    pool = pool_of(Memory(8 * SLAB_NBYTES))
    kept = [
        pool.allocate(3 * SLAB_NBYTES, "weights"),
        pool.allocate(2 * SLAB_NBYTES, "plan"),
        pool.allocate(3, "step"),
    ]
    with pytest.raises(OutOfMemory) as caught:
        pool.allocate(4 * SLAB_NBYTES, "activations")
    error = caught.value
    assert error.requested == 4 * SLAB_NBYTES
    assert error.available == 2 * SLAB_NBYTES
    assert list(error.held) == ["weights", "plan", "step"]
    assert "8,388,608 bytes for activations" in str(error)
    assert "6,291,456 weights, 4,194,304 plan, 64 step" in str(error)
    assert pool.allocate(SLAB_NBYTES, "smaller").nbytes == SLAB_NBYTES
    assert kept[0].label == "weights"


def test_out_of_memory_is_avoided_by_giving_cached_slabs_back():
    device = Memory(4 * SLAB_NBYTES)
    pool = pool_of(device)
    pool.release(pool.allocate(3 * SLAB_NBYTES, "first"))
    assert pool.allocate(4 * SLAB_NBYTES, "second").nbytes == 4 * SLAB_NBYTES


def test_out_of_memory_is_avoided_by_reclaiming_garbage():
    class Holder:
        pass

    pool = pool_of(Memory(4 * SLAB_NBYTES), gc.collect)
    holder = Holder()
    holder.itself = holder
    weakref.finalize(holder, pool.release, pool.allocate(3 * SLAB_NBYTES, "cycle"))
    gc.disable()
    try:
        del holder
        assert pool.allocate(2 * SLAB_NBYTES, "after").label == "after"
    finally:
        gc.enable()


def test_empty_blocks_are_blocks():
    pool = pool_of(Memory())
    first, second = pool.allocate(0, "a"), pool.allocate(0, "b")
    assert first.offset != second.offset
    assert pool.region(first, 0).nbytes == 0


def test_a_device_without_room_for_a_slab_still_gives_what_fits():
    pool = pool_of(Memory(1000))
    assert pool.allocate(500, "small").nbytes == 512
    with pytest.raises(OutOfMemory, match="500 bytes for more: 488 are free on the device"):
        pool.allocate(500, "more")


def test_what_reclaiming_frees_within_a_slab_in_use_is_taken():
    device, freed = Memory(SLAB_NBYTES), []
    pool = pool_of(device, lambda: pool.release(freed.pop()))
    freed.append(pool.allocate(SMALL_NBYTES, "garbage"))
    kept = pool.allocate(SMALL_NBYTES, "kept")
    again = pool.allocate(SMALL_NBYTES, "again")
    assert again.slab is kept.slab


def test_slabs_come_from_elsewhere_for_as_long_as_is_said():
    memories = [Memory() for _ in range(4)]
    pool = Pool(memories[0], 64, nothing)
    _own, pair, four, late = (lambda n, label, m=m: m.alloc(n, None) for m in memories)
    found = [pool.allocate(SLAB_NBYTES, "first")]
    for source, processes in ((pair, 2), (four, 4), (late, 4)):
        pool.draw_from(source, processes)
        found.append(pool.allocate(SLAB_NBYTES, "drawn"))
    for source in (four, late, pair):
        pool.draw_no_more(source)
        found.append(pool.allocate(SLAB_NBYTES, "left"))
    where = [next(i for i, m in enumerate(memories) if b.slab in m.live) for b in found]
    assert where == [0, 1, 2, 2, 3, 1, 0]
