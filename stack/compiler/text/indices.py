"""What is known of indices before a kernel runs."""

from __future__ import annotations

from hal.tile.node import Node


def constant_of(n: Node) -> int | None:
    """The integer that is constant in all elements of a node."""
    while n.op == "broadcast":
        (n,) = n.srcs
    return int(n["value"]) if n.op == "const" else None


def step_of(index: Node) -> int | None:
    """How much greater an index is in the next instance, in most of them; None: not known."""
    if index.op == "program_id":
        return int(index["axis"] == 0)
    if index.op in ("const", "var"):
        return 0
    if index.op not in ("add", "sub", "mul", "div", "rem", "cast"):
        return None
    left, *right = (step_of(s) for s in index.srcs)
    match index.op, left, right:
        case ("add", int(a), [int(b)]):
            return a + b
        case ("sub", int(a), [int(b)]):
            return a - b
        case ("mul", int(a), [_]):
            factors = [constant_of(s) for s in index.srcs]
            if factors[1] is not None:
                return a * factors[1]
            return None if factors[0] is None or right[0] is None else factors[0] * right[0]
        case ("div", int(a), [_]):
            size = constant_of(index.srcs[1])
            return None if not size else a // size
        case ("rem" | "cast", _, _):
            return left
    return None
