"""Patterns over expression DAGs: what a rewrite looks for.

op("add", capture("x"), constant(0), commutative=True)      x + 0 and 0 + x
op(("lt", "le"), capture("x"), capture("x"))                one node twice
op("cast", op("cast", capture("x"), dtype=DType.F32))       the inner cast is to f32
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node

Number = int | float | bool
Captures = dict[str, Node]
Predicate = Callable[[Node], bool]

_REPEATS = frozenset({"broadcast", "expand", "reshape"})
"""Operations under which a constant stays the same number everywhere."""


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """A condition on a node; make patterns with `op`, `capture` and `constant`.

    `ops` None: any operation. `srcs` None: sources are not looked at. `name` captures the node; the
    same name at two places wants the same node. `commutative`: two sources match in either order.
    """

    ops: tuple[str, ...] | None
    srcs: tuple[Pattern, ...] | None
    name: str
    checks: tuple[Predicate, ...]
    commutative: bool
    text: str

    def __str__(self) -> str:
        return self.text

    def orders(self) -> tuple[Pattern, ...]:
        """This pattern for every order of the commutative sources in it."""
        if self.srcs is None:
            return (self,)
        chosen = list(product(*(s.orders() for s in self.srcs)))
        swapped = [(b, a) for a, b in chosen] if self.commutative else []
        return tuple(
            Pattern(self.ops, srcs, self.name, self.checks, False, self.text)
            for srcs in (*chosen, *swapped)
        )


def op(
    ops: str | Iterable[str],
    *srcs: Pattern,
    name: str = "",
    dtype: DType | Iterable[DType] | None = None,
    kinds: str = "",
    shape: tuple[int, ...] | None = None,
    when: Predicate | None = None,
    commutative: bool = False,
    **attrs: Any,
) -> Pattern:
    """A node of one of the operations.

    `dtype` is one element type or several, `kinds` their `DType.kind`s, `attrs` attribute values.
    Without `srcs` the sources are not looked at; with them their number must be the same.
    """
    names = (ops,) if isinstance(ops, str) else tuple(ops)
    if commutative and len(srcs) != 2:
        raise ValueError(f"pattern {names}: commutative needs two sources, not {len(srcs)}")
    wanted = frozenset(attrs.items())
    checks = _type_checks(dtype, kinds, shape, when) + (
        (lambda n: wanted <= set(n.attrs),) if wanted else ()
    )
    inner = ", ".join([*map(str, srcs), *(f"{k}={v!r}" for k, v in attrs.items())])
    text = f"{'|'.join(names)}({inner})"
    return Pattern(names, srcs or None, name, checks, commutative, text)


def capture(
    name: str = "",
    *,
    dtype: DType | Iterable[DType] | None = None,
    kinds: str = "",
    shape: tuple[int, ...] | None = None,
    when: Predicate | None = None,
) -> Pattern:
    """Any node, captured under a name (not captured without one)."""
    return Pattern(None, None, name, _type_checks(dtype, kinds, shape, when), False, name or "_")


def constant(
    value: Number | None = None, name: str = "", *, when: Predicate | None = None
) -> Pattern:
    """A constant of that value (None: of any), also one that is repeated to a shape.

    0.0 is not -0.0, NaN is NaN, 1 is also 1.0 and True. `number_of(node)` reads a captured value.
    """

    def found(n: Node) -> bool:
        known = number_of(n)
        return known is not None and (value is None or same_number(known, value))

    checks = (found, *(() if when is None else (when,)))
    text = "constant" if value is None else repr(value)
    return Pattern(("const", *sorted(_REPEATS)), None, name, checks, False, text)


def number_of(node: Node) -> Number | None:
    """The value of a constant, or of one repeated to a shape; None for any other node."""
    while node.op in _REPEATS:
        node = node.srcs[0]
    if node.op != "const":
        return None
    value: Number = node["value"]
    return value


def same_number(a: Number, b: Number) -> bool:
    """Equality that tells 0.0 from -0.0 and takes NaN for NaN."""
    if a != a or b != b:
        return a != a and b != b
    return a == b and math.copysign(1, a) == math.copysign(1, b)


def match(pattern: Pattern, node: Node) -> Captures | None:
    """The captured nodes, or None when the pattern does not match."""
    for ordered in pattern.orders():
        captures: Captures = {}
        if match_ordered(ordered, node, captures):
            return captures
    return None


def match_ordered(pattern: Pattern, node: Node, captures: Captures) -> bool:
    """Match without looking at `commutative`; fills `captures`, with leftovers when it fails."""
    if pattern.ops is not None and node.op not in pattern.ops:
        return False
    if pattern.srcs is not None:
        if len(pattern.srcs) != len(node.srcs):
            return False
        for sub, src in zip(pattern.srcs, node.srcs, strict=True):
            if not match_ordered(sub, src, captures):
                return False
    for check in pattern.checks:
        if not check(node):
            return False
    return not pattern.name or captures.setdefault(pattern.name, node) is node


def _type_checks(
    dtype: DType | Iterable[DType] | None,
    kinds: str,
    shape: tuple[int, ...] | None,
    when: Predicate | None,
) -> tuple[Predicate, ...]:
    checks: list[Predicate] = []
    if dtype is not None:
        wanted = frozenset((dtype,) if isinstance(dtype, DType) else dtype)
        checks.append(lambda n: n.type.dtype in wanted)
    if kinds:
        checks.append(lambda n: n.type.dtype.kind in kinds)
    if shape is not None:
        checks.append(lambda n: n.type.shape == shape)
    if when is not None:
        checks.append(when)
    return tuple(checks)
