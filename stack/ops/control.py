"""Loops: a graph of its own, a step, that a plan runs as often as is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.tile.node import Node, Type, substitute, toposort
from stack.ops.adjoint import adjoints
from stack.ops.binary import where
from stack.ops.hoist import addends, products_before, sum_of_all_steps, summed_after
from stack.ops.leaves import const, full, full_like
from stack.ops.leaves import input as leaf
from stack.ops.movement import broadcast, reshape, slice_axis
from stack.ops.operator import Attrs, OpKind
from stack.ops.rules import need
from stack.ops.table import ALL, OPS, define, unary

__all__ = [
    "UNBOUNDED",
    "LoopBody",
    "Results",
    "detached",
    "loop",
    "parts_of",
    "renumbered",
    "results_of",
]

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

    def derivative(self, i: int, d: Node) -> Node | None:
        """That by one of them, of the derivative by the node of its element type, which is a sum of
        those by parts of it; None where all of these are others."""
        begin, size = dict(self.places(d.dtype))[i], self.types[i].size
        own: list[Node] = []
        for each in (a.moved(a.value) for a in addends(d)):
            if each.op != "pad" or each["value"] != 0:
                return self.of(i, d)
            (low,), (high,) = each["lo"], each["hi"]
            if (low, d.shape[0] - high) == (begin, begin + size):
                own.append(reshape(each.srcs[0], self.types[i].shape))
            elif low < begin + size and begin < d.shape[0] - high:
                return self.of(i, d)
        return reduce(_add, own) if own else None


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


@dataclass(frozen=True, slots=True)
class _Step:
    """A body's derivatives, over leaves that are numbered anew."""

    inputs: tuple[Node, ...]
    by_carried: Mapping[int, Node]
    """The derivatives by carried values after the step, which are given."""
    by_stacked: Mapping[int, Node]
    """Those by what the step gives, which are given."""
    found: Mapping[Node, Node]
    """Those by inputs."""
    read: Mapping[Node, int]
    """What the step gave, which is not computed again, with its number among the outputs."""
    again: Mapping[Node, Node]
    """The leaf in which each of these is read."""


def _differentiated(
    body: LoopBody,
    carried: int,
    sloped: Sequence[int],
    sources: Sequence[int],
    number: Iterator[int],
) -> _Step:
    """The derivatives of a body by those of the carried values `sloped` and the outputs `sources`;
    `number` gives the leaves' slots."""
    own = tuple(leaf(next(number), x.type) for x in body.inputs)
    outputs = substitute(body.outputs, dict(zip(body.inputs, own, strict=True)))
    by_carried = {i: leaf(next(number), outputs[i].type) for i in sloped}
    by_stacked = {i: leaf(next(number), outputs[i].type) for i in sources}
    seeds = [(outputs[i], x) for i, x in (*by_carried.items(), *by_stacked.items())]
    floats = {x for x in own if x.dtype.is_float}
    found = adjoints(seeds, floats.__contains__)
    last = len(outputs) - carried
    read = {outputs[i]: i for i in range(carried, last) if outputs[i].srcs}
    again = {x: leaf(next(number), x.type) for x in read}
    read_again = dict(zip(found, substitute(found.values(), again), strict=True))
    return _Step(own, by_carried, by_stacked, read_again, read, again)


