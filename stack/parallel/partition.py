"""A graph of whole tensors becomes the graph of a rank, for one axis of a mesh. Pure.

Several axes are several passes: what a rank of one axis computes is a graph of whole tensors for
the next. Every rank has the same graph; its number is an input, which is read when a plan runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, Type, toposort
from stack import ops as g
from stack.comm.messages import RankCall, kind_of, sent_bytes
from stack.ir.pattern import number_of
from stack.ops import OPS, exchange_of, is_exchange, renumbered
from stack.ops.error import GraphError
from stack.parallel.convert import (
    Line,
    absent,
    converted,
    joined,
    packed_positions,
    row_positions,
    sum_of_own,
)
from stack.parallel.loops import is_divided, steps_of
from stack.parallel.overlap import Pace, Travel
from stack.parallel.placement import (
    WHOLE,
    Owned,
    Packed,
    Placement,
    Replicated,
    Routed,
    Row,
    Sharded,
    Shares,
    fits,
    plain,
)
from stack.parallel.routed import Route, routes
from stack.parallel.solve import PRICE, Chooser, Price
from stack.parallel.way import Way
from stack.parallel.ways import candidates, cut_parts, divided, known_ways, ways


@dataclass(frozen=True, slots=True)
class Spread:
    """How a graph's values lie along an axis of a mesh. `inputs` has each input's placement, whole
    where it says nothing, and `computed` what the rank makes of it before anything reads it;
    `outputs` has each output's placement, in their order. `at` is this rank's number where the
    graph is for this rank alone: then ranks own values, and divide none. By `shares` ranks have
    unequal parts: where a value is sharded is decided as among as many ranks as there are pieces,
    alike on all ranks. Where rows are routed `shadows` says of how many groups a rank computes its
    own rows, and `parts` in how many parts the others travel, or `pace` what decides that."""

    size: int
    group: str
    inputs: Mapping[Node, Placement]
    computed: Mapping[Node, Placement]
    outputs: Sequence[Placement]
    at: int | None = None
    shares: Shares | None = None
    shadows: int = 0
    parts: int = 1
    pace: Pace | None = None

    @property
    def pieces(self) -> int:
        """The equal pieces that are divided."""
        return self.size if self.shares is None else self.shares.pieces


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's graph: `outputs`, the whole graph's inputs with those of the rank, and the node of
    the rank's number, a scalar i64 input. `whole` counts operators that every rank computes as a
    whole for want of a rule, with the bytes of their results. `made` has what the rank has of each
    value, in each placement in which it has that. `said` has what was chosen besides, in words."""

    outputs: tuple[Node, ...]
    inputs: Mapping[Node, Node]
    rank: Node
    whole: Mapping[str, int]
    made: Mapping[tuple[Node, Placement], Node]
    said: str = ""


def partitioned(
    outputs: Sequence[Node],
    spread: Spread,
    rank: Node,
    name: Callable[[str], str] = lambda what: what,
    price: Price = PRICE,
    only: Mapping[Node, Way] | None = None,
) -> Cut:
    """What each rank of an axis computes. `rank` is the input node for its number; `name` gives an
    exchange what all ranks call it. `only` has the ways of nodes for which there is no choice.

    Raises GraphError for a placement that does not fit its value.
    """
    order = list(toposort(outputs))
    stored = {n: spread.inputs.get(n, WHOLE) for n in order if n.op == "input"}
    read = {n: spread.computed.get(n, p) for n, p in stored.items()}
    for n, p in (*stored.items(), *read.items(), *zip(outputs, spread.outputs, strict=True)):
        if not fits(n.type, p, spread.pieces):
            raise GraphError(f"{n.type} cannot be placed as {p} on {spread.pieces} ranks")
    flats = {n.shape[0] for n, p in stored.items() if isinstance(p, Packed)}
    stored, read = ({n: plain(p) for n, p in given.items()} for given in (stored, read))
    wanted = [(n, plain(p)) for n, p in zip(outputs, spread.outputs, strict=True)]
    known = candidates(order, read, dict(wanted), flats, spread.pieces, spread.at is None)
    at = {n: i for i, n in enumerate(order)}
    options = {
        n: [only[n]]
        if only and n in only
        else [Way((), read[n])]
        if n.op == "input"
        else [w for w in known_ways(n, known, spread.pieces) if _is_in_time(w, at[n], at)]
        for n in order
    }
    chooser = Chooser(order, options, wanted, spread.pieces, price, spread.shadows)
    chosen = chooser.choose()
    parts, said = spread.parts, ""
    if spread.pace is not None:
        travel = Travel.of(order, chosen, spread.size)
        parts, said = travel.parts(spread.pace), travel.said(spread.pace)
    line = Line(
        spread.size,
        spread.group,
        rank,
        name,
        spread.at,
        spread.shares,
        spread.shadows,
        parts,
    )
    return replace(_Rewriting(order, chosen, stored, line, wanted).cut(), said=said)


