"""Random numbers by counter: equal seeds give equal streams on every device, jitted or not.

A generator has a key (the seed) and an offset, which counts the 32-bit words that it gave. Word j
of the stream is word j % 4 of the Philox4x32-10 block with counter (j // 4, 0) under the key (low
half, high half). A draw of n words takes n words from the offset on, which then moves to the next
multiple of 4. Uniform numbers take one word each, its high 24 bits (11 for float16, 8 for bfloat16)
as a fraction in [0, 1); float64 takes two words and 53 bits. Normal number i takes the uniform
numbers 2i and 2i + 1, u and v: sqrt(-2 log(1 - u)) cos(2 pi v). Integers take one word each,
multiplied by their range, the high half of the product. Dropout keeps an element whose word is
below (1 - p) 2^32.

A thread has streams of its own. One that has not called `manual_seed` draws from the stream whose
seed is that of the main thread plus its number, spread over 64 bits: no two threads draw the same.
"""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

import numpy as np

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.tile.node import Node
from stack import ops as g
from stack.framework import dtypes, store
from stack.framework.apply import evaluate
from stack.framework.cell import become, changed, here, outlive_traces, rebind, tracing, under_way
from stack.framework.create import tensor
from stack.framework.devices import default_device, engine, placed
from stack.framework.errors import TensorError, where_called
from stack.framework.expr import elementwise as e
from stack.framework.layout import any_layout
from stack.framework.recorded import record, tape_of
from stack.framework.spread import divisions
from stack.framework.tensor import Tensor, apply, on_tape

U64 = DType.U64

WORDS = 4
"""Of a block of the stream. Each draw begins a new one."""


class Generator:
    """A stream of random numbers on a device. `key` and `offset` are 0-d uint64 tensors.

    `part` is (rank, size): a draw here is this rank's part of a draw that `size` ranks make
    together, rank after rank, so that what is drawn for a whole batch is the same for any size. It
    follows from the axes of ranks along which draws are divided, the first one varying slowest.
    `draws` counts what was drawn, by calls.
    """

    def __init__(self, device: str | None = None, seed: int = 67280421310721) -> None:
        self.device = device = placed(device)
        self._shares: dict[str, tuple[int, int]] = {}
        self._claims: Counter[str] = Counter()
        self._size = 1
        self.draws = 0
        self.key = tensor(np.uint64(seed % 2**64), device=device)
        self.offset = tensor(np.uint64(0), device=device)
        self._rank = tensor(np.uint64(0), device=device)
        for state in (self.key, self.offset, self._rank):
            outlive_traces(state)

    @property
    def part(self) -> tuple[int, int]:
        rank, size = 0, 1
        for own, count in self._shares.values():
            rank, size = rank * count + own, size * count
        return rank, size

    def divide(self, axis: str, rank: int, size: int) -> None:
        """Divide draws among `size` ranks along an axis, where this one is `rank`, until as many
        calls of `unite`. Raises InvalidCall where the axis is divided otherwise."""
        if self._shares.setdefault(axis, (rank, size)) != (rank, size):
            raise InvalidCall(
                f"{self.device}: draws along {axis!r} are those of rank {self._shares[axis][0]} of "
                f"{self._shares[axis][1]}, not of rank {rank} of {size}; name the axis otherwise"
            )
        self._claims[axis] += 1
        self._redivided()

    def unite(self, axis: str) -> None:
        """Divide draws along the axis for one user less."""
        self._claims[axis] -= 1
        if not self._claims[axis]:
            del self._claims[axis], self._shares[axis]
            self._redivided()

    def _redivided(self) -> None:
        rank, self._size = self.part
        changed()
        if self._size > 1:
            self._set(self._rank, rank)

    def manual_seed(self, seed: int) -> Generator:
        """Begin the seed's stream."""
        self.set_state(seed, 0)
        return self

    def initial_seed(self) -> int:
        """The seed of the stream."""
        return int(self.key.item())

    def get_state(self) -> tuple[int, int]:
        """The key and the offset."""
        return self.key.item(), self.offset.item()

    def set_state(self, key: int, offset: int) -> None:
        """Go on where another generator was. Raises TensorError for an offset at which no draw
        begins."""
        if offset % WORDS:
            raise TensorError(
                f"the offset of a generator is a multiple of {WORDS}, as `get_state` gives it, not "
                f"{offset}\n  called at {where_called()}"
            )
        self._set(self.key, key)
        self._set(self.offset, offset)

    def words(self, n: int) -> Node:
        """u32[n], the next words of the stream."""
        self.draws += 1
        start, size = self.offset.node, self._size
        if (trace := tracing()) is not None:
            trace.note(self, "_size")
        before = None
        if size > 1:  # no constant: all ranks have one graph, and so one order of exchanges
            before = g.mul(self._rank.node, g.const(n, U64))
        rebind(self.offset, _moved(start, n * size))
        return words_from(start, self.key.node, n, before)

    def record(self, form: Form) -> Tensor | None:
        """What a form makes of the words from the offset on, on a tape; None where it is not for a
        tape."""
        if under_way or self._size > 1:
            return None
        tape = tape_of(self.device)
        numbers = tape.numbers([self.offset, self.key])
        found = None if numbers is None else tape.several(_Drawing(form), *numbers)
        if found is None or found[0] is None or found[1] is None:
            return None
        tape.overwrite(self.offset, found[0])
        self.draws += 1
        return on_tape(tape, found[1])

    def _set(self, state: Tensor, value: int) -> None:
        array = engine(self.device).put(np.asarray(np.uint64(value % 2**64)), U64)
        become(state, store.holding(array))


