"""Graphs as text, and back. One node a line, each after its operands:

%0 = input(slot=0): f32[2,3]
%1 = reduce(%0, axes=(1,), kind=sum): f32[2,1]
return %1
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Mapping, Sequence
from typing import Any

from hal.core.dtypes import DType
from hal.tile.node import Node, Type, toposort
from stack.ops import make
from stack.ops.error import GraphError

_LINE = re.compile(r"(%\d+) = (\w+)\((.*)\): (\w+)(?:\[([\d,]*)\])?")
_PART = re.compile(r"(?:\([^()]*\)|[^,()])+")
_WORDS: Mapping[str, Any] = {
    "inf": float("inf"),
    "-inf": float("-inf"),
    "nan": float("nan"),
    "True": True,
    "False": False,
}


def print_graph(outputs: Sequence[Node]) -> str:
    """The graph as text; equal graphs give equal texts."""
    names: dict[Node, str] = {}
    lines = []
    for n in toposort(outputs):
        names[n] = f"%{len(names)}"
        inside = [*(names[s] for s in n.srcs), *(f"{key}={value}" for key, value in n.attrs)]
        lines.append(f"{names[n]} = {n.op}({', '.join(inside)}): {n.type}")
    lines.append(f"return {', '.join(names[n] for n in outputs)}".rstrip())
    return "\n".join(lines) + "\n"


def parse_graph(text: str) -> tuple[Node, ...]:
    """The outputs of a printed graph; empty lines and lines that begin with # say nothing.

    Raises GraphError with the 1-based line for text that is not a graph or breaks a type rule.
    """
    nodes: dict[str, Node] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        try:
            if stripped.startswith("return"):
                return tuple(_named(nodes, w) for w in _parts(stripped.removeprefix("return")))
            if stripped and not stripped.startswith("#"):
                name, made = _parse_line(stripped, nodes)
                nodes[name] = made
        except GraphError as error:
            raise GraphError(f"line {number}: {error}") from None
    raise GraphError(f"line {len(text.splitlines())}: the graph ends without a return")


def _parse_line(line: str, nodes: Mapping[str, Node]) -> tuple[str, Node]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise GraphError(f"expected '%n = op(...): type', got {line!r}")
    name, op, inside, dtype, shape = match.groups()
    parts = _parts(inside)
    srcs = [_named(nodes, p) for p in parts if p.startswith("%")]
    pairs = (p.split("=", 1) for p in parts if "=" in p)
    known = {d.short: d for d in DType}
    if dtype not in known:
        raise GraphError(f"{dtype} is not an element type; known are {', '.join(known)}")
    written = Type(tuple(int(n) for n in shape.split(",")) if shape else (), known[dtype])
    made = make(op, srcs, written, **{key: _value(text) for key, text in pairs})
    if made.type != written:
        raise GraphError(f"{op} is of type {made.type}, not {written}")
    return name, made


def _parts(inside: str) -> list[str]:
    """Split at the commas that are not within parentheses."""
    return [p.strip() for p in _PART.findall(inside) if p.strip()]


def _named(nodes: Mapping[str, Node], name: str) -> Node:
    if name not in nodes:
        raise GraphError(f"{name} is not defined above")
    return nodes[name]


def _value(text: str) -> Any:
    """An attribute: a number, a tuple of numbers, or a word."""
    if text in _WORDS:
        return _WORDS[text]
    if text.isidentifier():
        return text
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        raise GraphError(f"{text!r} is not an attribute's value") from None
