"""What all optimizers share: parameters in flat arrays, one update expression for each, state in
PyTorch's form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework import store
from stack.framework.cell import become, rebind, traces
from stack.framework.create import tensor
from stack.framework.device import engine
from stack.framework.errors import CheckpointError, TensorError, TracingError, where_called
from stack.framework.flat import FlatParameters
from stack.framework.mode import no_grad
from stack.framework.optim.groups import GroupSpread, mask, view
from stack.framework.realize import refuse_in_trace
from stack.framework.tensor import Tensor

Group = dict[str, Any]


class Shard:
    """The parameters of one element type and device: their flat array, and state of the same layout
    by name."""

    def __init__(self, members: Sequence[tuple[int, int, Tensor]], names: Sequence[str]) -> None:
        self.indices = [i for i, _, _ in members]
        self.flat = FlatParameters([p for _, _, p in members])
        self.layout = self.flat.layout
        cell = self.flat.cell
        self.spread = GroupSpread.of(self.layout, [group for _, group, _ in members], cell.dtype)
        self.state = {name: _zeros(self.layout.size, cell) for name in names}

    def gradient(self) -> tuple[Node, list[bool]]:
        """The flat gradient, 0 where a parameter has none, and which have one."""
        grads = [p.grad for p in self.flat.members]
        shapes = self.layout.shapes
        nodes = [
            g.full(s, 0, self.spread.dtype) if d is None else d.node
            for d, s in zip(grads, shapes, strict=True)
        ]
        return self.layout.join(nodes), [d is not None for d in grads]


def _zeros(size: int, like: Tensor) -> Tensor:
    state = Tensor(g.full((size,), 0, like.dtype), like.device)
    rebind(state, state.node)
    return state


class Optimizer(ABC):
    """Moves parameters against their gradients, all of them by one expression over a flat array.

    The parameters' values move into arrays that the optimizer owns. `param_groups` are dicts with
    "params" and settings; "lr" may be changed at any time, also between calls of a jitted step; the
    others are part of a plan. A parameter without a gradient stays as it is. The step count is the
    optimizer's, not each parameter's.
    """

    state_names: tuple[str, ...] = ()

    def __init__(self, params: Iterable[Any], defaults: Group) -> None:
        refuse_in_trace("an optimizer was made")
        self.param_groups = _grouped(params, defaults)
        placed: dict[tuple[str, DType], list[tuple[int, int, Tensor]]] = defaultdict(list)
        members = [(k, p) for k, group in enumerate(self.param_groups) for p in group["params"]]
        _check(members)
        for i, (k, p) in enumerate(members):
            placed[p.device, p.dtype].append((i, k, p))
        self.shards = [Shard(parts, self.state_names) for parts in placed.values()]
        device = members[0][1].device
        self.steps = tensor(np.float32(0), device=device)
        self._rates = [
            tensor(np.float32(_number(group["lr"])), device=device) for group in self.param_groups
        ]
        self._written = [_number(group["lr"]) for group in self.param_groups]
        store.add_settler(self)

    @abstractmethod
    def update(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, dict[str, Node]]:
        """The new flat parameters and the new flat state by name."""

    def advance(self) -> None:
        """Count a step."""
        rebind(self.steps, g.add(self.steps.node, g.const(1, DType.F32)))

    def step(self) -> None:
        """Move every parameter that has a gradient."""
        with no_grad():
            self.settle()
            self.advance()
            for shard in self.shards:
                shard.flat.settle()
                self._step(shard)

    def _step(self, shard: Shard) -> None:
        gradient, active = shard.gradient()
        if not any(active):
            return
        old = {name: s.node for name, s in shard.state.items()}
        value, state = self.update(shard, shard.flat.cell.node, gradient)
        if not all(active):
            moved = mask(shard.layout, active)
            value = g.where(moved, value, shard.flat.cell.node)
            state = {name: g.where(moved, n, old[name]) for name, n in state.items()}
        shard.flat.assign(value)
        for name, n in state.items():
            rebind(shard.state[name], n)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or make them 0."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p.grad = None
                elif p.grad is not None:
                    p.grad.zero_()

    def setting(self, name: str) -> list[Any]:
        """A setting of every group."""
        return [group[name] for group in self.param_groups]

    def rates(self) -> list[Node]:
        """Every group's learning rate, 0-d."""
        given = self.setting("lr")
        return [
            lr.node if isinstance(lr, Tensor) else r.node
            for lr, r in zip(given, self._rates, strict=True)
        ]

    def settle(self) -> None:
        """Bring learning rates that were changed on the host to the device."""
        for k, group in enumerate(self.param_groups):
            lr = group["lr"]
            if not isinstance(lr, Tensor) and lr != self._written[k]:
                self._write_rate(k, float(lr))

    def _write_rate(self, k: int, lr: float) -> None:
        if traces:
            raise TracingError(
                f"the learning rate changes while {traces[-1].function!r} is traced, so it "
                "would change only "
                "once; step the schedule outside of the jitted function"
            )
        cell = self._rates[k]
        array = engine(cell.device).put(np.asarray(np.float32(lr)), DType.F32)
        become(cell, store.holding(array))
        self._written[k] = lr

    # state

    def state_dict(self) -> dict[str, Any]:
        """ "state": by parameter number its "step" and its tensors by name; "param_groups": the
        settings."""
        state: dict[int, dict[str, Any]] = {}
        for shard in self.shards:
            for at, i in enumerate(shard.indices):
                parts = {n: view(s, shard.layout, at).detach() for n, s in shard.state.items()}
                state[i] = {"step": self.steps.detach(), **parts}
        groups, first = [], 0
        for group in self.param_groups:
            plain = {
                k: (v.item() if isinstance(v, Tensor) else v)
                for k, v in group.items()
                if k != "params"
            }
            groups.append({**plain, "params": list(range(first, first + len(group["params"])))})
            first += len(group["params"])
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`. Raises CheckpointError when it is of other parameters, and
        changes nothing."""
        groups = state["param_groups"]
        sizes = [len(group["params"]) for group in self.param_groups]
        given = [len(group["params"]) for group in groups]
        if sizes != given:
            raise CheckpointError(
                f"the optimizer has groups of {sizes} parameters, the state of {given}"
            )
        parts = {int(i): s for i, s in state["state"].items()}
        found = (
            [(s, n, _joined(s, n, parts)) for s in self.shards for n in s.state] if parts else []
        )
        for shard, name, node in found:
            rebind(shard.state[name], node)
        for group, new in zip(self.param_groups, groups, strict=True):
            group.update({k: v for k, v in new.items() if k != "params"})
        count = max((float(s["step"]) for s in parts.values()), default=0.0)
        self._set_steps(count)

    def _set_steps(self, count: float) -> None:
        rebind(self.steps, g.const(count, DType.F32))


def _joined(shard: Shard, name: str, parts: Mapping[int, Mapping[str, Any]]) -> Node:
    """A flat state from each parameter's part; 0 for a parameter that has none."""
    nodes = []
    for i, shape in zip(shard.indices, shard.layout.shapes, strict=True):
        part = parts.get(i, {}).get(name)
        if part is None:
            nodes.append(g.full(shape, 0, shard.spread.dtype))
            continue
        if tuple(part.shape) != shape:
            raise CheckpointError(
                f"{name} of parameter {i} has shape {list(part.shape)}, not {list(shape)}"
            )
        device = shard.flat.cell.device
        value = part if isinstance(part, Tensor) else tensor(np.asarray(part), device=device)
        nodes.append(g.cast(value.to(device).node, shard.spread.dtype))
    return shard.layout.join(nodes)


def _number(lr: Any) -> float:
    return 0.0 if isinstance(lr, Tensor) else float(lr)


def _grouped(params: Iterable[Any], defaults: Group) -> list[Group]:
    given = list(params)
    dicts = given if given and isinstance(given[0], dict) else [{"params": given}]
    unknown = {k for group in dicts for k in group} - {"params", *defaults}
    if unknown:
        raise TensorError(f"unknown settings {sorted(unknown)}; known are {sorted(defaults)}")
    return [{**defaults, **group, "params": list(group["params"])} for group in dicts]


def _check(members: Sequence[tuple[int, Tensor]]) -> None:
    if not members:
        raise TensorError(f"an optimizer needs parameters, got none\n  called at {where_called()}")
    seen: set[int] = set()
    for _, p in members:
        if not isinstance(p, Tensor) or not p.is_leaf or not p.dtype.is_float:
            raise TensorError(
                f"cannot optimize {p!r}; only float leaves\n  called at {where_called()}"
            )
        if id(p) in seen:
            raise TensorError(f"a parameter is given twice\n  called at {where_called()}")
        seen.add(id(p))