def words_from(start: Node, key: Node, n: int, before: Node | None = None) -> Node:
    """u32[n], the words of a stream that come `before` many (a scalar) after the one at `start` (a
    scalar), the first of its block."""
    first = start
    if not divisions:
        # A compiler sees by this which words are of one block. How a step is divided among ranks is
        # found by a search, which a node more leads elsewhere; and parts begin anywhere.
        first = g.mul(g.shr(start, g.const(2, U64)), g.const(WORDS, U64))
    if before is not None:
        first = g.add(first, before)
    counters = g.add(g.broadcast(first, (n,)), g.arange(n, U64))
    return g.philox(counters, g.broadcast(key, (n,)))


def taken(n: int) -> int:
    """By how many words a draw of n moves the stream on: whole blocks."""
    return -(-n // WORDS) * WORDS


def _moved(start: Node, n: int) -> Node:
    """Where a stream goes on after a draw. A buffer of its own keeps equal draws equal programs,
    wherever they stand in the stream."""
    return g.contiguous(g.add(start, g.const(taken(n), U64)))


@dataclass(frozen=True, slots=True)
class Form:
    """What is made of random words: an array of a shape, each element of `words` of them."""

    shape: tuple[int, ...]

    @property
    def words(self) -> int:
        return 1

    def __call__(self, words: Node) -> Node:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Kept(Form):
    """Whether each element is kept that is dropped with probability p."""

    p: float

    def __call__(self, words: Node) -> Node:
        threshold = g.const(min(round((1 - self.p) * 2**32), 2**32 - 1), DType.U32)
        return g.lt(g.reshape(words, self.shape), g.broadcast(threshold, self.shape))


@dataclass(frozen=True, slots=True)
class _Fractions(Form):
    """Numbers in [0, 1)."""

    dtype: DType

    @property
    def words(self) -> int:
        return 2 if self.dtype is DType.F64 else 1

    def __call__(self, words: Node) -> Node:
        n = math.prod(self.shape)
        return g.reshape(uniform_of(words, n, self.dtype), self.shape)


@dataclass(frozen=True, slots=True)
class _Normal(Form):
    """Numbers of mean 0 and variance 1, computed in at least float32."""

    dtype: DType

    @property
    def words(self) -> int:
        return 4 if self.dtype is DType.F64 else 2

    def __call__(self, words: Node) -> Node:
        return normal_of(words, self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class _Integers(Form):
    """Whole numbers from `low` to `high` - 1."""

    low: int
    high: int
    dtype: DType

    def __call__(self, words: Node) -> Node:
        product = e.mul(g.cast(words, U64), self.high - self.low)
        chosen = g.cast(e.shift_right(product, 32), DType.I64)
        return g.reshape(g.cast(e.add(chosen, self.low), self.dtype), self.shape)


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A draw as an operation: from a stream's offset and key to the next offset, and what the form
    makes of the words in between."""

    form: Form

    def __call__(self, start: Node, key: Node) -> tuple[Node, Node]:
        n = math.prod(self.form.shape) * self.form.words
        return _moved(start, n), self.form(words_from(start, key, n))


def _drawn(form: Form, generator: Generator) -> Node:
    """What the form makes of the next words of the stream."""
    return form(generator.words(math.prod(form.shape) * form.words))


def _draw(form: Form, generator: Generator) -> Tensor:
    """The same as a tensor."""
    if (recorded := generator.record(form)) is not None:
        return recorded
    return Tensor(_drawn(form, generator), generator.device)


def _kept(x: Node, keep: Node, scale: float) -> Node:
    return e.where(keep, e.mul(x, scale), 0.0)


record(_kept)

_seed = [int.from_bytes(os.urandom(8), "little")]
"""Of the main thread."""

_APART = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio, odd: its multiples lie far from each other."""


def default_generator(device: str | None = None) -> Generator:
    """The generator of a device that every function here draws from in this thread."""
    name = device or default_device()
    if (trace := tracing()) is not None:
        trace.draws = True
    found: Generator | None = here.generators.get(name)
    if found is None:
        own = _seed[0] + here.context.number * _APART
        found = here.generators[name] = Generator(name, own if here.seed is None else here.seed)
    return found


def drop_generator(device: str) -> None:
    """Forget the generator of a device that is no more."""
    here.generators.pop(device, None)


def manual_seed(seed: int) -> None:
    """Begin the seed's stream on every device, in this thread."""
    here.seed = seed
    if threading.current_thread() is threading.main_thread():
        _seed[0] = seed
    for generator in here.generators.values():
        generator.manual_seed(seed)


def initial_seed() -> int:
    """The seed of the default device's stream."""
    return default_generator().initial_seed()


def seed() -> int:
    """Begin the stream of a seed that nobody chose, on every device, and say it."""
    chosen = int.from_bytes(os.urandom(8), "little") >> 1
    manual_seed(chosen)
    return chosen


def get_rng_state() -> tuple[int, int]:
    """Where the default device's stream is, for `set_rng_state`."""
    return default_generator().get_state()


def set_rng_state(new_state: tuple[int, int]) -> None:
    """Go on in the default device's stream where `get_rng_state` was."""
    default_generator().set_state(*new_state)


@contextmanager
def fork_rng(
    devices: Iterable[str] | None = None, enabled: bool = True, **options: Any
) -> Iterator[None]:
    """Draws within the block leave the streams of the default device and of `devices`, of all
    without any, as they were before."""
    named = here.generators if devices is None else map(placed, devices)
    held = [default_generator(), *map(default_generator, tuple(named))] if enabled else []
    before = [(generator, generator.get_state()) for generator in held]
    try:
        yield
    finally:
        for generator, state in before:
            generator.set_state(*state)


@contextmanager
def draws_of_slices(randomness: str) -> Iterator[Callable[[], None]]:
    """A function to call before the work on each slice of a batch, whose draws from the devices'
    streams are to be those of the first slice with "same", and others with "different". Raises
    RuntimeError where something is drawn with "error"."""
    if randomness not in ("error", "same", "different"):
        raise ValueError(f'randomness is "error", "same" or "different", got {randomness!r}')
    if randomness == "same":
        default_generator()
    first = {generator: generator.offset.node for generator in here.generators.values()}
    drawn = _draws()

    def begin() -> None:
        for generator, offset in first.items() if randomness == "same" else ():
            rebind(generator.offset, offset)

    yield begin
    if randomness == "error" and _draws() != drawn:
        raise RuntimeError(
            'the function draws random numbers; say randomness="different" or "same"\n'
            f"  called at {where_called()}"
        )


def _draws() -> int:
    return sum(generator.draws for generator in here.generators.values())


def uniform_of(words: Node, n: int, dtype: DType) -> Node:
    """n numbers in [0, 1), each a whole multiple of 2^-bits."""
    if dtype is DType.F64:
        pairs = g.reshape(g.cast(words, U64), (n, 2))
        high, low = (g.reshape(g.slice_axis(pairs, 1, i, i + 1), (n,)) for i in (0, 1))
        whole = e.add(e.mul(e.shift_right(high, 5), 1 << 26), e.shift_right(low, 6))
        return e.mul(g.cast(whole, dtype), 2.0**-53)
    bits = dtype.mantissa + 1
    return e.mul(g.cast(e.shift_right(words, 32 - bits), dtype), 2.0**-bits)


def uniform_node(
    shape: Sequence[int], dtype: DType, device: str, generator: Generator | None = None
) -> Node:
    """Numbers in [0, 1)."""
    return _drawn(_Fractions(tuple(shape), dtype), _source(device, generator))


def normal_node(
    shape: Sequence[int], dtype: DType, device: str, generator: Generator | None = None
) -> Node:
    """Numbers of mean 0 and variance 1, computed in at least float32."""
    return _drawn(_Normal(tuple(shape), dtype), _source(device, generator))


def normal_of(words: Node, shape: Sequence[int], dtype: DType) -> Node:
    """Numbers of mean 0 and variance 1, of two words each, of four for float64."""
    n, wide = math.prod(shape), DType.F64 if dtype is DType.F64 else DType.F32
    pairs = g.reshape(uniform_of(words, 2 * n, wide), (n, 2))
    u, v = (g.reshape(g.slice_axis(pairs, 1, i, i + 1), (n,)) for i in (0, 1))
    radius = g.sqrt(e.mul(g.log(e.sub(1.0, u)), -2.0))
    return g.reshape(g.cast(g.mul(radius, g.cos(e.mul(v, 2 * math.pi))), dtype), tuple(shape))


def _source(device: str, generator: Generator | None) -> Generator:
    """The generator to draw from on the device. Raises TensorError for one of another device."""
    if generator is None:
        return default_generator(device)
    if generator.device != device:
        raise TensorError(
            f"a generator of {generator.device} cannot draw a tensor of {device}\n"
            f"  called at {where_called()}"
        )
    return generator


def _place(device: str | None, generator: Generator | None) -> str:
    return generator.device if device is None and generator is not None else placed(device)


def _shape(size: tuple[int | Sequence[int], ...]) -> tuple[int, ...]:
    return tuple(n for s in size for n in ((s,) if isinstance(s, int) else s))


def _float(given: DType) -> DType:
    dtype = dtypes.element_type(given)
    if not dtype.is_float:
        raise TensorError(f"random fractions need a float type\n  called at {where_called()}")
    return dtype


@any_layout
def rand(
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers in [0, 1), all equally likely."""
    name, kind = _place(device, generator), _float(dtype or DType.F32)
    form = _Fractions(_shape(sizes if size is None else (size,)), kind)
    made = _draw(form, _source(name, generator))
    return made.requires_grad_() if requires_grad else made


@any_layout
def randn(
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers of the normal distribution of mean 0 and variance 1."""
    name, kind = _place(device, generator), _float(dtype or DType.F32)
    form = _Normal(_shape(sizes if size is None else (size,)), kind)
    made = _draw(form, _source(name, generator))
    return made.requires_grad_() if requires_grad else made


@any_layout
def rand_like(
    x: Tensor,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    return rand(x.shape, generator=generator, dtype=dtype or x.dtype, device=device or x.device)


@any_layout
def randn_like(
    x: Tensor,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    return randn(x.shape, generator=generator, dtype=dtype or x.dtype, device=device or x.device)


@overload
def randint(
    high: int,
    size: Sequence[int],
    /,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor: ...
@overload
def randint(
    low: int,
    high: int,
    size: Sequence[int],
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor: ...


@any_layout
def randint(
    low: int,
    high: Any,
    size: Sequence[int] | None = None,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """Integers from low (0 where only the end is given) to high - 1. Their range is at most
    2^32."""
    if size is None:
        low, high, size = 0, low, high
    if not 0 < high - low <= 2**32:
        raise TensorError(
            f"randint needs 1 to 2**32 choices, got [{low}, {high})\n  called at {where_called()}"
        )
    kind: DType = DType.I64 if dtype is None else dtypes.of(dtype)
    form = _Integers(tuple(size), low, high, kind)
    return _draw(form, _source(_place(device, generator), generator))


@any_layout
def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """0 to n - 1 in random order, sorted on the host; not within a trace."""
    name = _place(device, generator)
    words = Tensor(_source(name, generator).words(n), name).numpy()
    return tensor(np.argsort(words, kind="stable"), device=name, dtype=dtype)


def bernoulli(p: Tensor, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability that each element gives, else 0."""
    return (rand_like(p, generator=generator) < p).to(p.dtype)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """input with each element 0 with probability p and the others scaled by 1 / (1 - p), when
    training."""
    if not 0 <= p <= 1:
        raise TensorError(f"dropout: p is a probability, got {p}\n  called at {where_called()}")
    if inplace:
        return input.copy_(dropout(input, p, training))
    x = input
    if not training or p == 0:
        return x
    if p == 1:
        return x * 0.0
    generator, scale, form = default_generator(x.device), 1 / (1 - p), _Kept(x.shape, p)
    if (recorded := generator.record(form)) is not None:
        kept: Tensor = apply(_kept, x, recorded, scale)
        return kept
    keep = _drawn(form, generator)
    node, device, tracked = evaluate(lambda v: _kept(v, keep, scale), (x,), {})
    return Tensor(node, device, requires_grad=tracked)
