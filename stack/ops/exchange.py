"""What ranks compute together. The runtime hands these operations to a group's engine.

Each is a linear map of the values of all ranks, but for those by prod, min and max. Its gradient is
the adjoint: of the sum of the ranks' losses, by each rank's operand. Values of several ranks lie
along a first axis of their own, in the order of the ranks.

All ranks of a group compute such a node, in the same order among all such nodes, but for
`send_receive`. `group` is what the devices' engines call the group; `name` is what all ranks call
the node, and ranks whose calls of two names meet are told both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.values import Collective, CollectiveKind, ReduceKind
from hal.tile.node import Node, Type
from stack.comm.messages import Messages, RankCall
from stack.ops.binary import mul
from stack.ops.leaves import full_like
from stack.ops.operator import (
    Attrs,
    Exchange,
    Gradient,
    NDArray,
    Operator,
    OpKind,
    RankValues,
    Rule,
    Together,
)
from stack.ops.rules import KINDS, need
from stack.ops.sharding import Link, Sharding
from stack.ops.table import ALL, NUMBERS, OPS, define, widened

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "broadcast_from",
    "exchange_of",
    "is_exchange",
    "is_message",
    "reduce_scatter",
    "reduce_to",
    "send_receive",
]


def is_exchange(n: Node) -> bool:
    """Whether ranks compute the node together."""
    return OPS[n.op].kind is OpKind.EXCHANGE


def exchange_of(n: Node) -> Exchange:
    """How ranks compute a node of kind EXCHANGE."""
    found = OPS[n.op].exchange
    assert found is not None, f"{n.op} is no exchange"
    return found


def is_message(n: Node) -> bool:
    """Whether the node is for single other ranks, which wait for it: not all of a group compute
    it."""
    return is_exchange(n) and isinstance(exchange_of(n).call(n), Messages)


# what nodes are of


def _combined_type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    need(attrs["kind"] in (*KINDS, "avg"), f"kind is one of {', '.join(KINDS)}, avg")
    return srcs[0]


def _rooted_type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    need(type(attrs["root"]) is int and attrs["root"] >= 0, "the root is the number of a rank")
    kind = attrs.get("kind", "sum")
    need(kind in KINDS, f"kind is one of {', '.join(KINDS)}")
    return srcs[0]


def _gathered_type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    need(type(attrs["size"]) is int and attrs["size"] > 0, "the size of a group is at least 1")
    return srcs[0].with_shape((attrs["size"], *srcs[0].shape))


def _parts_type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    shape = srcs[0].shape
    need(bool(shape) and shape[0] > 0, "the first axis has a part for each rank")
    return srcs[0]


def _scattered_type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    whole = _parts_type([_combined_type(srcs, attrs, asked)], attrs, asked)
    return whole.with_shape(whole.shape[1:])


def _partial_type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    wanted = Type(_parts_type(srcs, attrs, asked).shape[:1], DType.I64)
    need(srcs[1] == wanted, f"the elements of each part are {wanted}")
    return srcs[0]


def _message_type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    sides: list[Any] = list(zip(*attrs["pairs"], strict=True)) or [(), ()]
    ranks = all(type(rank) is int and rank >= 0 for side in sides for rank in side)
    need(len(sides) == 2 and ranks, "pairs are (the rank that sends, the rank that receives)")
    once = all(len(set(side)) == len(side) for side in sides)
    need(once, "a rank sends at most one message and receives at most one")
    return srcs[0]


# what they mean

_FOLD: dict[str, Callable[[NDArray, NDArray], NDArray]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def _firsts(ranks: RankValues) -> list[NDArray]:
    """The ranks' first operands; all ranks have a part in it."""
    return [operands[0] for operands in ranks if operands is not None]


def _combined(n: Node, ranks: RankValues) -> NDArray:
    values = _firsts(ranks)
    with np.errstate(all="ignore"):
        total = reduce(_FOLD[n["kind"]], map(widened, values))
        if n["kind"] == "avg" and total.dtype.kind in "iu":
            down = total // len(values)  # towards zero, as the contract has it
            total = down + ((total < 0) & (down * len(values) != total))
        elif n["kind"] == "avg":
            total = total / total.dtype.type(len(values))
        return np.asarray(total).astype(values[0].dtype)


def _on_root(n: Node, ranks: RankValues) -> list[NDArray]:
    total = _combined(n, ranks)
    return [total if rank == n["root"] else np.zeros_like(total) for rank in range(len(ranks))]


def _partly_transposed(n: Node, ranks: RankValues) -> list[NDArray]:
    sent = []
    for x, counts in (operands for operands in ranks if operands is not None):
        flat = x.reshape(len(ranks), -1)
        kept = np.where(np.arange(flat.shape[1]) < counts[:, None], flat, 0)
        sent.append(kept.astype(x.dtype).reshape(x.shape))
    return list(np.stack(sent, 1))


