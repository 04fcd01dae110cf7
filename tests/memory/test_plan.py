from hypothesis import given
from hypothesis import strategies as st

from stack.memory.plan import Lifetime, live_nbytes, plan

LIFETIMES = st.builds(
    lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
    st.integers(0, 1000),
    st.integers(0, 40),
    st.integers(0, 20),
)


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
    in_time = first.first <= second.last and second.first <= first.last
    return in_time and a < b + second.nbytes and b < a + first.nbytes


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
