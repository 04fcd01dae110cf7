"""Loops: a graph of its own, a step, that a plan runs as often as is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.tile.node import Node, Type, substitute, toposort
from stack.ops.adjoint import adjoints
from stack.ops.binary import where
from stack.ops.leaves import const, full, full_like
from stack.ops.leaves import input as leaf
from stack.ops.movement import broadcast, reshape, slice_axis
from stack.ops.operator import Attrs, OpKind
from stack.ops.rules import need
from stack.ops.table import ALL, OPS, define, unary

__all__ = ["UNBOUNDED", "LoopBody", "Results", "detached", "loop", "parts_of", "results_of"]

UNBOUNDED = 1 << 62
"""The steps of a loop that only its first carried value ends."""

detached = unary(
    "detached",
    ALL,
    "x, through which no derivative flows",
    lambda n, xs: xs[0],
    decompose=lambda n: n.srcs[0],
)


@dataclass(frozen=True, slots=True)
class LoopBody:
    """A step as a graph: outputs from inputs, which are nodes of op "input" in slots 0, 1, ..."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]

    def __repr__(self) -> str:
        """All of it: equal bodies have equal texts."""
        at = {n: f"%{i}" for i, n in enumerate(self.inputs)}
        lines = [f"{at[n]}: {n.type}" for n in self.inputs]
        for n in toposort(self.outputs):
            if n not in at:
                at[n] = f"%{len(at)}"
                inside = [*(at[s] for s in n.srcs), *(f"{k}={v!r}" for k, v in n.attrs)]
                lines.append(f"{at[n]} = {n.op}({', '.join(inside)}): {n.type}")
        return "{" + "; ".join([*lines, ", ".join(at[n] for n in self.outputs)]) + "}"


@dataclass(frozen=True, slots=True)
class Results:
    """What a loop gives: the carried values after the last step, then what each step gives, stacked
    along a first axis. The node of an element type has those of that type, one after the other."""

    types: tuple[Type, ...]

    def places(self, dtype: DType) -> list[tuple[int, int]]:
        """(number, first element in the node) of those of an element type."""
        own = [(i, t.size) for i, t in enumerate(self.types) if t.dtype is dtype]
        begins = accumulate((size for _, size in own), initial=0)
        return [(i, begin) for (i, _), begin in zip(own, begins, strict=False)]

    def size(self, dtype: DType) -> int:
        """How many elements the node has."""
        return sum(t.size for t in self.types if t.dtype is dtype)

    def of(self, i: int, packed: Node) -> Node:
        """One of them, of the node of its element type."""
        begin, wanted = dict(self.places(packed.dtype))[i], self.types[i]
        return reshape(slice_axis(packed, 0, begin, begin + wanted.size), wanted.shape)


def results_of(attrs: Attrs) -> Results:
    """What a loop with these attributes gives."""
    body, carried, steps = attrs["body"], attrs["carried"], attrs["steps"]
    types = [n.type for n in body.outputs]
    stacked = (t.with_shape((steps, *t.shape)) for t in types[carried:])
    return Results((*types[:carried], *stacked))


def _type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    body: LoopBody = attrs["body"]
    consts, carried, steps = attrs["consts"], attrs["carried"], attrs["steps"]
    rows = srcs[consts + carried :]
    for t in rows:
        need(t.shape[:1] == (steps,), f"a row is read in each of {steps} steps, of {t}")
    given = [*srcs[: consts + carried], *(t.with_shape(t.shape[1:]) for t in rows)]
    wanted = [n.type for n in body.inputs]
    need(given == wanted, f"the body takes {', '.join(map(str, wanted))}")
    for before, n in zip(given[consts:], body.outputs[:carried], strict=False):
        need(before == n.type, f"the body makes {n.type} of the carried {before}")
    if attrs["tested"]:
        first = given[consts] if carried else None
        need(first == Type((), DType.BOOL), "the first carried value says whether to go on")
    for n in toposort(body.outputs):
        need(OPS[n.op].kind is not OpKind.EXCHANGE, "ranks exchange nothing in a loop")
    dtype = next((d for d in DType if d.short == attrs["of"]), None)
    need(dtype is not None, f"there is no element type {attrs['of']!r}")
    assert dtype is not None
    return Type((results_of(attrs).size(dtype),), dtype)


