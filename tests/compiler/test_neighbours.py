"""Values that neighbours share, computed once for each group with the bits of each by itself."""

from collections.abc import Callable

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.build import Builder, Operand, add, arange, binary, broadcast, cast, const, mul
from hal.tile.interpret import interpret
from hal.tile.kernel import Kernel, Store
from hal.tile.node import Node, toposort
from hal.tile.verify import verify
from hal.tile.walk import reads, statements
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.compiler.text.llvm import render
from stack.compiler.text.llvm.neighbours import LEAST_STEPS, once_for_neighbours
from stack.ops import OPS
from tests.compiler import models
from tests.compiler.llvm import agreement, machine
from tests.compiler.lowered import lowered
from tests.draw import stream

U64, I64 = DType.U64, DType.I64
WIDTH, ROUNDS = 32, 3


def mixed(x: Node) -> Node:
    """Enough operations that it pays to do them once."""
    for i in range(LEAST_STEPS):
        x = binary("xor", mul(x, 0x9E3779B97F4A7C15), binary("shr", x, 7 + i))
    return x


def kernel(
    rising: Node | None = None, start: Operand = 0, shift: int = 2, width: int = WIDTH
) -> Kernel:
    """out[i] = mixed((given[0] * 4 + start + i) >> shift), xor the number's lowest bits; with
    numbers that rise in place of i, and 2**40 for 4 where the shift is past 32 bits."""
    b = Builder("neighbours")
    given, out = b.buffer("given", U64), b.buffer("out", U64, writes=True)
    first = add(mul(b.load(given, 0), 4 if shift < 30 else 1 << 40), start)

    def step(i: Node) -> None:
        numbers = add(broadcast(cast(i, U64), (width,)), arange(width, U64))
        counter = add(broadcast(first, (width,)), numbers if rising is None else rising)
        low = binary("and", counter, (1 << shift) - 1)
        b.store(out, i, binary("xor", mixed(binary("shr", counter, shift)), low), (1,))

    b.loop(0, ROUNDS * width, width, step)
    return b.kernel()


def widest(kernel: Kernel) -> int:
    """The products of the widest tiles that are multiplied."""
    roots = [n for s in statements(kernel.body) for n in reads(s)]
    products = [n.shape[-1] for n in toposort(roots) if n.op == "mul" and n.shape]
    return max(p for p in products if products.count(p) >= LEAST_STEPS)


def results(kernel: Kernel, width: int, run: Callable[..., None]) -> list[np.ndarray]:
    outs = []
    for first in (0, 12345, 2**62 - 3):
        outs.append(np.zeros(ROUNDS * width, np.uint64))
        run(kernel, (1,), {"given": np.array([first], np.uint64), "out": outs[-1]}, {})
    return outs


def agree(old: Kernel, width: int = WIDTH) -> Kernel:
    new = once_for_neighbours(old)
    verify(new)
    np.testing.assert_array_equal(results(new, width, interpret), results(old, width, interpret))
    return new


@pytest.mark.parametrize("shift", range(5))
def test_shared_values_are_computed_once_for_as_many_as_share_them(shift):
    shared = {0: 1, 1: 2}.get(shift, 4)  # the start is known to be a multiple of four
    assert widest(agree(kernel(shift=shift))) == WIDTH // shared


@pytest.mark.parametrize("width", [2, 6, 20, 32])
def test_tiles_of_any_width_repeated_by_vectors(width):
    shared = 4 if width % 4 == 0 else 2
    old = kernel(width=width)
    assert widest(agree(old, width)) == width // shared
    np.testing.assert_array_equal(results(old, width, machine.run), results(old, width, interpret))


@pytest.mark.parametrize(("start", "shared"), [(1, 1), (2, 2), (3, 1), (4, 4), (6, 2)])
def test_what_begins_within_a_group_is_shared_by_fewer(start, shared):
    assert widest(agree(kernel(start=start))) == WIDTH // shared


def test_every_second_number_and_those_between():
    for offset in (0, 1):
        rising = add(mul(arange(WIDTH, U64), 2), offset)
        assert widest(agree(kernel(rising))) == WIDTH // 2


def test_numbers_that_were_narrower():
    rising = cast(add(mul(arange(WIDTH, DType.I32), 2), const(-64, DType.I32)), U64)
    assert widest(agree(kernel(rising))) == WIDTH // 2


