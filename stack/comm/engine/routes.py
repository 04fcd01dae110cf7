"""Which chunk program a call of a group on several hosts follows, and its form for the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.errors import InvalidCall
from hal.core.values import CollectiveKind
from stack.comm.engine.library import ffi
from stack.comm.plan.check import check
from stack.comm.plan.flat import flatten
from stack.comm.plan.generate.request import Request
from stack.comm.plan.generate.table import build
from stack.comm.plan.program import Place, PlanKind, Program, even_lengths, extents

Array = NDArray[Any]
Kind = CollectiveKind

IN_PLACE = (Kind.ALL_REDUCE, Kind.BROADCAST)
"""Kinds that run in their destination, into which the source is copied first."""
SMALL_NBYTES = 32 << 10
"""Up to here the number of messages one after the other costs more than the bytes."""
_ALGORITHMS = {
    Kind.REDUCE: "binomial",
    Kind.BROADCAST: "binomial",
    Kind.ALL_GATHER: "ring",
    Kind.REDUCE_SCATTER: "ring",
    Kind.ALL_TO_ALL: "pairwise",
    Kind.ALL_TO_ALL_V: "pairwise",
    Kind.GATHER: "direct",
    Kind.SCATTER: "direct",
    Kind.BARRIER: "dissemination",
}


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A rank's steps for given lengths, and the pointers that the engine takes. `digest` is equal
    on all ranks that follow one program with equal lengths; `places` are the elements of INPUT,
    OUTPUT and SCRATCH."""

    digest: int
    nsteps: int
    nafter: int
    places: tuple[int, int, int]
    steps: Any
    after: Any
    keep: tuple[NDArray[np.int64], NDArray[np.int64]]


def route_of(program: Program, rank: int, lengths: Sequence[int]) -> Route:
    """A rank's part of a program that `stack.comm.plan.check` accepts."""
    flat = flatten(program, rank, lengths)
    text = repr((program, tuple(lengths))).encode()
    digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) | 1
    steps, after = np.ascontiguousarray(flat.steps), np.ascontiguousarray(flat.after)
    return Route(
        digest,
        len(steps),
        len(after),
        flat.places,
        ffi.cast("int64_t *", steps.ctypes.data),
        ffi.cast("int64_t *", after.ctypes.data),
        (steps, after),
    )


class Routes:
    """The routes of a rank in a group; `hosts[r]` tells the host of rank r."""

    def __init__(self, rank: int, hosts: tuple[int, ...]) -> None:
        self._rank = rank
        self._hosts = hosts

    def of(
        self,
        kind: CollectiveKind,
        count: int,
        counts: tuple[int, ...] | None,
        root: int,
        nbytes: int,
        wide: bool,
    ) -> Route:
        """The route of a call: `nbytes` are those of an element, `wide` is for two-byte floats."""
        small = counts is None and count * nbytes <= SMALL_NBYTES
        lengths = even_lengths(kind, len(self._hosts), count) if counts is None else counts
        return _route(kind, self._rank, self._hosts, max(root, 0), small, wide, lengths)


@lru_cache(maxsize=256)
def _route(
    kind: CollectiveKind,
    rank: int,
    hosts: tuple[int, ...],
    root: int,
    small: bool,
    wide: bool,
    lengths: tuple[int, ...],
) -> Route:
    return route_of(_program(kind, hosts, root, small, wide), rank, lengths)


@lru_cache(maxsize=64)
def _program(kind: PlanKind, hosts: tuple[int, ...], root: int, small: bool, wide: bool) -> Program:
    places = tuple((host,) for host in hosts)
    request = Request(kind, len(hosts), root, in_place=kind in IN_PLACE, wide=wide, places=places)
    return build(_algorithm(kind, hosts, small), request)


def _algorithm(kind: PlanKind, hosts: tuple[int, ...], small: bool) -> str:
    if kind is not Kind.ALL_REDUCE:
        return _ALGORITHMS[Kind(kind)]
    if small:
        return "recursive-doubling"
    return "ring" if len(set(hosts)) == len(hosts) else "hierarchical"


class Proved:
    """The routes of a rank through programs that users bring; each is checked once."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._found: dict[tuple[int, tuple[int, ...]], tuple[Program, Route]] = {}

    def get(
        self, program: Program, lengths: Sequence[int] | None, array: Array, out: Array
    ) -> Route:
        """The rank's route for extents of these lengths, or for equal ones that fill `array`.

        Raises PlanError for a program that is wrong, InvalidCall for one that does not fit.
        """
        if program.size != self._size or not isinstance(program.kind, CollectiveKind):
            of = f"{program.size} ranks and kind {program.kind.value}"
            raise InvalidCall(f"a group of {self._size} cannot follow a program of {of}")
        if lengths is None:
            parts = len(extents(program, self._rank, Place.INPUT))
            lengths = even_lengths(program.kind, self._size, array.size // max(parts, 1))
        key = id(program), tuple(lengths)
        if key not in self._found:
            check(program)
            self._found[key] = program, route_of(program, self._rank, key[1])
        route = self._found[key][1]
        if (array.size, out.size) != route.places[:2]:
            wanted = f"takes {route.places[0]} elements and gives {route.places[1]}"
            raise InvalidCall(
                f"{program.name}: rank {self._rank} {wanted}, not {array.size} and {out.size}"
            )
        return route
