"""The collective operations on arrays of the host, whoever runs them: now, or in the background."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hal.core.errors import InvalidCall
from hal.core.values import Collective, CollectiveKind, ReduceKind
from stack.comm.engine.base import ANYBODY, Engine
from stack.comm.engine.call import EqualCalls, NativeCall, call_of, native_of
from stack.comm.engine.codes import NUMPY, NUMPY_CODES, REDUCES, BitReduce, Reduce
from stack.comm.engine.library import lib

Array = NDArray[Any]
Counts = Sequence[int]
Result = TypeVar("Result")

_SUM = ReduceKind.SUM
_SEND, _RECV = lib.HE_SEND, lib.HE_RECV
_SUMS, _SCATTERED_SUMS, _GATHERS, _EXCHANGES = (
    {dtype: EqualCalls(kind, code, reduce) for dtype, code in NUMPY_CODES.items()}
    for kind, reduce in (
        (lib.HE_ALL_REDUCE, lib.HE_SUM),
        (lib.HE_REDUCE_SCATTER, lib.HE_SUM),
        (lib.HE_ALL_GATHER, 0),
        (lib.HE_ALL_TO_ALL, 0),
    )
)


class Collectives(ABC, Generic[Result]):
    """Every rank makes the same calls in the same order, with equal counts and element types.

    Arrays are C-contiguous. Elements are combined in one order, on one host neighbouring ranks
    first, then pairs of pairs, so equal calls give equal bits on every rank; float16 and bfloat16
    are accumulated in float32. `out` may be the source where both have the same place in it, and
    shares no memory with it otherwise. Raises InvalidCall for wrong sizes and types, and what ended
    the group (`stack.comm.engine.failures`).
    """

    def __init__(self, member: Engine) -> None:
        self._member = member
        self._size = member.size
        self._broadcasts: dict[int, dict[np.dtype[Any], EqualCalls]] = {}

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._member.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    @abstractmethod
    def _do(self, call: NativeCall, dst: Array, src: Array) -> Result:
        """Run a call, or begin it; its result is `dst`."""

    @abstractmethod
    def _do_message(self, kind: int, dtype: int, array: Array, peer: int, tag: int) -> Result:
        """Move a message, or begin to; its result is `array`."""

    def run(self, call: Collective, dst: Array, src: Array) -> Result:
        """Any collective of the contract. `dst` and `src` are one array where it runs in place; one
        that this rank does not use may be empty."""
        for what, array, wanted in zip(
            ("destination", "source"), (dst, src), call.elements(self.rank, self.size), strict=True
        ):
            if wanted is not None and (array.size, NUMPY.get(array.dtype)) != (wanted, call.dtype):
                given = f"{array.size} of {array.dtype}"
                raise InvalidCall(f"{call}: its {what} has {wanted} elements here, not {given}")
        code_of(src, src, call.reduce)
        at_root = self.rank == call.root
        if call.kind is CollectiveKind.BROADCAST:
            if at_root and dst is not src:
                dst[...] = src.reshape(dst.shape)
            src = dst
        elif call.kind is CollectiveKind.REDUCE and not at_root:
            dst = src
        elif call.kind is CollectiveKind.ALL_TO_ALL_V and np.may_share_memory(src, dst):
            src = src.copy()
        return self._do(native_of(call), dst, src)

    def send(self, array: Array, to: int, tag: int = 0) -> Result:
        """Send to a rank, which receives as many elements of the same type. Messages of two ranks
        and a tag (0 to 2**31 - 1) match in their order. May wait until the other rank receives."""
        peer = self._other(to)
        return self._do_message(_SEND, element_code(array), array, peer, _tag(tag))

    def receive(self, array: Array, source: int | None, tag: int = 0) -> Result:
        """Receive into the whole array what rank `source` sends with that tag; None stands for
        whichever rank sends first, which is `peer` of the `Work` then. What a rank sent before with
        other tags is kept for receives that come later."""
        if self.size == 1 and source is None:
            raise InvalidCall("a group of one rank has nobody to receive from")
        peer = ANYBODY if source is None else self._other(source)
        return self._do_message(_RECV, element_code(array), array, peer, _tag(tag))

    def all_reduce(
        self,
        array: Array,
        reduce: Reduce = _SUM,
        out: Array | None = None,
        name: str = "",
    ) -> Result:
        """Combine the ranks' arrays, on all of them; in place without `out`. What the ranks call it
        must agree, too: a `name` tells calls apart that look alike."""
        sums = _SUMS.get(array.dtype)
        if out is None and reduce is _SUM and not name and sums is not None:  # the short way
            return self._do(sums[array.size], array, array)
        out = array if out is None else out
        if out.size != array.size:
            raise _wrong_size("all_reduce", "out", out.size, array.size)
        code = code_of(array, out, reduce)
        call = call_of(lib.HE_ALL_REDUCE, code, array.size, -1, REDUCES[reduce], None, name)
        return self._do(call, out, array)

    def reduce(
        self, array: Array, root: int, reduce: Reduce = _SUM, out: Array | None = None
    ) -> Result:
        """As `all_reduce`, but only the root has the result; other ranks keep what they have."""
        out = array if out is None else out
        if out.size != array.size:
            raise _wrong_size("reduce", "out", out.size, array.size)
        kind, code = lib.HE_REDUCE, code_of(array, out, reduce)
        call = call_of(kind, code, array.size, self._root(root), REDUCES[reduce])
        return self._do(call, out, array)

    def broadcast(self, array: Array, root: int) -> Result:
        """Give the root's array to all."""
        try:
            call = self._broadcasts[root][array.dtype][array.size]
        except KeyError:
            calls = EqualCalls(lib.HE_BROADCAST, element_code(array), root=self._root(root))
            self._broadcasts.setdefault(root, {})[array.dtype] = calls
            call = calls[array.size]
        return self._do(call, array, array)

    def all_gather(
        self,
        array: Array,
        out: Array | None = None,
        counts: Counts | None = None,
        name: str = "",
    ) -> Result:
        """The ranks' arrays one after the other, on all. `counts` are their sizes where they
        differ. Without `out` an array of shape (size, *array.shape), or (sum(counts),). `name` is
        as that of `all_reduce`."""
        calls = _GATHERS.get(array.dtype)
        if out is not None and counts is None and not name and calls is not None:  # the short way
            count = array.size
            if out.dtype is array.dtype and out.size == count * self._size:
                return self._do(calls[count], out, array)
        out = self._gathered(array, out, counts)
        kind, code = lib.HE_ALL_GATHER, code_of(array, out)
        return self._do(_in_parts(kind, code, array.size, counts, name=name), out, array)

    def gather(
        self, array: Array, root: int, out: Array | None = None, counts: Counts | None = None
    ) -> Result:
        """As `all_gather`, but only the root has the result; that of others is empty."""
        if self.rank == self._root(root):
            out = self._gathered(array, out, counts)
        else:
            self._own_count("gather", array, counts)
            out = array[:0] if array.ndim else array.reshape(1)[:0]
        kind, code = lib.HE_GATHER, code_of(array, out)
        return self._do(_in_parts(kind, code, array.size, counts, root), out, array)

    def scatter(
        self, array: Array | None, root: int, out: Array, counts: Counts | None = None
    ) -> Result:
        """Give rank i part i of the root's array, in `out`; others may give None for it."""
        self._own_count("scatter", out, counts)
        if self.rank == self._root(root):
            if array is None:
                raise InvalidCall("scatter: the root gives no array")
            self._check_whole("scatter", array, out, counts)
        else:
            array = out[:0] if out.ndim else out.reshape(1)[:0]
        kind, code = lib.HE_SCATTER, code_of(array, out)
        return self._do(_in_parts(kind, code, out.size, counts, root), out, array)

    def reduce_scatter(
        self,
        array: Array,
        reduce: Reduce = _SUM,
        out: Array | None = None,
        counts: Counts | None = None,
    ) -> Result:
        """Combine the ranks' arrays and give rank i part i. The parts are equal, or have `counts`
        elements. Without `out` a new array of one dimension."""
        calls = _SCATTERED_SUMS.get(array.dtype)
        if out is not None and reduce is _SUM and counts is None and calls is not None:
            count = out.size  # the short way
            if out.dtype is array.dtype and array.size == count * self._size:
                return self._do(calls[count], out, array)
        if out is None:
            self._check_counts("reduce_scatter", counts)
            n = array.size // self.size if counts is None else counts[self.rank]
            out = np.empty(n, array.dtype)
        self._own_count("reduce_scatter", out, counts)
        self._check_whole("reduce_scatter", array, out, counts)
        kind, code = lib.HE_REDUCE_SCATTER, code_of(array, out, reduce)
        call = _in_parts(kind, code, out.size, counts, reduce=REDUCES[reduce])
        return self._do(call, out, array)

    def all_to_all(self, array: Array, out: Array | None = None) -> Result:
        """Part j of rank i becomes part i of rank j; `out` may be `array`."""
        out = np.empty_like(array, order="C") if out is None else out
        calls = _EXCHANGES.get(array.dtype)
        size = array.size
        if calls is not None and out.dtype is array.dtype and out.size == size:  # the short way
            count, rest = divmod(size, self._size)
            if not rest:
                return self._do(calls[count], out, array)
        if array.size % self.size or out.size != array.size:
            raise InvalidCall(
                f"all_to_all: {array.size} elements go to {out.size} in {self.size} equal parts"
            )
        kind, code = lib.HE_ALL_TO_ALL, code_of(array, out)
        return self._do(call_of(kind, code, array.size // self.size), out, array)

    def all_to_all_v(
        self, array: Array, counts: Sequence[Counts], out: Array | None = None
    ) -> Result:
        """As `all_to_all` with parts of unequal size: rank i sends counts[i][j] elements to rank j.
        `counts` is equal on all ranks."""
        if len(counts) != self.size or any(len(row) != self.size for row in counts):
            raise InvalidCall(f"all_to_all_v: counts is not {self.size} rows of {self.size}")
        sent, got = sum(counts[self.rank]), sum(row[self.rank] for row in counts)
        out = np.empty(got, array.dtype) if out is None else out
        if array.size != sent:
            raise _wrong_size("all_to_all_v", "array", array.size, sent)
        if out.size != got:
            raise _wrong_size("all_to_all_v", "out", out.size, got)
        if np.may_share_memory(array, out):
            array = array.copy()
        flat = tuple(n for row in counts for n in row)
        kind, code = lib.HE_ALL_TO_ALL_V, code_of(array, out)
        return self._do(_in_parts(kind, code, 0, flat), out, array)

    def barrier(self) -> Result:
        """Wait until all ranks have come to it. Gives an empty array."""
        nothing = np.empty(0, np.uint8)
        call = call_of(lib.HE_BARRIER, NUMPY_CODES[nothing.dtype], 0)
        return self._do(call, nothing, nothing)

    def _other(self, rank: int) -> int:
        member = self._member
        if not 0 <= rank < member.size or rank == member.rank:
            text = f"rank {rank} is no other rank of a group of {self.size}"
            raise InvalidCall(f"rank {self.rank} sends and receives nothing: {text}")
        return rank

    def _root(self, root: int) -> int:
        if not 0 <= root < self.size:
            raise InvalidCall(f"the root {root} is no rank of a group of {self.size}")
        return root

    def _check_counts(self, what: str, counts: Counts | None) -> None:
        if counts is not None and (len(counts) != self.size or min(counts) < 0):
            raise InvalidCall(f"{what}: counts {list(counts)} are not {self.size} sizes")

    def _own_count(self, what: str, part: Array, counts: Counts | None) -> None:
        self._check_counts(what, counts)
        if counts is not None and part.size != counts[self.rank]:
            raise _wrong_size(what, f"the part of rank {self.rank}", part.size, counts[self.rank])

    def _check_whole(self, what: str, whole: Array, part: Array, counts: Counts | None) -> None:
        wanted = part.size * self.size if counts is None else sum(counts)
        if whole.size != wanted:
            raise _wrong_size(what, "the whole", whole.size, wanted)

    def _gathered(self, array: Array, out: Array | None, counts: Counts | None) -> Array:
        self._own_count("gather", array, counts)
        if out is None:
            shape = (self.size, *array.shape) if counts is None else (sum(counts),)
            return np.empty(shape, array.dtype)
        self._check_whole("gather", out, array, counts)
        return out


def _in_parts(
    kind: int,
    dtype: int,
    count: int,
    counts: Counts | None,
    root: int = -1,
    reduce: int = 0,
    name: str = "",
) -> NativeCall:
    """A call whose parts have `count` elements each, or `counts`."""
    if counts is None:
        return call_of(kind, dtype, count, root, reduce, None, name)
    return call_of(kind, dtype, 0, root, reduce, tuple(counts), name)


def _tag(tag: int) -> int:
    if not 0 <= tag < 1 << 31:
        raise InvalidCall(f"a message has a tag from 0 to 2**31 - 1, not {tag}")
    return tag


def _wrong_size(what: str, which: str, size: int, wanted: int) -> InvalidCall:
    return InvalidCall(f"{what}: {which} has {size} elements, not {wanted}")


def element_code(array: Array) -> int:
    """The native code of an array's element type."""
    code = NUMPY_CODES.get(array.dtype)
    if code is None:
        raise InvalidCall(f"the engine has no element type {array.dtype}")
    return code


def code_of(src: Array, dst: Array, reduce: Reduce = _SUM) -> int:
    """The native code of the element type of both."""
    code = element_code(src)
    if dst is not src and dst.dtype != src.dtype:
        raise InvalidCall(f"the source has elements of {src.dtype}, the destination {dst.dtype}")
    if reduce is ReduceKind.AVG and src.dtype == np.bool_:
        raise InvalidCall("there is no average of bools")
    if isinstance(reduce, BitReduce) and src.dtype.kind not in "iub":
        raise InvalidCall(f"there is no {reduce.value} of {src.dtype}")
    return code
