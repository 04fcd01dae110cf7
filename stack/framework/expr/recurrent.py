"""Recurrent networks: one step of each kind, and a layer as a loop over the steps of its input."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hal.tile.node import Node
from stack import ops as g
from stack.framework.expr import elementwise as e
from stack.framework.expr.activation import relu
from stack.framework.expr.contract import linear
from stack.framework.expr.movement import chunk
from stack.ops import LoopBody


def _lstm(x: Node, hidden: Node, _: Node, c: Node) -> list[Node]:
    """Output and cell after a step. The gates, in PyTorch's order i f g o, come from the input, x,
    and from the output of the step before, `hidden`."""
    i, f, n, o = chunk(e.add(x, hidden), 4, -1)
    c = e.add(e.mul(e.sigmoid(f), c), e.mul(e.sigmoid(i), g.tanh(n)))
    return [e.mul(e.sigmoid(o), g.tanh(c)), c]


def _gru(x: Node, hidden: Node, h: Node) -> list[Node]:
    """The output after a step, whose gates have PyTorch's order r z n."""
    r, z, n = chunk(x, 3, -1)
    hr, hz, hn = chunk(hidden, 3, -1)
    z = e.sigmoid(e.add(z, hz))
    new = g.tanh(e.add(n, e.mul(e.sigmoid(e.add(r, hr)), hn)))
    return [e.add(e.mul(e.sub(1, z), new), e.mul(z, h))]


def _plain(bend: Callable[[Node], Node], x: Node, hidden: Node, _: Node) -> list[Node]:
    """The output after a step without gates."""
    return [bend(e.add(x, hidden))]


STEPS: dict[str, Callable[..., list[Node]]] = {
    "lstm": _lstm,
    "gru": _gru,
    "tanh": partial(_plain, g.tanh),
    "relu": partial(_plain, relu),
}
"""From the input's part of the gates, that of the output before and the state, of which the first
is that output, to the next state."""


def layer(
    gates: Node, weight: Node, bias: Node | None, kind: str, reverse: bool, kept: bool, *state: Node
) -> list[Node]:
    """The output of each step, and the state after the last one. `gates` [time, batch, width] is
    the input's part; with `reverse` the last step comes first. What gradients read is `kept`."""
    consts = (weight,) if bias is None else (weight, bias)
    row = gates.type.with_shape(gates.shape[1:])
    types = [*(n.type for n in (*consts, *state)), row]
    inputs = [g.input(i, t) for i, t in enumerate(types)]
    before, shared = inputs[len(consts) : -1], inputs[: len(consts)]
    after = STEPS[kind](inputs[-1], linear(before[0], *shared), *before)
    body = LoopBody(tuple(inputs), (*after, after[0]))
    made = g.loop(body, gates.shape[0], consts, state, [gates], reverse, kept=kept)
    return [made[len(state)], *made[: len(state)]]