def _delivered(n: Node, ranks: RankValues) -> list[NDArray]:
    given = next(operands[0] for operands in ranks if operands is not None)
    found = [np.zeros_like(given) for _ in ranks]
    for sender, receiver in n["pairs"]:
        if (operands := ranks[sender]) is not None:
            found[receiver] = operands[0]
    return found


# their gradients


def _by(n: Node) -> dict[str, str]:
    return {"group": n["group"], "name": f"gradient of {n['name'] or n.op}"}


def _need_sum(n: Node) -> None:
    if n["kind"] not in ("sum", "avg"):
        what = f"{n.op} by {n['kind']} among group {n['group']!r}"
        raise InvalidCall(f"{what} has no gradient; detach() its operand, or combine by sum or avg")


def _of_all_reduce(n: Node, d: Node) -> tuple[Node]:
    _need_sum(n)
    return (all_reduce(n["kind"], d, **_by(n)),)


def _of_reduce_to(n: Node, d: Node) -> tuple[Node]:
    _need_sum(n)
    return (broadcast_from(d, n["root"], **_by(n)),)


def _of_reduce_scatter(n: Node, d: Node) -> tuple[Node]:
    _need_sum(n)
    size = n.srcs[0].shape[0]
    by = _by(n)
    gathered = all_gather(d, size, by["group"], by["name"])
    return (mul(gathered, full_like(gathered, 1 / size)) if n["kind"] == "avg" else gathered,)


def _of_send_receive(n: Node, d: Node) -> tuple[Node | None, ...]:
    """What comes back waits for what was sent: else a plan could ask for it first, and the other
    rank, which cannot have it yet, would wait, too."""
    back = [pair[::-1] for pair in n["pairs"]]
    return (send_receive(d, back, **_by(n), after=(n,)), *[None] * (len(n.srcs) - 1))


def _of_all_to_all_v(n: Node, d: Node) -> tuple[Node, None]:
    """As much goes back to each rank as has come from it."""
    came = all_to_all(n.srcs[1], n["group"], f"elements of the {_by(n)['name']}")
    return all_to_all_v(d, came, **_by(n)), None


# rows


def _collective(kind: CollectiveKind, n: Node) -> RankCall:
    """The call that gives each rank its node."""
    attrs, (x, *_) = dict(n.attrs), n.srcs
    part = min(x.type.size, n.type.size)
    if kind is CollectiveKind.ALL_TO_ALL:
        part //= x.shape[0]
    by, root = ReduceKind(attrs.get("kind", "sum")), attrs.get("root", 0)
    return Collective(kind, n.dtype, part, by, root, name=n["name"])


