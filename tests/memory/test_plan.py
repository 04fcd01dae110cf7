from hypothesis import given
from hypothesis import strategies as st

from stack.memory.plan import Lifetime, Part, live_nbytes, plan

LIFETIMES = st.builds(
    lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
    st.integers(0, 1000),
    st.integers(0, 40),
    st.integers(0, 20),
)

PARTED = st.lists(
    st.tuples(st.integers(1, 300), st.integers(0, 40), st.integers(0, 20)), min_size=2, max_size=5
).map(lambda sizes: in_parts(sizes))


def in_parts(sizes):
    """A block of parts of (nbytes, first, steps after that)."""
    parts, begin = [], 0
    for nbytes, first, length in sizes:
        parts.append(Part(begin, begin + nbytes, first, first + length))
        begin += nbytes
    first, last = min(p.first for p in parts), max(p.last for p in parts)
    return Lifetime(begin, first, last, tuple(parts))


def training_chain(layers, sizes=(4, 4, 12, 4, 16, 16, 4), unit=786432 * 4):
    """Forward and backward: activations live until their gradient, gradients for two steps."""
    forward = layers * len(sizes)
    last = 2 * forward
    blocks = []
    for i in range(forward):
        size = sizes[i % len(sizes)] * unit // 4
        blocks.append(Lifetime(size, i, last - i))
        blocks.append(Lifetime(size, last - i - 1, last - i))
        blocks.append(Lifetime(size // 3 + 100, i, i + 1))
    return blocks


def overlap(a, b, first, second):
    return any(
        p.first <= q.last
        and q.first <= p.last
        and a + p.begin < b + q.end
        and b + q.begin < a + p.end
        for p in first.pieces()
        for q in second.pieces()
    )


@given(st.lists(LIFETIMES, max_size=25), st.sampled_from([1, 64, 4096]))
def test_no_two_blocks_in_use_overlap(blocks, alignment):
    layout = plan(blocks, alignment)
    pairs = list(zip(layout.offsets, blocks, strict=True))
    for i, (a, first) in enumerate(pairs):
        assert a % alignment == 0
        assert a >= 0
        assert a + first.nbytes <= layout.arena_nbytes
        for b, second in pairs[:i]:
            assert not (first.nbytes and second.nbytes and overlap(a, b, first, second))


@given(
    st.lists(LIFETIMES | PARTED, max_size=12),
    st.lists(LIFETIMES | PARTED, min_size=1, max_size=3),
    st.sets(st.integers(0, 11)),
    st.sampled_from([1, 64]),
)
def test_guests_lie_in_rooms_while_these_are_not_in_use(blocks, rooms, guests, alignment):
    layout = plan(blocks, alignment, rooms, guests)
    placed = list(zip(layout.rooms, layout.offsets, blocks, strict=True))
    placed += [(i, 0, room) for i, room in enumerate(rooms)]
    for i, (room, a, first) in enumerate(placed):
        assert a % alignment == 0
        if i < len(blocks) and room is not None:
            assert i in guests
        assert a + first.nbytes <= (layout.arena_nbytes if room is None else rooms[room].nbytes)
        for other, b, second in placed[:i]:
            assert room != other or not overlap(a, b, first, second)


def test_a_block_lies_where_parts_of_another_are_not_in_use_yet():
    whole = in_parts([(128, 4, 2), (128, 2, 4)])
    assert plan([whole, Lifetime(128, 0, 3), Lifetime(64, 0, 1)], 64).arena_nbytes == 256
    rooms = [Lifetime(256, 3, 9)]
    layout = plan(
        [Lifetime(128, 0, 2), Lifetime(128, 1, 2), Lifetime(128, 0, 3)], 64, rooms, {0, 1}
    )
    assert layout.rooms == (0, 0, None)
    assert layout.arena_nbytes == layout.live_nbytes == 128


@given(st.lists(LIFETIMES, max_size=25))
def test_live_set_is_the_largest_sum_over_steps(blocks):
    by_step = [sum(b.nbytes for b in blocks if b.first <= t <= b.last) for t in range(62)]
    assert live_nbytes(blocks) == max(by_step)
    layout = plan(blocks, 1)
    assert layout.live_nbytes == max(by_step)
    assert layout.arena_nbytes >= layout.live_nbytes


def test_a_training_chain_is_near_its_lower_bound():
    for layers in (1, 4, 12):
        layout = plan(training_chain(layers), 64)
        assert layout.arena_nbytes <= 1.1 * layout.live_nbytes


def test_blocks_without_a_common_step_share_memory():
    layout = plan([Lifetime(100, 0, 1), Lifetime(100, 2, 3), Lifetime(100, 3, 4)], 64)
    assert layout.offsets[0] == 0
    assert layout.arena_nbytes == layout.live_nbytes == 256


def test_nothing_to_place():
    assert plan([], 64).arena_nbytes == 0
    assert plan([Lifetime(0, 0, 0)], 64).offsets == (0,)
