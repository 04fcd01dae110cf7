"""Which chunk program a call of a group on several hosts follows, and its form for the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.core.values import CollectiveKind
from stack.comm.choose.choices import AlgorithmChoices
from stack.comm.choose.chooser import AlgorithmChooser, Demand
from stack.comm.choose.network import network_of_hosts
from stack.comm.choose.predict import Element
from stack.comm.engine.library import ffi
from stack.comm.plan.check import check
from stack.comm.plan.flat import flatten
from stack.comm.plan.go_on import GoOn, always
from stack.comm.plan.program import EXCHANGING, ChunkPlace, Program, even_lengths, extents

Array = NDArray[Any]
Kind = CollectiveKind

IN_PLACE = (Kind.ALL_REDUCE, Kind.BROADCAST)
"""Kinds that run in their destination, into which the source is copied first."""
KEPT = 256
"""Routes that a group keeps, the last ones used."""


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A rank's steps for given lengths: `native`, as the engine takes them, points into `keep`.
    `name` is that of the program; `places` are the elements of INPUT, OUTPUT and SCRATCH."""

    name: str
    places: tuple[int, int, int]
    native: Any
    keep: tuple[NDArray[np.int64], NDArray[np.int64]]


def route_of(program: Program, rank: int, lengths: Sequence[int], go_on: GoOn = always) -> Route:
    """A rank's part of a program that `stack.comm.plan.check` accepts."""
    go_on()
    flat = flatten(program, rank, lengths)
    head = repr((replace(program, steps=()), tuple(lengths)))
    made = hashlib.blake2b(head.encode(), digest_size=8)
    for of_rank in program.steps:
        go_on()
        made.update(repr(of_rank).encode())
    digest = int.from_bytes(made.digest()) | 1
    steps, after = np.ascontiguousarray(flat.steps), np.ascontiguousarray(flat.after)
    facts = {
        "digest": digest,
        "steps": ffi.cast("int64_t *", steps.ctypes.data),
        "after": ffi.cast("int64_t *", after.ctypes.data),
        "nsteps": len(steps),
        "nafter": len(after),
        "scratch_count": flat.places[2],
    }
    return Route(program.name, flat.places, ffi.new("he_route *", facts), (steps, after))


class Routes:
    """The routes of a rank in a group; `hosts[r]` tells the host of rank r. Ranks choose the same
    programs, as they know the same hosts, rows and rules. `go_on` raises once the group has failed:
    a choice may take longer than the news of a failure."""

    def __init__(
        self,
        rank: int,
        hosts: tuple[int, ...],
        choices: AlgorithmChoices,
        go_on: GoOn,
    ) -> None:
        self._rank = rank
        self._size = len(hosts)
        self._chooser = AlgorithmChooser(
            network_of_hosts(hosts), choices.rows, choices.rules, go_on
        )
        self._go_on = go_on
        # the last one used is last; a cached method would hold itself, and with that its group's
        # descriptors until the collector comes
        self._kept: dict[tuple[CollectiveKind, tuple[int, ...], int, Element], Route] = {}

    def of(
        self, kind: CollectiveKind, count: int, counts: Sequence[int] | None, root: int, of: Element
    ) -> Route:
        """The route of a call of `count` elements for each rank, or of `counts`."""
        lengths = even_lengths(kind, self._size, count) if counts is None else tuple(counts)
        key = kind, lengths, max(root, 0), of
        route = self._kept.pop(key) if key in self._kept else self._route(*key)
        self._kept[key] = route
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return route

    def _route(
        self, kind: CollectiveKind, lengths: tuple[int, ...], root: int, of: Element
    ) -> Route:
        rows = zip(*[iter(lengths)] * self._size, strict=True) if kind in EXCHANGING else [lengths]
        nbytes = max(map(sum, rows)) * of.nbytes
        call = Demand(kind, nbytes, of, root, in_place=kind in IN_PLACE)
        return route_of(self._chooser.choose(call), self._rank, lengths, self._go_on)


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
            parts = len(extents(program, self._rank, ChunkPlace.INPUT))
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
