"""What the tests ask generators for."""

from collections.abc import Iterable, Iterator
from itertools import product

from hal.core.values import CollectiveKind
from stack.comm.plan.generate.request import Request
from stack.comm.plan.generate.table import ALGORITHMS, HIERARCHICAL
from stack.comm.plan.program import REDUCING, PlanKind, PointKind

CASES = [(kind, name) for kind, known in ALGORITHMS.items() for name in known]
FOLLOWING = ("ring", "chain")
"""Algorithms that use `Request.places` where they are given."""
ROOTED = (
    CollectiveKind.REDUCE,
    CollectiveKind.BROADCAST,
    CollectiveKind.GATHER,
    CollectiveKind.SCATTER,
    PointKind.SEND_RECV,
)


def case_id(value: object) -> str:
    """A kind's or an algorithm's name."""
    return str(getattr(value, "value", value))


def layouts(size: int) -> list[tuple[tuple[int, ...], ...]]:
    """Hosts of four ranks; supernodes of hosts of three, the last ones smaller; hosts in turn."""
    return [
        tuple((r // 4,) for r in range(size)),
        tuple((r // 8, r % 8 // 3) for r in range(size)),
        tuple((r % 3,) for r in range(size)),
    ]


def requests(
    kind: PlanKind, name: str, sizes: Iterable[int], cuts: Iterable[int] = (1,)
) -> Iterator[Request]:
    """Every form of a request that a generator has a choice in."""
    flags, cuts = (False, True), tuple(cuts)
    for size in sizes:
        roots = sorted({0, size // 2, size - 1}) if kind in ROOTED else [0]
        wide = flags if kind in REDUCING else (False,)
        places = layouts(size) if name == HIERARCHICAL else [()]
        places += layouts(size)[2:] if name in FOLLOWING else []
        for root, in_place, wanted, cut, where in product(roots, flags, wide, cuts, places):
            target = (root + 1) % size
            yield Request(kind, size, root, target, in_place, wanted, cut, where)
