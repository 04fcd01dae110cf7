"""An operator of the graph: one row, which constructors, autograd, compiler and tests read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, Type, node
from stack.comm.messages import RankCall
from stack.ops.error import GraphError
from stack.ops.sharding import Sharding

NDArray = np.ndarray[Any, Any]
Attrs = Mapping[str, Any]

Rule = Callable[[Sequence[Type], Attrs, Type | None], Type]
"""(the operands' types, the attributes, the type asked for) to the result's type. Raises GraphError
with the rule that is broken."""

Reference = Callable[[Node, tuple[NDArray, ...]], NDArray]
"""The node's value for its operands' values, by numpy, as the text of the meaning says."""

Gradient = Callable[[Node, Node], "tuple[Node | None, ...]"]
"""(the node, the loss's derivative by it) to the loss's derivatives by its operands, as graph nodes
of the operands' types; None for an operand that nothing flows to."""

Lower = Callable[[Node, tuple[Node, ...]], Node]
"""(the graph node, its operands as tiles) to the result as a tile expression. Operands of f16 and
bf16 come as f32 tiles and the result is f32 again; operands may have any shapes that broadcast."""

Decompose = Callable[[Node], Node]
"""The node as nodes of other operators, of the same type."""


RankValues = Sequence[tuple[NDArray, ...] | None]
"""Each rank's operands, None for a rank that has no part in it."""

Together = Callable[[Node, RankValues], list[NDArray]]
"""The node's value on each rank for the operands' values of all."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """How ranks compute an operator together."""

    together: Together
    call: Callable[[Node], RankCall]
    """What the group's engine is asked for."""
    in_place: bool = False
    """Whether its value may lie where its operand lay."""
    reads: int = 1
    """How many operands the call reads; others are waited for alone."""


class OpKind(Enum):
    """How the compiler treats an operator."""

    LEAF = "leaf"
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    REDUCE = "reduce"
    CONTRACT = "contract"
    INDEX = "index"
    SCAN = "scan"
    EXCHANGE = "exchange"
    LOOP = "loop"


@dataclass(frozen=True, slots=True)
class Face:
    """How users of tensors meet an operator, and what others call it."""

    name: str = ""
    """Of the function and the method; "" for the operator's own name."""
    aliases: tuple[str, ...] = ()
    """Other names of both."""
    named: tuple[tuple[str, str], ...] = ()
    """Keywords of PyTorch's programs, with the parameters that they are."""
    symbol: str = ""
    """Python's, of one operand ("-x") or of two ("+")."""
    in_place: bool = False
    """Whether there is a method `name_`, and `+=` for a symbol."""
    function: bool = True
    method: bool = True
    layer: bool = False
    """Whether it is in the namespace of layers, `functional`, too."""
    special: bool = False
    """Whether it is in the namespace `special`."""
    linalg: bool = False
    """Whether it is in the namespace `linalg`."""
    sizes: bool = False
    """Whether its second parameter may be given as several arguments."""
    shares: bool = False
    """Whether results that only move elements of the first operand share its memory."""
    waits: bool = False
    """Whether its expression takes tensors: it waits for values, which decide a shape, or draws."""
    aten: str = ""
    onnx: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator. Called with nodes, it gives the node of its result, type-checked."""

    name: str
    kind: OpKind
    dtypes: frozenset[DType]
    """The element types of its data operands; of a leaf, its own."""
    meaning: str
    """What it computes, in words."""
    arity: int | None
    """The number of operands; None: any."""
    rule: Rule = field(repr=False)
    reference: Reference | None = field(repr=False)
    """None where `decompose` says what it computes."""
    gradient: Gradient | None = field(default=None, repr=False)
    """None where no derivative flows."""
    lower: Lower | None = field(default=None, repr=False)
    """Of elementwise operators that are not decomposed; the compiler's templates lower others."""
    decompose: Decompose | None = field(default=None, repr=False)
    """Instead of which the compiler and the interpreter take other operators."""
    attrs: frozenset[str] = frozenset()
    """The attributes of each of its nodes."""
    marks: frozenset[str] = frozenset()
    """Attributes that compiler passes may add; they do not change what a node means."""
    data: tuple[int, ...] = ()
    """Which operands share one of `dtypes`; () for all."""
    exchange: Exchange | None = field(default=None, repr=False)
    """Of operators that several ranks compute."""
    sharding: Sharding | None = field(default=None, repr=False)
    """How ranks compute parts of it; None where each rank computes the whole."""
    face: Face | None = None
    """None where users do not meet it by this row."""
    expensive: bool = False
    """Whether storing a value is better than computing it twice."""
    smooth: tuple[tuple[float, float] | None, ...] = ()
    """For each operand an interval in which the derivative exists, None for any number; () where it
    exists for all numbers."""

    def __call__(self, *srcs: Node, asked: Type | None = None, **attrs: Any) -> Node:
        """The result on these operands; `asked` as in `infer`. Raises GraphError."""
        return node(self.name, self.infer([s.type for s in srcs], attrs, asked), srcs, **attrs)

    def infer(self, srcs: Sequence[Type], attrs: Attrs, asked: Type | None = None) -> Type:
        """The type of the result on operands of these types.

        `asked` is the wanted type where operands do not fix it: shape of reshape and expand,
        element type of cast, bitcast and matmul, all of a leaf. Raises GraphError that names the
        operator, its operands and the broken rule.
        """
        try:
            return self._checked(srcs, attrs, asked)
        except GraphError as error:
            inside = [*map(str, srcs), *(f"{k}={v}" for k, v in sorted(attrs.items()))]
            raise GraphError(f"{self.name}({', '.join(inside)}): {error}") from None

    def _checked(self, srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
        fits = self.arity is None or len(srcs) == self.arity
        if not fits or (attrs.keys() != self.attrs and attrs.keys() - self.marks != self.attrs):
            count = "any number of" if self.arity is None else self.arity
            names = f"attributes {', '.join(sorted(self.attrs))}" if self.attrs else "no attributes"
            raise GraphError(f"needs {count} operands and {names}")
        operands = [srcs[i] for i in self.data] if self.data else srcs
        for operand in operands:
            if operand.dtype is not operands[0].dtype:
                raise GraphError("operands have different element types; cast them first")
            if operand.dtype not in self.dtypes:
                known = ", ".join(d.short for d in DType if d in self.dtypes)
                raise GraphError(f"takes {known}; cast to one of them")
        return self.rule(srcs, attrs, asked)