def _gradient(n: Node, d: Node) -> tuple[Node | None, ...]:
    """A loop backwards over the values that were carried into each step.

    It carries the derivatives by the carried values and the sums of those by the constants.
    """
    body, steps, tested = n["body"], n["steps"], n["tested"]
    if steps == UNBOUNDED:
        raise InvalidCall(
            "a loop without a bound keeps no values to go back over, so it has no gradient; take a "
            "scan over a number of steps, or no_grad()"
        )
    consts, carried = n["consts"], n["carried"]
    results, derivatives = results_of(dict(n.attrs)), dict[int, Node]()
    for i, _ in results.places(n.dtype):
        derivatives[i] = results.of(i, d)
    given, begins, rows = (
        n.srcs[:consts],
        n.srcs[consts : consts + carried],
        n.srcs[consts + carried :],
    )
    kept = _kept(n, given, begins, rows)

    # the body's graph, in which the loop's operands have other numbers
    sloped = [i for i, x in enumerate(begins) if x.dtype.is_float]
    stacked = [i for i in derivatives if i >= carried and body.outputs[i].type.size]
    number = iter(range(1 << 30))
    own = tuple(leaf(next(number), x.type) for x in body.inputs)
    outputs = substitute(body.outputs, dict(zip(body.inputs, own, strict=True)))
    by_carried = {i: leaf(next(number), begins[i].type) for i in sloped}
    by_stacked = {i: leaf(next(number), body.outputs[i].type) for i in stacked}
    seeds = [(outputs[i], x) for i, x in (*by_carried.items(), *by_stacked.items())]
    floats = {x for x in own if x.dtype.is_float}
    found = adjoints(seeds, floats.__contains__)
    reached = [i for i in range(consts) if own[i] in found]
    sums = {i: leaf(next(number), given[i].type) for i in reached}
    going = leaf(next(number), Type((), DType.BOOL))
    read = [i for i in range(len(rows)) if own[consts + carried + i] in found]

    def made(new: Node, old: Node) -> Node:
        """In a step that was made; else what was before."""
        if not tested or steps == 1:
            return new
        return where(broadcast(own[consts], new.shape), new, old)

    by_begin = [
        made(found[x], old) if (x := own[consts + i]) in found else made(full_like(old, 0), old)
        for i, old in by_carried.items()
    ]
    totals = [made(_add(old, found[own[i]]), old) for i, old in sums.items()]
    by_row = [made(found[x], full_like(x, 0)) for i in read for x in (own[consts + carried + i],)]
    once = tested and steps == 1
    flags = [const(False, DType.BOOL)] if once else []
    leaves = (
        *own[:consts],
        *([going] if once else []),
        *by_carried.values(),
        *sums.values(),
        *own[consts:],
        *by_stacked.values(),
    )
    backwards = _renumbered(leaves, (*flags, *by_begin, *totals, *by_row))
    zeros = [derivatives[i] if i in derivatives else full_like(begins[i], 0) for i in sloped]
    first = [begins[0]] if once else []
    starts = [*first, *zeros, *(full_like(given[i], 0) for i in reached)]
    stacks = [*kept, *rows, *(derivatives[i] for i in stacked)]
    ends = loop(backwards, steps, given, starts, stacks, reverse=not n["reverse"], tested=once)
    rest = iter(ends[len(first) :])
    answer: list[Node | None] = [None] * len(n.srcs)
    for i in sloped:
        answer[consts + i] = next(rest)
    for i in reached:
        answer[i] = next(rest)
    for i in read:
        answer[consts + carried + i] = next(rest)
    return tuple(answer)


