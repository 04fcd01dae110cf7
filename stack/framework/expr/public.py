"""The table of what users call: each operator's expression on nodes, with its names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from hal.core.facts import dataclass
from hal.tile.node import Node
from stack.framework.expr.operand import as_float, meet, once
from stack.ops.operator import Face, Operator
from stack.ops.table import FLOATS

ONE = {"-x": "neg", "~x": "invert", "abs(x)": "abs"}
"""Python's special method of a symbol with one operand."""
TWO = {
    "+": ("add", True),
    "-": ("sub", True),
    "*": ("mul", True),
    "@": ("matmul", True),
    "/": ("truediv", True),
    "//": ("floordiv", True),
    "%": ("mod", True),
    "**": ("pow", True),
    "&": ("and", True),
    "|": ("or", True),
    "^": ("xor", True),
    "<<": ("lshift", True),
    ">>": ("rshift", True),
    "==": ("eq", False),
    "!=": ("ne", False),
    "<": ("lt", False),
    "<=": ("le", False),
    ">": ("gt", False),
    ">=": ("ge", False),
}
"""That of a symbol with two, and whether it has a reflected one."""

OPERANDS = {"x": "input", "y": "other", "parts": "tensors"}
"""What PyTorch's programs call operands by keyword, by their names in expressions."""

NUMPYS = {"dim": "axis", "dims": "axis", "keepdim": "keepdims"}
"""What numpy calls parameters, which PyTorch takes, too."""

F = TypeVar("F", bound=Callable[..., Any])

FUNCTIONS: dict[str, Public] = {}
METHODS: dict[str, Public] = {}
LAYERS: dict[str, Public] = {}
SPECIAL: dict[str, Public] = {}
LINALG: dict[str, Public] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Public:
    """An operator that users call, each one object. `expression` takes nodes where they give
    tensors, and gives nodes, or a list or named tuple of them, where they get tensors."""

    expression: Callable[..., Any]
    face: Face

    @property
    def names(self) -> tuple[str, ...]:
        return (self.face.name, *self.face.aliases)


def operator(name: str = "", **face: Any) -> Callable[[F], F]:
    """The decorated expression is an operator that users call by this name, or by its own. `face`
    are fields of `Face`."""

    def decorate(expression: F) -> F:
        publish(Public(expression, Face(name or expression.__name__.strip("_"), **face)))
        return expression

    return decorate


def layer(name: str = "", **face: Any) -> Callable[[F], F]:
    """As `operator`, of what is in the namespace of layers alone."""
    return operator(name, function=False, method=False, layer=True, **face)


def special(name: str = "", **face: Any) -> Callable[[F], F]:
    """As `operator`, of what is in the namespace `special` alone; rounds once."""
    publish = operator(name, function=False, method=False, special=True, **face)
    return lambda expression: publish(once(expression))


def linalg(name: str = "", **face: Any) -> Callable[[F], F]:
    """As `operator`, of what is in the namespace `linalg` alone."""
    return operator(name, function=False, method=False, linalg=True, **face)


def publish(public: Public) -> Public:
    """Put the row into the tables where its face belongs."""
    face = public.face
    spaces = (
        (face.function, FUNCTIONS),
        (face.method, METHODS),
        (face.layer, LAYERS),
        (face.special, SPECIAL),
        (face.linalg, LINALG),
    )
    for wanted, table in spaces:
        for name in public.names if wanted else ():
            assert name not in table, f"there is already an operator {name!r}"
            table[name] = public
    return public


def of_tensors(row: Operator, face: Face) -> Public:
    """An elementwise operator of the graph as one of tensors: operands broadcast, and meet in their
    common element type; integers become float32 where it takes floats."""
    floats = row.dtypes <= FLOATS

    def one(x: Node) -> Node:
        return row(as_float(x) if floats else x)

    def two(x: Node | float, y: Node | float) -> Node:
        a, b = meet(x, y)
        return row(as_float(a), as_float(b)) if floats else row(a, b)

    expression = one if row.arity == 1 else two
    expression.__name__ = face.name or row.name
    types = "; integers and bool become float32" if floats else ""
    expression.__doc__ = f"{row.meaning}, element by element{types}."
    return Public(expression, replace(face, name=expression.__name__))
