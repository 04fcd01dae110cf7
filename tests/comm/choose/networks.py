"""Networks to choose on."""

from stack.comm.choose.network import Network, Wire
from stack.comm.choose.predict import Element, predict
from stack.comm.plan.check_order import order_of
from stack.comm.plan.generate.request import Request
from stack.comm.plan.generate.table import build
from stack.comm.plan.program import even_lengths

FLOAT = Element(4, 4)
HALF = Element(2, 4)
FREE = 1e30
"""Bytes/s of what costs nothing."""


def network(
    size: int,
    latency_s: float = 1e-5,
    bandwidth: float = 1e9,
    overhead_s: float = 0.0,
    added: float = FREE,
    hosts: int = 1,
    between: Wire | None = None,
) -> Network:
    """Equal wires, but for those between hosts, which have equal numbers of ranks."""
    places = tuple((rank * hosts // size,) for rank in range(size))
    inside = Wire(latency_s, bandwidth)
    rows = tuple(
        tuple(inside if here == there else between or inside for there in places) for here in places
    )
    return Network(rows, places, overhead_s, (FREE,) * size, (added,) * size)


def seconds(kind, name, net, count, cut=1, **wishes) -> float:
    """The predicted time of an algorithm for `count` float32 elements."""
    places = net.places if name == "hierarchical" else ()
    program = build(name, Request(kind, net.size, cut=cut, places=places, **wishes))
    lengths = even_lengths(kind, net.size, count)
    return predict(program, order_of(program), lengths, FLOAT, net)