def _is_in_time(way: Way, place: int, at: Mapping[Node, int]) -> bool:
    """Whether it is known, where values are made in this order, which rows the way sends where: a
    choice of experts that is computed again comes behind what was sent by the first one."""
    every = (*way.operands, way.result)
    return all(at[p.groups] < place for p in every if isinstance(p, Routed))


class _Rewriting:
    """The rank's nodes, by the whole ones and the placements in which they are there."""

    def __init__(
        self,
        order: Sequence[Node],
        chosen: Mapping[Node, Way],
        stored: Mapping[Node, Placement],
        line: Line,
        wanted: Sequence[tuple[Node, Placement]],
    ) -> None:
        self.order, self.chosen, self.stored, self.line = order, chosen, stored, line
        self.wanted = wanted
        self.made: dict[tuple[Node, Placement], Node] = {}
        self.whole: Counter[str] = Counter()
        self.routed: dict[tuple[Node, Routed], tuple[Node, ...]] = {}
        """Values whose rows are routed, in the parts in which these travel."""
        self.routes: dict[Routed, tuple[Route, ...]] = {}

    def cut(self) -> Cut:
        inputs: dict[Node, Node] = {}
        for n in self.order:
            way = self.chosen[n]
            if n.op == "input":
                own = self._part(n, self.stored[n])
                inputs[n] = own
                self.made[n, self.stored[n]] = own
                continue
            routed = next((p for p in (*way.operands, way.result) if isinstance(p, Routed)), None)
            if routed is not None:
                self._multiply(n, way, self._routes(routed))
                continue
            srcs = tuple(self._as(s, p) for s, p in zip(n.srcs, way.operands, strict=True))
            self.made[n, way.result] = self._local(n, way, srcs)
            is_whole = OPS[n.op].sharding is None and n.op != "const"
            if is_whole and not (n.op == "loop" and is_divided(way.operands)):
                self.whole[n.op] += n.type.nbytes
        outputs = tuple(self._as(n, p) for n, p in self.wanted)
        return Cut(outputs, inputs, self.line.rank, self.whole, self.made)

    def _as(self, n: Node, p: Placement) -> Node:
        """The value in a placement: from its own, or from the whole where the rank has that."""
        if (n, p) not in self.made:
            own = self.stored[n] if n.op == "input" else self.chosen[n].result
            if isinstance(own, Routed) and (n, WHOLE) not in self.made:
                if (n, Sharded(0)) not in self.made:
                    parts = zip(self._routes(own), self.routed[n, own], strict=True)
                    back = [route.back(part) for route, part in parts]
                    self.made[n, Sharded(0)] = joined(back, n)
                own = Sharded(0)
                if p == own:
                    return self.made[n, p]
            if n.op == "input" and self.chosen[n].result != own:
                self._as(n, WHOLE)
            if (
                isinstance(p, Owned)
                and isinstance(own, Sharded | Row | Packed | Owned)
                and own != p
            ):
                self._as(n, WHOLE)  # kept, as all ranks exchange it, where the value is absent
            whole = self.made.get((n, WHOLE))
            source = WHOLE if whole is not None else own
            x = self.made[n, source]
            self.made[n, p] = converted(x, n.type, source, p, self.line)
        return self.made[n, p]

    def _routes(self, p: Routed) -> tuple[Route, ...]:
        if p not in self.routes:
            self.routes[p] = routes(self._as(p.groups, Sharded(0)), p.count, self.line)
        return self.routes[p]

    def _there(self, n: Node, p: Routed) -> tuple[Node, ...]:
        """The parts of a value whose rows are routed."""
        if (n, p) not in self.routed:
            ways = self._routes(p)
            if n is p.groups:
                parts = tuple(route.groups for route in ways)
            elif number_of(n) is not None:
                whole = self._as(n, WHOLE)
                parts = tuple(g.slice_axis(whole, 0, 0, route.places) for route in ways)
            else:
                own = self._as(n, Sharded(0))
                parts = tuple(route.there(own) for route in ways)
            self.routed[n, p] = parts
        return self.routed[n, p]

    def _multiply(self, n: Node, way: Way, ways: tuple[Route, ...]) -> None:
        """An operator on rows that are routed: on each part of them, and sums of all rows at once,
        as no exchange that a part comes back by waits for these."""
        srcs = [
            self._there(s, p) if isinstance(p, Routed) else (self._as(s, p),) * len(ways)
            for s, p in zip(n.srcs, way.operands, strict=True)
        ]
        if isinstance(way.result, Routed):
            parts = zip(ways, *srcs, strict=True)
            self.routed[n, way.result] = tuple(_routed(n, own, route) for route, *own in parts)
        else:
            groups = n["groups"] // self.line.size + self.line.shadows
            sums = OPS[n.op](*(joined(parts, parts[0]) for parts in srcs), groups=groups)
            self.made[n, way.result] = ways[0].summed(sums)

    def _local(self, n: Node, way: Way, srcs: tuple[Node, ...]) -> Node:
        line = self.line
        if not line.has(way.result):
            return absent(n)
        if n.op == "loop" and is_divided(way.operands):
            return self._loop(n, way, srcs)
        if isinstance(way.result, Row | Packed):
            return self._flat(n, way.result, srcs)
        if n.op == "reduce" and isinstance(way.operands[0], Row | Packed):
            own = sum_of_own(srcs[0], way.operands[0], n.srcs[0].type, line)
            return g.reshape(own, n.shape)
        if n.op == "slice" and isinstance(way.operands[0], Packed):
            return self._sliced(n, way.operands[0], srcs[0])
        type = line.part(n.type, way.result)
        row = OPS[n.op].sharding
        if row is None or isinstance(way.result, Replicated | Owned):
            return OPS[n.op](*srcs, asked=type, **dict(n.attrs))
        share = None
        if way.share is not None:
            share = line.share(*way.share)
        return row.local(n, srcs, type, share)

    def _loop(self, n: Node, way: Way, srcs: tuple[Node, ...]) -> Node:
        """A loop whose steps compute this rank's part; its number along the axis is one constant
        more, where they read that."""
        body, consts = n["body"], n["consts"]
        steps = steps_of(n, way.operands, self.line.pieces, ways)
        stored = dict(zip(body.inputs, steps.inputs, strict=True))
        chosen = {x: Way((), p) for x, p in stored.items()} | dict(steps.chosen)
        line = replace(self.line, rank=rank_input(len(body.inputs)), name=_in_a_loop)
        wanted = list(zip(body.outputs, steps.outputs, strict=True))
        order = list(toposort(body.outputs))
        cut = _Rewriting(order, chosen, stored, line, wanted).cut()
        for op, nbytes in cut.whole.items():
            self.whole[op] += nbytes * n["steps"]
        own = [cut.inputs[x] if x in cut.inputs else self._part(x, p) for x, p in stored.items()]
        reads = [line.rank] if line.rank in set(toposort(cut.outputs)) else []
        attrs = dict(n.attrs) | {"consts": consts + len(reads)}
        attrs["body"] = renumbered((*own[:consts], *reads, *own[consts:]), cut.outputs)
        ranks = [self.line.rank] if reads else []
        return OPS["loop"](*srcs[:consts], *ranks, *srcs[consts:], **attrs)

    def _part(self, n: Node, p: Placement) -> Node:
        """The input for what this rank has of one."""
        return g.input(n["slot"], self.line.part(n.type, p))

    def _flat(self, n: Node, result: Row | Packed, srcs: tuple[Node, ...]) -> Node:
        """Operators on values that are flat on each rank."""
        line = self.line
        type = line.part(n.type, result)
        match n.op:
            case "expand":
                return g.broadcast(g.reshape(srcs[0], ()), type.shape)
            case "arange" if isinstance(result, Row):
                return g.cast(row_positions(type.shape[0], line), n.dtype)
            case "arange" if isinstance(result, Packed):
                return g.cast(packed_positions(result.parts, line), n.dtype)
            case "lt" if isinstance(result, Packed) and n.srcs[0].op == "arange":
                return _before_boundary(n, result) or g.lt(*srcs)
            case "slice":
                source = self.chosen_operand(n, 0)
                assert isinstance(source, Packed)
                return self._sliced(n, source, srcs[0])
            case "concat":
                assert isinstance(result, Packed)
                pieces = []
                cut = divided(result, [s.shape[0] for s in n.srcs]) or []
                for x, parts in zip(srcs, cut, strict=True):
                    local = sum(part.local for part in parts)
                    if local:
                        pieces.append(g.pad(x, (0,), (local - x.shape[0],)))
                return joined(pieces, n)
            case "pad":  # of the one part, which another rank may own
                own = srcs if type.shape[0] else ()
                return joined([g.pad(x, (0,), (type.shape[0] - x.shape[0],)) for x in own], n)
            case "reshape":
                return srcs[0]
            case _:
                return OPS[n.op](*srcs, asked=type, **dict(n.attrs))

    def chosen_operand(self, n: Node, i: int) -> Placement:
        return self.chosen[n].operands[i]

    def _sliced(self, n: Node, source: Packed, x: Node) -> Node:
        found = cut_parts(source, n["start"][0], n["stop"][0])
        assert found is not None
        begin, local, placement = found
        if isinstance(placement, Sharded):
            local = self.line.part(n.type, placement).size
        before = list(accumulate((part.local for part in source.parts), initial=0)).index(begin)
        begin = sum(map(self.line.local, source.parts[:before]))
        return g.slice_axis(x, 0, begin, begin + local)


