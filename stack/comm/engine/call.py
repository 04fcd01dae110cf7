"""A collective call as the native engine takes it: what all ranks of a group must agree about."""

from __future__ import annotations

import hashlib
from dataclasses import field
from functools import lru_cache
from typing import Any

from hal.core.facts import dataclass
from hal.core.values import Collective, CollectiveKind
from stack.comm.engine.codes import DTYPES, KINDS, REDUCES, REDUCING
from stack.comm.engine.library import ffi
from stack.comm.engine.names import learn

_KEPT = 1024
"""Calls whose native form is kept, the last ones used."""


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A call without its arrays. `kind`, `dtype` and `reduce` are the numbers of
    `stack.comm.engine.codes`; `count`, `root` and `counts`, flat, are as in
    `stack.comm.group.Group`, and `count` is 0 where there are `counts` or a chunk program tells the
    lengths. `name` says what the call is for: calls of two names are two calls.

    `native` and `numbers` are the call and its counts as the native engine takes them, `address`
    and `numbers_at` where they lie.
    """

    kind: int
    dtype: int
    count: int
    root: int = -1
    reduce: int = 0
    counts: tuple[int, ...] | None = None
    name: str = ""
    native: Any = field(init=False, compare=False, repr=False)
    numbers: Any = field(init=False, compare=False, repr=False)
    address: int = field(init=False, compare=False, repr=False)
    numbers_at: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        counts = None if self.counts is None else tuple(map(int, self.counts))
        digest = 0  # of counts that all ranks must have; 0 for none
        if counts is not None:
            hashed = hashlib.blake2b(repr(counts).encode(), digest_size=8)
            digest = int.from_bytes(hashed.digest()) | 1
        facts = {
            "count": self.count,
            "digest": digest,
            "name": learn(self.name),
            "kind": self.kind,
            "dtype": self.dtype,
            "reduce": self.reduce,
            "root": self.root,
        }
        numbers = ffi.NULL if counts is None else ffi.new("int64_t[]", counts)
        object.__setattr__(self, "counts", counts)
        native = ffi.new("he_call *", facts)
        object.__setattr__(self, "native", native)
        object.__setattr__(self, "numbers", numbers)
        object.__setattr__(self, "address", address_of(native))
        object.__setattr__(self, "numbers_at", address_of(numbers))


def address_of(pointer: Any) -> int:
    """Where a native value lies."""
    return int(ffi.cast("uintptr_t", pointer))


call_of = lru_cache(_KEPT)(NativeCall)
"""As `NativeCall`, made once for equal arguments: a short call takes no longer than making one."""

_ROOTED = {
    CollectiveKind.REDUCE,
    CollectiveKind.BROADCAST,
    CollectiveKind.GATHER,
    CollectiveKind.SCATTER,
}


@lru_cache(_KEPT)
def native_of(call: Collective) -> NativeCall:
    """A collective of the contract, made once."""
    counts = call.parts or tuple(n for row in call.counts for n in row)
    return call_of(
        KINDS[call.kind],
        DTYPES[call.dtype],
        0 if counts else call.count,
        call.root if call.kind in _ROOTED else -1,
        REDUCES[call.reduce] if call.kind in REDUCING else 0,
        counts or None,
        call.name,
    )


class EqualCalls(dict[int, NativeCall]):
    """The calls of a kind and an element type whose parts all have as many elements, by that
    number: `call_of` for the shortest way."""

    def __init__(self, kind: int, dtype: int, reduce: int = 0, root: int = -1) -> None:
        super().__init__()
        self._of = kind, dtype, reduce, root

    def __missing__(self, count: int) -> NativeCall:
        if len(self) >= _KEPT:
            self.clear()
        kind, dtype, reduce, root = self._of
        self[count] = made = NativeCall(kind, dtype, count, root, reduce)
        return made
