"""Values that only a later pass over the same row reads: they never leave the cache."""

from __future__ import annotations

from collections.abc import Container
from math import prod

from hal.core.description import DeviceInfo, SpaceKind
from hal.tile.node import Node
from hal.tile.size import equal, is_fixed
from stack.compiler.graph.cluster import Cluster, Homes, Nest, settle
from stack.compiler.graph.roots import Home
from stack.compiler.graph.space import elements

ROW_SCRATCH_NBYTES = 1 << 18
"""Scratch memory for rows in one kernel; longer rows go to a temporary."""


def read_again(nest: Nest) -> frozenset[Node]:
    """Roots that a later pass over the row reads from memory."""
    level = nest.passes()
    return frozenset(
        r.root
        for root, found in nest.reads.items()
        for r in found
        if r.root in level and r.root.op != "reduce" and level[r.root] < level[root]
    )


def with_scratch(
    cluster: Cluster, stored: Container[Node], homes: Homes, info: DeviceInfo
) -> tuple[Nest, dict[Node, Home]]:
    """The cluster's nest with scratch memory for what only a later pass reads, and those homes."""
    # Half of the device's scratch memory at most: a lowering may need some for itself.
    space = info.space(SpaceKind.SCRATCHPAD)
    budget = min(ROW_SCRATCH_NBYTES, space.nbytes // 2) if space else 0
    kinds = [reduced for _, reduced in cluster.domain]
    rows: dict[Node, Home] = {}
    if kinds in ([False, True], [True]):
        length, again = cluster.domain[-1][0], read_again(cluster.nest)
        count = prod(size for size, _ in cluster.domain[:-1])
        for root in cluster.roots:
            nbytes = length * root.dtype.nbytes
            if root not in again or root in stored or not is_fixed(nbytes) or nbytes > budget:
                continue
            if equal(root.type.size, elements(cluster.domain)):
                budget -= nbytes
                rows[root] = Home("scratch", len(rows), 0, length, 0, count)
    if not rows:
        return cluster.nest, rows
    nest = settle(cluster.kind, cluster.domain, cluster.roots, {**homes, **rows})
    assert isinstance(nest, Nest), f"rows in scratch memory have a place: {nest}"
    return nest, rows