def _in_a_loop(what: str) -> str:
    raise AssertionError(f"{what} is exchanged in a loop")


def _routed(n: Node, srcs: Sequence[Node], route: Route) -> Node:
    """An operator on the rows of a part."""
    match n.op:
        case "expand":
            return g.broadcast(g.reshape(srcs[0], ()), (route.places, *n.shape[1:]))
        case "grouped_matmul":
            x, own, groups = srcs
            return OPS[n.op](x, route.matrices(own), groups)
        case _:
            type = n.type.with_shape((route.places, *n.shape[1:]))
            return OPS[n.op](*srcs, asked=type, **dict(n.attrs))


def _before_boundary(n: Node, result: Packed) -> Node | None:
    """Which of a rank's elements of a flat array lie before a place where a part begins, as groups
    of parameters are told apart: the order of parts is that of the array, so their numbers there
    need not be written down. None for a place within a part."""
    end = number_of(n.srcs[1])
    begin = local = 0
    own = sum(part.local for part in result.parts)
    for part in result.parts:
        if begin == end:
            place = g.arange(own)
            return g.lt(place, g.full_like(place, local))
        begin, local = begin + part.size, local + part.local
    return None


def rank_input(slot: int) -> Node:
    """The input for a rank's number along an axis."""
    return g.input(slot, Type((), DType.I64))


def traffic(
    outputs: Sequence[Node], places: Mapping[str, tuple[int, int]]
) -> Counter[tuple[str, str]]:
    """The bytes that a rank sends in one run, by group and kind of call, of an "all_to_all_v" the
    most that it can; `places` has its number in each group and how many ranks that has."""
    found: Counter[tuple[str, str]] = Counter()
    for n, call in _calls(outputs):
        found[n["group"], _kind(n, call)] += sent_bytes(call, *places[n["group"]])
    return found


def calls(outputs: Sequence[Node]) -> Counter[tuple[str, str]]:
    """How many calls of each kind a run makes, by group."""
    return Counter((n["group"], _kind(n, call)) for n, call in _calls(outputs))


def _kind(n: Node, call: RankCall) -> str:
    return kind_of(call, exchange_of(n).reads > 1)


def _calls(outputs: Sequence[Node]) -> list[tuple[Node, RankCall]]:
    return [(n, exchange_of(n).call(n)) for n in toposort(outputs) if is_exchange(n)]
