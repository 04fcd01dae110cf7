"""The algorithms by name, and programs by request."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hal.core.values import CollectiveKind
from stack.comm.plan.error import PlanError
from stack.comm.plan.generate import (
    binomial,
    bruck,
    direct,
    doubling,
    exchange,
    halving,
    hierarchy,
    ring,
    signals,
    trees,
)
from stack.comm.plan.generate.request import Generator, Request, draft
from stack.comm.plan.program import REDUCING, ChunkPlace, PlanKind, PointKind, Program, blocks

Kind = CollectiveKind

ALGORITHMS: Mapping[PlanKind, Mapping[str, Generator]] = MappingProxyType(
    {
        Kind.ALL_REDUCE: {
            "ring": ring.all_reduce,
            "recursive-doubling": doubling.all_reduce,
            "halving-doubling": halving.all_reduce,
            "double-tree": trees.all_reduce,
            "direct": direct.all_reduce,
            "rank-order": direct.all_reduce_in_order,
            "hierarchical": hierarchy.all_reduce,
        },
        Kind.REDUCE: {
            "binomial": binomial.reduce,
            "chain": ring.reduce,
            "direct": direct.reduce,
        },
        Kind.BROADCAST: {
            "binomial": binomial.broadcast,
            "chain": ring.broadcast,
            "direct": direct.move,
        },
        Kind.ALL_GATHER: {
            "ring": ring.all_gather,
            "recursive-doubling": doubling.all_gather,
            "bruck": bruck.all_gather,
            "direct": direct.move,
        },
        Kind.REDUCE_SCATTER: {
            "ring": ring.reduce_scatter,
            "halving": halving.reduce_scatter,
            "direct": direct.reduce_scatter,
            "rank-order": direct.reduce_scatter_in_order,
        },
        Kind.ALL_TO_ALL: {
            "pairwise": direct.pairwise,
            "bruck": bruck.all_to_all,
            "direct": direct.move,
            "hierarchical": exchange.all_to_all,
        },
        Kind.ALL_TO_ALL_V: {
            "pairwise": direct.pairwise,
            "bruck": bruck.all_to_all,
            "direct": direct.move,
            "hierarchical": exchange.all_to_all,
        },
        Kind.GATHER: {"binomial": binomial.gather, "direct": direct.move},
        Kind.SCATTER: {"binomial": binomial.scatter, "direct": direct.move},
        Kind.BARRIER: {"dissemination": signals.barrier},
        PointKind.SEND_RECV: {"direct": direct.move},
    }
)
"""The generators of each kind by the name of their algorithm."""

CUTTING = frozenset(
    [
        *((Kind.ALL_REDUCE, name) for name in ("ring", "double-tree", "direct", "rank-order")),
        *((Kind.REDUCE_SCATTER, name) for name in ("ring", "direct", "rank-order")),
        *((Kind.REDUCE, name) for name in ("binomial", "chain", "direct")),
        *((Kind.BROADCAST, name) for name in ("binomial", "chain")),
        (Kind.ALL_GATHER, "ring"),
    ]
)
"""Kinds and algorithms that `Request.cut` means something to."""

HIERARCHICAL = "hierarchical"
"""The algorithms of this name need `Request.places`."""


def build(algorithm: str, request: Request) -> Program:
    """The program of an algorithm. It is not checked here; `check.check` does that.

    Raises PlanError for an algorithm that the kind does not have, and for a request that cannot be.
    """
    known = ALGORITHMS[request.kind]
    if algorithm not in known:
        names = ", ".join(known)
        raise PlanError(f"{request.kind.value} has the algorithms {names}; got {algorithm!r}")
    if request.size < 1 or request.cut < 1:
        raise PlanError(f"size and cut are 1 or more, are {request.size} and {request.cut}")
    depths = {len(place) for place in request.places}
    if request.places and (len(request.places) != request.size or len(depths) != 1):
        raise PlanError(
            f"places say where each of the {request.size} ranks is, all with the same number of "
            f"levels; got {request.places}"
        )
    if request.size == 1:
        # Among one rank: the output is the input
        made = draft(algorithm, request, 1)
        shape = made.shape
        wanted = blocks(shape, 0, ChunkPlace.OUTPUT)
        given, put = [made.given(0, b) for b in wanted], [made.result(0, b) for b in wanted]
        if wanted and shape.in_place and not made.same(0, given[0], put[0]):
            aside = made.scratch(0, wanted)
            made.copy(0, given, aside)
            given = aside
        made.copy(0, given, put, final=shape.kind in REDUCING)
        return made.program()
    return known[algorithm](request)