def _gradient(n: Node, d: Node) -> tuple[Node | None, ...]:
    """A loop backwards over the values that were carried into each step.

    It carries the derivatives by the carried values and the sums of those by the constants, but for
    sums that one product or reduction over all steps gives afterwards.
    """
    steps, tested = n["steps"], n["tested"]
    if steps == UNBOUNDED:
        raise InvalidCall(
            "a loop without a bound keeps no values to go back over, so it has no gradient; take a "
            "scan over a number of steps, or no_grad()"
        )
    consts, carried = n["consts"], n["carried"]
    derivatives = dict[int, Node]()
    results = results_of(dict(n.attrs))
    for i, _ in results.places(n.dtype):
        if (one := results.derivative(i, d)) is not None:
            derivatives[i] = one
    n = n if n["kept"] else _keeping(n)
    body, results = n["body"], results_of(dict(n.attrs))
    given, begins, rows = parts_of(n)

    def result(i: int) -> Node:
        # The node of a loop that has its results of an element type.
        return results.of(
            i, _LOOP(*n.srcs, **{**dict(n.attrs), "of": results.types[i].dtype.short})
        )

    sloped = [i for i, x in enumerate(begins) if x.dtype.is_float]
    sources = [i for i in derivatives if i >= carried and body.outputs[i].type.size]
    number = iter(range(1 << 30))
    step = _differentiated(body, carried, sloped, sources, number)
    own, found, again = step.inputs, step.found, step.again
    by_carried, by_stacked, last = step.by_carried, step.by_stacked, len(body.outputs) - carried
    stacks: dict[Node, Node] = {
        **{x: result(last + i) for i, x in enumerate(own[consts:][:carried])},
        **dict(zip(own[consts + carried :], rows, strict=True)),
        **{x: derivatives[i] for i, x in by_stacked.items()},
    }
    reached = [i for i in range(consts) if own[i] in found]
    by_row_of = {i: own[consts + carried + i] for i in range(len(rows))}
    by_row_of = {i: x for i, x in by_row_of.items() if x in found}
    going = leaf(next(number), Type((), DType.BOOL))

    def made(new: Node, old: Node) -> Node:
        """In a step that was made; else what was before."""
        if not tested or steps == 1:
            return new
        return where(broadcast(own[consts], new.shape), new, old)

    by_row = [made(found[x], full_like(x, 0)) for x in by_row_of.values()]
    parts = {i: [] if tested else addends(found[own[i]]) for i in reached}
    constants = {*own[:consts]}
    chosen, kept = summed_after(
        (a for each in parts.values() for a in each),
        (*stacks, *again.values(), *by_row),
        lambda x: x.op != "const" and x not in constants,
    )
    sums: dict[int, Node] = {}
    totals: list[Node] = []
    for i in reached:
        rest = [a.moved(a.value) for a in parts[i] if a not in chosen]
        if rest or tested:
            sums[i] = leaf(next(number), given[i].type)
            totals.append(
                made(_add(sums[i], reduce(_add, rest) if rest else found[own[i]]), sums[i])
            )
    by_begin = [
        made(found[x], old) if (x := own[consts + i]) in found else made(full_like(old, 0), old)
        for i, old in by_carried.items()
    ]
    once = tested and steps == 1
    flags = [const(False, DType.BOOL)] if once else []
    made_outputs = (*flags, *by_begin, *totals, *by_row, *kept)
    used = set(toposort(made_outputs))
    needed = {x: y for x, y in again.items() if y in used or y in kept}
    stacks |= {y: result(step.read[x]) for x, y in again.items()}
    leaves = (
        *own[:consts],
        *([going] if once else []),
        *by_carried.values(),
        *sums.values(),
        *own[consts:],
        *by_stacked.values(),
        *needed.values(),
    )
    backwards = renumbered(leaves, made_outputs)
    zeros = [derivatives[i] if i in derivatives else full_like(begins[i], 0) for i in sloped]
    first = [begins[0]] if once else []
    starts = [*first, *zeros, *(full_like(given[i], 0) for i in sums)]
    inner = [stacks[x] for x in leaves[consts + len(starts) :]]
    ends = loop(backwards, steps, given, starts, inner, reverse=not n["reverse"], tested=once)
    rest_of = iter(ends[len(first) :])
    answer: list[Node | None] = [None] * len(n.srcs)
    for i in sloped:
        answer[consts + i] = next(rest_of)
    for i in sums:
        answer[i] = next(rest_of)
    for i, x in zip(by_row_of, by_row, strict=True):
        answer[consts + carried + i] = stacks[x] = next(rest_of)
    stacks |= zip(kept, rest_of, strict=True)
    for i in reached:
        for a in parts[i]:
            if a in chosen:
                more, before = sum_of_all_steps(a, steps, stacks), answer[i]
                answer[i] = more if before is None else _add(before, more)
    return tuple(answer)


