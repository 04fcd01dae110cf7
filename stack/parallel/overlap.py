"""In how many parts routed rows travel where nobody says: while one part is multiplied others are
on their way, but each part is some calls more, and reads all matrices again (FasterMoE, He et al.
2022). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hal.core.description import DeviceInfo, SpaceKind
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node
from stack.comm.choose.network import ACROSS, COPIED, INSIDE
from stack.ir.pattern import number_of
from stack.parallel.placement import Routed
from stack.parallel.way import Way

COUNTS = (1, 2, 4, 8)
"""The numbers of parts that are thought of."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What a rank does in a second: `operations` of products, bytes that it reads of its memory and
    that it sends; what an exchange takes besides, in seconds; and `hidden`, from 0 to 1: the share
    of the shorter one of products and exchanges that takes no time while both are under way."""

    operations: float
    read: float
    sent: float
    call_s: float
    hidden: float

    @staticmethod
    def of(info: DeviceInfo, is_across: bool) -> Pace:
        """As a device declares it; what it does not, and what lies between ranks of a host or
        `is_across` hosts, is assumed as for collectives. Where the device's memory is the host's,
        the processors that multiply are what sends, and nothing is hidden."""
        space = info.space(SpaceKind.GLOBAL)
        own = space is not None and not space.host_visible
        wire = ACROSS if is_across else INSIDE
        read = (space.bandwidth if space else 0.0) or info.declared.get("device_to_device", COPIED)
        hidden = min(1.0, max(0.0, info.declared.get("overlap", 2.0) - 1)) if own else 0.0
        fastest = max(info.dtypes.get(DType.F32, 0.0), read)
        return Pace(fastest, read, wire.bandwidth, wire.latency_s, hidden)

    @staticmethod
    def slowest(of: Iterable[Pace]) -> Pace:
        """That of ranks that wait for each other."""
        every = list(of)
        return Pace(
            min(p.operations for p in every),
            min(p.read for p in every),
            min(p.sent for p in every),
            max(p.call_s for p in every),
            min(p.hidden for p in every),
        )


@dataclass(frozen=True, slots=True)
class Travel:
    """What a rank does with rows that are routed, if all ranks are sent as many: `exchanges` there
    and back of so many bytes, `operations` of products with `matrices`, in bytes."""

    exchanges: int
    nbytes: int
    operations: float
    matrices: int

    @staticmethod
    def of(order: Sequence[Node], chosen: Mapping[Node, Way], ranks: int) -> Travel:
        """That of a graph whose operators are computed in these ways. Products of all rows at once
        count for nothing: no row waits for them."""
        there: dict[tuple[Node, Routed], None] = {}
        back: dict[Node, None] = {}
        operations, matrices = 0.0, 0
        for n in order:
            for s, p in zip(n.srcs, chosen[n].operands, strict=True):
                own = chosen[s].result
                if isinstance(p, Routed) and own != p and s is not p.groups and not _is_number(s):
                    there[s, p] = None
                if isinstance(own, Routed) and own != p:
                    back[s] = None
            if n.op == "grouped_matmul" and isinstance(chosen[n].result, Routed):
                operations += 2.0 * n.type.size * n.srcs[0].shape[-1] / ranks
                matrices += n.srcs[1].type.nbytes // ranks
        moved = [*(s for s, _ in there), *back]
        nbytes = sum(n.type.nbytes * (ranks - 1) // ranks // ranks for n in moved)
        return Travel(len(moved), nbytes, operations, matrices)

    def seconds(self, parts: int, pace: Pace) -> float:
        """What it takes in so many parts: but for the first one each part's products hide
        exchanges, or these products, as far as anything is hidden."""
        products = self.operations / pace.operations + (parts - 1) * self.matrices / pace.read
        exchanges = self.nbytes / pace.sent + parts * self.exchanges * pace.call_s
        return products + exchanges - pace.hidden * min(products, exchanges) * (1 - 1 / parts)

    def parts(self, pace: Pace) -> int:
        """The number of parts that takes least."""
        return min(COUNTS, key=lambda parts: self.seconds(parts, pace))

    def said(self, pace: Pace) -> str:
        """What is chosen and why; "" where no row travels."""
        if not self.exchanges:
            return ""
        times = ", ".join(f"{1e6 * self.seconds(n, pace):.0f} us in {n}" for n in COUNTS)
        parts = self.parts(pace)
        return f"rows travel in {parts} part{'s' * (parts > 1)}, of {times} as they are predicted"


def _is_number(n: Node) -> bool:
    return number_of(n) is not None