def _add(a: Node, b: Node) -> Node:
    return OPS["add"](a, b)


def parts_of(n: Node) -> tuple[Sequence[Node], Sequence[Node], Sequence[Node]]:
    """The constants, the carried values and the rows of a loop."""
    first, end = n["consts"], n["consts"] + n["carried"]
    return n.srcs[:first], n.srcs[first:end], n.srcs[end:]


def _kept(
    n: Node, given: Sequence[Node], begins: Sequence[Node], rows: Sequence[Node]
) -> Sequence[Node]:
    """What was carried into each step: the last that a loop stacks that has them, or that of one
    more loop."""
    body, carried = n["body"], n["carried"]
    if not n["kept"]:
        whole = LoopBody(body.inputs, (*body.outputs, *body.inputs[len(given) :][:carried]))
        more = loop(whole, n["steps"], given, begins, rows, n["reverse"], n["tested"], True)
        return more[len(more) - carried :]
    results = results_of(dict(n.attrs))
    last = range(len(results.types) - carried, len(results.types))
    return [results.of(i, _of(n, results.types[i].dtype)) for i in last]


def _of(n: Node, dtype: DType) -> Node:
    """The node of a loop that has its results of an element type."""
    return _LOOP(*n.srcs, **{**dict(n.attrs), "of": dtype.short})


def _renumbered(inputs: Sequence[Node], outputs: Sequence[Node]) -> LoopBody:
    """A body with its inputs in slots 0, 1, ... in this order."""
    own = tuple(leaf(i, n.type) for i, n in enumerate(inputs))
    return LoopBody(own, substitute(outputs, dict(zip(inputs, own, strict=True))))


_LOOP = define(
    "loop",
    OpKind.LOOP,
    ALL,
    "`steps` runs of `body` on the first `consts` operands, on `carried` values, at first the "
    "operands after them and then its first outputs, and on row i of all others; the carried "
    "values after the last step and then the other outputs of each step, stacked, of element type "
    "`of`, flat and one after the other. `reverse`: the last row comes first. `tested`: a step "
    "where the first carried value is False, and all after it, is not made, and stacked are zeros",
    None,
    _type,
    None,
    _gradient,
    attrs=frozenset({"body", "steps", "consts", "carried", "reverse", "tested", "kept", "of"}),
    data=(0,),
)


def loop(
    body: LoopBody,
    steps: int,
    consts: Sequence[Node],
    carried: Sequence[Node],
    rows: Sequence[Node],
    reverse: bool = False,
    tested: bool = False,
    kept: bool = False,
) -> tuple[Node, ...]:
    """The carried values after the last of `steps` steps, then what each step gives, stacked along
    a first axis.

    `body` makes of constants, carried values and a row of each of `rows` the next carried values
    and what the step gives; with `kept` the last of that are the values carried into it, by which
    gradients go backwards. With `reverse` the last rows come first, and what a step gives lies at
    the place of its rows. With `tested` the first carried value, a bool, is read by the host before
    each step and ends the loop. Raises GraphError.
    """
    if steps == 0:
        stacked = (n.type for n in body.outputs[len(carried) :])
        return (*carried, *(full((0, *t.shape), 0, t.dtype) for t in stacked))
    attrs: dict[str, Any] = {
        "body": body,
        "steps": steps,
        "consts": len(consts),
        "carried": len(carried),
    }
    attrs |= {"reverse": reverse, "tested": tested, "kept": kept}
    results = results_of(attrs)
    made = {
        dtype: _LOOP(*consts, *carried, *rows, of=dtype.short, **attrs)
        for dtype in dict.fromkeys(t.dtype for t in results.types)
    }
    return tuple(results.of(i, made[t.dtype]) for i, t in enumerate(results.types))