def _add(a: Node, b: Node) -> Node:
    return OPS["add"](a, b)


def parts_of(n: Node) -> tuple[Sequence[Node], Sequence[Node], Sequence[Node]]:
    """The constants, the carried values and the rows of a loop."""
    first, end = n["consts"], n["consts"] + n["carried"]
    return n.srcs[:first], n.srcs[first:end], n.srcs[end:]


def _keeping(n: Node) -> Node:
    """A loop that also keeps what gradients read."""
    consts, begins, rows = parts_of(n)
    attrs = {**dict(n.attrs), "body": _kept(n["body"], n["consts"], n["carried"]), "kept": True}
    return _LOOP(*consts, *begins, *rows, **attrs)


def _kept(body: LoopBody, consts: int, carried: int) -> LoopBody:
    """A body that further gives what its gradient reads: products, and at last the values carried
    into the step. What is elementwise is computed again."""
    outputs, floats = body.outputs, {x for x in body.inputs if x.dtype.is_float}
    number = iter(range(len(body.inputs), 1 << 30))
    seeds = [(x, leaf(next(number), x.type)) for x in outputs if x.dtype.is_float]
    found = adjoints(seeds, floats.__contains__).values()
    ends = {*body.inputs, *outputs[carried:]}
    reached = toposort(found, lambda x: () if x in ends else x.srcs)
    mine = set(toposort(outputs))
    products = [x for x in reached if x.op == "matmul" and x in mine and x not in ends]
    return LoopBody(body.inputs, (*outputs, *products, *body.inputs[consts:][:carried]))


def renumbered(inputs: Sequence[Node], outputs: Sequence[Node]) -> LoopBody:
    """A body with its inputs in slots 0, 1, ... in this order."""
    own = tuple(leaf(i, n.type) for i, n in enumerate(inputs))
    return LoopBody(own, substitute(outputs, dict(zip(inputs, own, strict=True))))


def _read(
    body: LoopBody, consts: Sequence[Node], carried: int, rows: Sequence[Node]
) -> tuple[LoopBody, Sequence[Node], Sequence[Node]]:
    """A body without the constants and rows that it does not read, and those that it reads."""
    used, first = set(toposort(body.outputs)), len(consts)
    shared, carries, own = (
        body.inputs[:first],
        body.inputs[first:][:carried],
        body.inputs[first + carried :],
    )
    if used.issuperset((*shared, *own)):
        return body, consts, rows
    kept = (*(x for x in shared if x in used), *carries, *(x for x in own if x in used))
    return (
        renumbered(kept, body.outputs),
        [x for x, inner in zip(consts, shared, strict=True) if inner in used],
        [x for x, inner in zip(rows, own, strict=True) if inner in used],
    )


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
    and what the step gives; with `kept` more comes behind that, which the gradient reads. With
    `reverse` the last rows come first, and what a step gives lies at the place of its rows. With
    `tested` the first carried value, a bool, is read by the host before each step and ends the
    loop. Raises GraphError.
    """
    if steps == 0:
        stacked = (n.type for n in body.outputs[len(carried) :])
        return (*carried, *(full((0, *t.shape), 0, t.dtype) for t in stacked))
    if not tested:
        # The body without products that all steps make at once, and the rows with these
        inputs, first = body.inputs, len(body.inputs) - len(rows)
        fixed = dict(zip(inputs, consts, strict=False))
        found = products_before(
            body.outputs, steps, fixed, dict(zip(inputs[first:], rows, strict=True))
        )
        if found:
            leaves = {x: leaf(len(inputs) + i, x.type) for i, x in enumerate(found)}
            outputs = substitute(body.outputs, leaves)
            body, rows = LoopBody((*inputs, *leaves.values()), outputs), [*rows, *found.values()]
    if kept:
        body = _kept(body, len(consts), len(carried))
    body, consts, rows = _read(body, consts, len(carried), rows)
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