def test_numbers_that_are_not_wide_enough_for_their_steps():
    """Of four some are negative, which a wider type shows; of two both."""
    rising = cast(mul(arange(WIDTH, DType.I32), 1 << 30), U64)
    assert widest(agree(kernel(rising, shift=32))) == WIDTH // 2
    signs = cast(binary("shr", mul(arange(WIDTH, DType.I32), 1 << 30), 32), U64)
    agree(kernel(add(mul(signs, 1 << 32), arange(WIDTH, U64)), shift=32))


def test_random_numbers_that_rise():
    """Of what rises by any steps, from anywhere: whatever is found to be shared is equal."""
    draw = stream("rising numbers")
    for _ in range(60):
        rising: Node = arange(WIDTH, draw.choice([U64, I64, DType.I32, DType.U32, DType.I8]))
        for _ in range(draw.randrange(4)):
            op = draw.choice(["add", "mul", "shl", "and", "xor", "sub"])
            most = rising.dtype.bits - (rising.dtype.kind == "i")
            numbers = [0, 1, 2, 3, 4, 5, 8, 12, 16, 1 << draw.randrange(most)]
            rising = binary(op, rising, draw.choice(numbers))
        agree(
            kernel(cast(rising, U64), draw.randrange(9), draw.choice([*range(7), 30, 31, 32, 33]))
        )


def test_few_operations_stay_as_they_are():
    b = Builder("few")
    out = b.buffer("out", U64, writes=True)
    b.store(out, 0, binary("shr", arange(WIDTH, U64), 2), (1,))
    assert once_for_neighbours(b.kernel()) == b.kernel()


def test_registers_of_groups_are_mixed_in_turns():
    """The products of one group wait for each other; those of the next one need not wait."""
    lines = render(kernel(width=WIDTH), machine.info()).text.splitlines()
    products = [i for i, s in enumerate(lines) if " mul <4 x i64> %" in s]
    assert len(products) == 2 * LEAST_STEPS
    assert [j - i for i, j in zip(products[::2], products[1::2], strict=True)] == [1] * LEAST_STEPS


def test_random_words_are_drawn_for_twice_as_many_elements_at_once():
    """Of their blocks there is one for four words: two registers are to be mixed in turns."""
    x = models.source(0, 1 << 14, dtype=U64)
    found = []
    for value in (g.cast(x, DType.U32), g.philox(x, x)):
        (call,) = lowered(GraphRequest((value,), (x,), ())).calls
        (store,) = (s for s in statements(call.kernel.body) if isinstance(s, Store))
        found.append(store.value.shape[-1])
    assert found[1] == 2 * found[0]


@pytest.mark.parametrize("vector_nbytes", [16, 32, 64])
@pytest.mark.parametrize("width", [32, 64, 128])
def test_words_of_blocks_lie_in_order_without_choices(width, vector_nbytes):
    """Pairs of them move together; each word repeated for its block would be moved by itself."""
    b = Builder("words")
    given, out = b.buffer("given", U64), b.buffer("out", DType.U32, reads=False, writes=True)
    first, key = mul(b.load(given, 0), 4), broadcast(b.load(given, 1), (width,))

    def step(i: Node) -> None:
        numbers = add(broadcast(cast(i, U64), (width,)), arange(width, U64))
        counters = add(broadcast(first, (width,)), numbers)
        b.store(out, i, OPS["philox"].lower(counters, (counters, key)), (1,))

    b.loop(0, 3 * width, width, step)
    given = np.array([123456789123, 0xFEDCBA9876543210], np.uint64)
    buffers = {"given": given, "out": np.zeros(3 * width, np.uint32)}
    words = agreement.agree(b.kernel(), (1, 1, 1), buffers, vector_nbytes=vector_nbytes)["out"]
    numbers = given[:1] * np.uint64(4) + np.arange(3 * width, dtype=np.uint64)
    wanted = OPS["philox"].reference(None, (numbers, np.full_like(numbers, given[1])))
    np.testing.assert_array_equal(words, wanted)
    text = render(b.kernel(), machine.info(vector_nbytes)).text
    assert ("select <" in text) == (vector_nbytes == 16)