def _row(
    name: str,
    attrs: str,
    meaning: str,
    rule: Rule,
    together: Together,
    gradient: Gradient,
    call: Callable[[Node], RankCall] | CollectiveKind,
    in_place: bool = False,
    lead: tuple[int, int] | None = (0, 0),
    arity: int | None = 1,
    reads: int = 1,
    **more: Any,
) -> Operator:
    def called(srcs: Sequence[Type], given: Attrs, asked: Type | None) -> Type:
        need(type(given["group"]) is str and given["group"] != "", "the group is a name")
        need(type(given["name"]) is str, "what it is called is a text")
        return rule(srcs, given, asked)

    def alone(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
        """The value in a group of one rank, which is the one that an interpreter has."""
        return together(n, [xs])[0]

    if isinstance(call, CollectiveKind):
        call = partial(_collective, call)
    return define(
        name,
        OpKind.EXCHANGE,
        NUMBERS if "kind" in attrs else ALL,
        meaning,
        arity,
        called,
        alone,
        gradient,
        attrs=frozenset({"group", "name", *attrs.split()}),
        marks=frozenset({"turn"}),
        exchange=Exchange(together, call, in_place, reads),
        sharding=Sharding(
            partial(_links, lead) if lead else _no_links, _linear, pointwise=in_place
        ),
        **more,
    )


def _links(lead: tuple[int, int], n: Node) -> list[Link]:
    """Ranks along another axis of the mesh have parts of every axis that is not the ranks' own,
    which the first `lead` axes of the operand and of the value are."""
    before, after = lead
    rest = (None,) * (len(n.srcs) - 1)
    return [Link((before + i, *rest), after + i) for i in range(len(n.srcs[0].shape) - before)]


def _no_links(n: Node) -> list[Link]:
    """A part of an axis has other elements first than the whole."""
    return []


def _linear(n: Node) -> Sequence[tuple[int, ...]]:
    is_sum = dict(n.attrs).get("kind", "sum") in ("sum", "avg")
    return ((0,),) if is_sum and n.dtype.is_float else ()


_ALL_REDUCE = _row(
    "all_reduce",
    "kind",
    "combined with the values of the other ranks of `group` by `kind`, in an order that all ranks "
    "share; f16 and bf16 accumulate in f32; the ranks call it `name`",
    _combined_type,
    lambda n, ranks: [_combined(n, ranks)] * len(ranks),
    _of_all_reduce,
    CollectiveKind.ALL_REDUCE,
    in_place=True,
)
_REDUCE_TO = _row(
    "reduce_to",
    "kind root",
    "on rank `root` as all_reduce, on the others 0",
    _rooted_type,
    _on_root,
    _of_reduce_to,
    CollectiveKind.REDUCE,
)
_BROADCAST_FROM = _row(
    "broadcast_from",
    "root",
    "the value of rank `root`",
    _rooted_type,
    lambda n, ranks: [_firsts(ranks)[n["root"]]] * len(ranks),
    lambda n, d: (reduce_to("sum", d, n["root"], **_by(n)),),
    CollectiveKind.BROADCAST,
    in_place=True,
)
_ALL_GATHER = _row(
    "all_gather",
    "size",
    "the first operands of all `size` ranks along a new first axis; it comes after the others",
    _gathered_type,
    lambda n, ranks: [np.stack(_firsts(ranks))] * len(ranks),
    lambda n, d: (reduce_scatter("sum", d, **_by(n)), *[None] * (len(n.srcs) - 1)),
    CollectiveKind.ALL_GATHER,
    lead=(0, 1),
    arity=None,
    data=(0,),
)
_REDUCE_SCATTER = _row(
    "reduce_scatter",
    "kind",
    "as all_reduce, of which rank i has index i of the first axis",
    _scattered_type,
    lambda n, ranks: list(_combined(n, ranks)),
    _of_reduce_scatter,
    CollectiveKind.REDUCE_SCATTER,
    lead=(1, 0),
)
_ALL_TO_ALL = _row(
    "all_to_all",
    "",
    "at index i of the first axis what rank i has at the index of this rank",
    _parts_type,
    lambda n, ranks: list(np.stack(_firsts(ranks), 1)),
    lambda n, d: (all_to_all(d, **_by(n)),),
    CollectiveKind.ALL_TO_ALL,
    lead=(1, 1),
)
_ALL_TO_ALL_V = _row(
    "all_to_all_v",
    "",
    "as all_to_all, of which only the first elements[j] elements go to rank j; 0 for the others",
    _partial_type,
    _partly_transposed,
    _of_all_to_all_v,
    CollectiveKind.ALL_TO_ALL,
    lead=None,
    arity=2,
    reads=2,
    data=(0,),
)
_SEND_RECEIVE = _row(
    "send_receive",
    "pairs",
    "the first operand of the rank that sends to this one, of `pairs` (from, to); 0 where none "
    "does; it comes after the other operands",
    _message_type,
    _delivered,
    _of_send_receive,
    lambda n: Messages(n.dtype, n.type.size, n["pairs"], n["name"]),
    arity=None,
    data=(0,),
)


def all_reduce(kind: str, x: Node, group: str, name: str = "") -> Node:
    """x combined element by element with those of the other ranks, by sum, prod, min, max or
    avg."""
    return _ALL_REDUCE(x, kind=kind, group=group, name=name)


def reduce_to(kind: str, x: Node, root: int, group: str, name: str = "") -> Node:
    """On rank `root` x combined with those of the other ranks by sum, prod, min or max; zeros on
    the others."""
    return _REDUCE_TO(x, kind=kind, root=root, group=group, name=name)


def broadcast_from(x: Node, root: int, group: str, name: str = "") -> Node:
    """The x of rank `root`, on all ranks."""
    return _BROADCAST_FROM(x, root=root, group=group, name=name)


def all_gather(x: Node, size: int, group: str, name: str = "", after: Sequence[Node] = ()) -> Node:
    """The x of all `size` ranks along a new first axis. It begins when the nodes in `after` are
    there."""
    return _ALL_GATHER(x, *after, size=size, group=group, name=name)


def reduce_scatter(kind: str, x: Node, group: str, name: str = "") -> Node:
    """The ranks' x combined as by `all_reduce`, of which rank i has index i of the first axis."""
    return _REDUCE_SCATTER(x, kind=kind, group=group, name=name)


def all_to_all(x: Node, group: str, name: str = "") -> Node:
    """Index j of the first axis of x goes to rank j, where it lies at the index of this rank."""
    return _ALL_TO_ALL(x, group=group, name=name)


def all_to_all_v(x: Node, elements: Node, group: str, name: str = "") -> Node:
    """As `all_to_all`, but of index j only the first elements[j] elements travel, in row-major
    order; the rest of the result is 0. `elements` is i64[ranks], data that is read when the call
    begins; a number that is negative or more than x has fails the call on all ranks."""
    return _ALL_TO_ALL_V(x, elements, group=group, name=name)


def send_receive(
    x: Node,
    pairs: Sequence[tuple[int, int]],
    group: str,
    name: str = "",
    after: Sequence[Node] = (),
) -> Node:
    """The x of the rank that sends to this one, of the pairs (from, to); zeros where none does.
    Only the ranks in pairs compute it; two ranks compute those between them in one order. It begins
    when the nodes in `after` are there. What an earlier one sends of them keeps its memory until
    then."""
    return _SEND_RECEIVE(x, *after, pairs=tuple(pairs), group=group, name=name)
