"""What all optimizers share: parameters in flat arrays, one update expression for each, state in
PyTorch's form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node
from stack import ops as g
from stack.framework import store
from stack.framework.cell import (
    Retrace,
    add_settler,
    become,
    changed,
    governing,
    here,
    rebind,
    take_over,
    tracing,
    under_way,
)
from stack.framework.create import tensor
from stack.framework.devices import engine
from stack.framework.errors import CheckpointError, TensorError, TracingError, where_called
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import Operand
from stack.framework.flat import ALIGNMENT, FlatParameters, homes
from stack.framework.modes import enable_grad, no_grad
from stack.framework.optim.groups import GroupSpread, chosen, mask, view
from stack.framework.realize import realize, refuse_in_trace
from stack.framework.recorded import tape_of
from stack.framework.spread import Division, divisions
from stack.framework.tensor import Tensor

T = TypeVar("T")
Group = dict[str, Any]
Member = tuple[int, int, Tensor]
"""A parameter with its number and that of its group."""
Place = tuple[int, str, int | None]
"""The group's number, the name of a setting, and which member of it."""

WAYS = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Settings by which PyTorch chooses among implementations. They are taken and change nothing, but
for `differentiable=True`, which is refused."""


class Shard:
    """Parameters of one element type and device that were given together: their flat array, state
    of the same layout by name, and for each parameter the number of its steps, and numbers that
    change with it.

    `together` are the parameters that all steps so far have moved, where no step has moved another
    one: their counts are equal, and one number serves them all. It is () before the first step, and
    None once the counts differ. Then `blocks` says of each ALIGNMENT elements of the flat array
    which parameter they belong to.
    """

    def __init__(
        self, members: Sequence[Member], names: Sequence[str], numbers: Mapping[Hashable, float]
    ) -> None:
        self.indices = [i for i, _, _ in members]
        self.flat = FlatParameters([p for _, _, p in members])
        self.layout = self.flat.layout
        cell, self.groups = self.flat.cell, [group for _, group, _ in members]
        starts, count = self.layout.starts, len(self.groups)
        self.spread = GroupSpread.of(starts, self.layout.size, self.groups, cell.dtype)
        self.by_member = GroupSpread.of(range(count), count, self.groups, DType.F32)
        self.state = {}
        for name in names:
            state = Tensor(g.full((self.layout.size,), 0, cell.dtype), cell.device)
            rebind(state, state.node)
            self.state[name] = state
        self.steps = self._for_each(0)
        self.numbers = {k: self._for_each(v) for k, v in numbers.items()}
        self.together: tuple[bool, ...] | None = ()
        self.blocks: Tensor | None = None
        self.move: _TapedStep | None = None

    def _for_each(self, value: float) -> Tensor:
        values = np.full(self.by_member.size, value, np.float32)
        return tensor(values, device=self.flat.cell.device)

    # how often each parameter has moved

    def note_step(self, active: tuple[bool, ...]) -> None:
        """A step moves these parameters. Raises Retrace where a trace began with counts that were
        equal and no longer are."""
        if not self.together and self.together is not None:
            self.together = active
        elif self.together not in (None, active):
            if tracing() is not None:
                raise Retrace(self.come_apart)
            self.come_apart()
        if (trace := tracing()) is not None:
            trace.note(self, "together")

    def come_apart(self) -> None:
        """From now on each parameter's count is its own."""
        ends = [*self.layout.starts[1:], self.layout.size]
        each = [(b - a) // ALIGNMENT for a, b in zip(self.layout.starts, ends, strict=True)]
        which = np.repeat(np.arange(len(each), dtype=np.int32), each)
        self.blocks = tensor(which, device=self.flat.cell.device)
        self.together = None
        changed()

    def set_together(self, together: Sequence[bool] | None) -> None:
        """The counts are others now."""
        if together is None:
            self.come_apart()
        else:
            self.together = tuple(together)
            changed()

    def set_counts(self, counts: Sequence[float], numbers: Mapping[Hashable, Any]) -> None:
        """Each parameter has moved so often, and these are its numbers."""
        device = self.steps.device
        rebind(self.steps, tensor(np.asarray(counts, np.float32), device=device).node)
        for key, values in numbers.items():
            given = tensor(np.asarray(values, np.float32), device=device)
            if key in self.numbers:
                rebind(self.numbers[key], given.node)
            else:
                self.numbers[key] = given
        moved = [c > 0 for c in counts]
        equal = len({c for c in counts if c}) < 2
        self.set_together((moved if any(moved) else ()) if equal else None)

    @property
    def count(self) -> Node:
        """The number of steps of what moves, f32: 0-d, or where counts differ one for each
        parameter."""
        return self._one(self.steps)

    def number(self, key: Hashable) -> Node:
        """A number that changes with the count, in the same form."""
        return self._one(self.numbers[key])

    def _one(self, each: Tensor) -> Node:
        if self.together is None:
            return each.node
        first = self.together.index(True)
        return g.reshape(g.slice(each.node, (first,), (first + 1,)), ())

    def vector(self, values: Sequence[Operand]) -> Node:
        """Each element's value, given for each group one that follows from the count."""
        if self.together is not None:
            return self.spread.vector(values)
        assert self.blocks is not None, "counts that differ have come apart"
        of_block = g.gather(self.by_member.vector(values), self.blocks.node, 0)
        rows = of_block.type.size
        wide = g.broadcast(g.reshape(of_block, (rows, 1)), (rows, ALIGNMENT))
        return g.cast(g.reshape(wide, (self.layout.size,)), self.spread.dtype)

    # what a step reads and changes

    def gradient(self) -> tuple[Node, list[bool]]:
        """The flat gradient, 0 where a parameter has none, and which have one."""
        grads = [p.grad for p in self.flat.members]
        if (trace := tracing()) is not None:
            trace.used.update(self.flat.members)
        return self.joined([None if d is None else d.node for d in grads]), [
            d is not None for d in grads
        ]

    def joined(self, grads: Sequence[Node | None]) -> Node:
        """The flat gradient of those by each parameter, 0 where there is none."""
        zero = [g.full(s, 0, self.spread.dtype) for s in self.layout.shapes]
        each = zip(grads, zero, strict=True)
        return self.layout.join([z if d is None else d for d, z in each])

    def cells(self) -> list[Tensor]:
        """All that a step changes, the parameters first."""
        return [self.flat.cell, self.steps, *self.state.values(), *self.numbers.values()]


@dataclass(slots=True)
class _Placeholder:
    """A value in the place of a tensor."""

    node: Node


@dataclass(eq=False, slots=True)
class _TapedStep:
    """A step as an operation on a tape: from the values of a shard's cells, of settings in
    `places`, and of gradients, to the new values of the cells. It holds no tensor."""

    optimizer: Optimizer
    settings: Hashable
    active: tuple[bool, ...]
    places: tuple[Place, ...]
    shard: Shard

    @staticmethod
    def of(
        optimizer: Optimizer, shard: Shard, settings: Hashable, active: tuple[bool, ...]
    ) -> _TapedStep:
        groups = [group | {"params": []} for group in optimizer.param_groups]
        own = _copy(optimizer, param_groups=groups, shards=(), context=None, _cells={})
        bare = _copy(
            shard,
            flat=None,
            steps=None,
            blocks=None,
            move=None,
            numbers=dict.fromkeys(shard.numbers),
            state=dict.fromkeys(shard.state),
        )
        return _TapedStep(own, settings, active, tuple(optimizer._cells), bare)

    def __call__(self, *given: Node) -> list[Node]:
        value, *rest = map(_Placeholder, given)
        nodes = iter(rest)
        shard: Any = _copy(self.shard, steps=next(nodes))
        shard.state = {name: next(nodes) for name in self.shard.state}
        shard.numbers = {key: next(nodes) for key in self.shard.numbers}
        if shard.together is None:
            shard.blocks = next(nodes)
        own = _copy(self.optimizer, _cells={place: next(nodes) for place in self.places})
        gradient = shard.joined([next(nodes).node if a else None for a in self.active])
        value.node = own._moved(shard, value.node, gradient, self.active, _hold)
        return [
            h.node for h in (value, shard.steps, *shard.state.values(), *shard.numbers.values())
        ]


def _member(each: Tensor, at: int) -> Tensor:
    """One parameter's entry."""
    return Tensor(g.reshape(g.slice(each.node, (at,), (at + 1,)), ()), each.device).detach()


def _either(flag: Node, one: Node, other: Node) -> Node:
    """One value where a 0-d flag is set, else the other."""
    return g.where(g.broadcast(flag, one.shape), one, other)


def _hold(held: Any, node: Node) -> None:
    held.node = node


def _copy(x: T, **changed: Any) -> T:
    made = object.__new__(type(x))
    vars(made).update(vars(x), **changed)
    return made


class Optimizer:
    """Moves parameters against their gradients, all of them by one expression over a flat array.
    A class of one's own defines `update` for that; or, as in PyTorch, `step` alone, which changes
    parameters one after the other and keeps what it likes in `state[parameter]`.

    The parameters' values move into arrays that the optimizer owns. `param_groups` are dicts with
    "params" and settings; "lr" may be changed at any time, also between calls of a jitted step; the
    others are part of a plan. A parameter without a gradient stays as it is, and the step does not
    count for it.
    """

    state_names: tuple[str, ...] = ()
    """What is kept for each element of a parameter."""

    schedulable: tuple[tuple[str, int | None], ...] = ()
    """The settings beside "lr", or members of them, that schedules change: once one has changed it
    is a value on the device, no longer a part of plans."""

    def __init__(self, params: Iterable[Any], defaults: Group) -> None:
        refuse_in_trace("an optimizer was made")
        self.defaults = _settings(defaults)
        self.param_groups: list[Group] = []
        self.shards: tuple[Shard, ...] = ()
        self._written: dict[Place, float] = {}
        self._cells: dict[Place, Tensor] = {}
        self._own: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.moving: frozenset[Place] = frozenset()
        for group in _grouped(params):
            self._add(group)
        self._place(range(len(self.param_groups)))
        self.context = here.context
        add_settler(self)

    @property
    def _is_flat(self) -> bool:
        """Whether it moves parameters by `update`."""
        return type(self).update is not Optimizer.update

    def update(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, dict[str, Node]]:
        """The new flat parameters and the new flat state by name."""
        raise NotImplementedError(f"{type(self).__name__} defines neither step nor update")

    def state_at_first(self, name: str) -> float:
        """What a state has in each place before the first step."""
        return 0.0

    def numbers_of(self, group: Group) -> dict[str, Hashable]:
        """The numbers beside the count that a shard keeps for each parameter of a group, by their
        names in its state."""
        return {}

    def number_at(self, key: Hashable, steps: float) -> float:
        """Such a number after so many steps; `advance` gives that of the next step on the
        device."""
        raise NotImplementedError(f"{type(self).__name__} keeps no numbers")

    def _number_keys(self) -> set[Hashable]:
        return {key for group in self.param_groups for key in self.numbers_of(group).values()}

    def advance(self, shard: Shard) -> dict[Hashable, Node]:
        """The numbers of every parameter after the step that its count now names."""
        return {}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter that has a gradient. A closure is called first, to compute the loss
        and its gradients; its result is returned."""
        if not self._is_flat:
            raise NotImplementedError(f"{type(self).__name__} defines neither step nor update")
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            take_over(self)
            if (trace := tracing()) is not None:
                trace.note(self, "shards")
                trace.note(self, "moving")
            for shard in self.shards:
                take_over(shard.flat)
                if not under_way and self._recorded(shard):
                    continue
                gradient, active = shard.gradient()
                if any(active):
                    shard.note_step(tuple(active))
                    value = shard.flat.cell.node
                    shard.flat.assign(self._moved(shard, value, gradient, active, rebind))
                    if not under_way:  # what many steps do is not put off
                        realize(shard.flat.cell)
        return loss

    def step_where(self, moves: Tensor) -> None:
        """`step`, within a function under `jit`; everything stays as it was where `moves` (0-d,
        bool), which the device computes, is False. Raises TensorError for a class with a `step` of
        its own."""
        if not self._is_flat:
            raise TensorError(
                f"{type(self).__name__} has a step of its own, which a value on the device cannot "
                "leave out; call it outside of functions under `jit`"
            )
        before = [[cell.node for cell in shard.cells()] for shard in self.shards]
        self.step()
        for shard, old in zip(self.shards, before, strict=True):
            # `step` does not add or take away cells: numbers are kept from the beginning on.
            flat, *others = shard.cells()
            flag = moves.to(flat.device).node
            shard.flat.assign(_either(flag, flat.node, old[0]))
            for cell, node in zip(others, old[1:], strict=True):
                rebind(cell, _either(flag, cell.node, node))

    def _recorded(self, shard: Shard) -> bool:
        """Whether the step is on a tape now; False where it is not for one."""
        grads = [p._grad for p in shard.flat.members]
        active = tuple([d is not None for d in grads])
        settings = self._plain_settings()
        if settings is None or not any(active):
            return False
        shard.note_step(active)
        move, kind = shard.move, (settings, active, shard.together)
        if move is None or (move.settings, move.active, move.shard.together) != kind:
            move = shard.move = _TapedStep.of(self, shard, settings, active)
        cells = shard.cells()
        blocks = [] if shard.blocks is None or shard.together is not None else [shard.blocks]
        tape = tape_of(shard.flat.cell.device)
        given = [d for d in grads if d is not None]
        numbers = tape.numbers([*cells, *blocks, *self._cells.values(), *given])
        found = None if numbers is None else tape.several(move, *numbers)
        if found is None:
            return False
        value, *rest = found
        assert value is not None, "a step gives every value"
        shard.flat.record(tape, value)
        for cell, n in zip(cells[1:], rest, strict=True):
            assert n is not None, "a step gives every value"
            tape.overwrite(cell, n)
        tape.stepped()
        return True

    def _plain_settings(self) -> Hashable:
        """All settings that are a part of plans; None where there are others, or where a class of
        the user's may read more."""
        if type(self).__module__.rpartition(".")[0] != __package__:
            return None
        found: list[Hashable] = [tuple(self._cells)]
        for group in self.param_groups:
            if isinstance(group["lr"], Tensor):
                return None
            found.append(tuple([(k, v) for k, v in group.items() if k not in ("params", "lr")]))
        try:
            hash(tuple(found))
        except TypeError:
            return None
        return tuple(found)

    def _moved(
        self,
        shard: Shard,
        value: Node,
        gradient: Node,
        active: Sequence[bool],
        give: Callable[[Any, Node], None],
    ) -> Node:
        """The new flat parameters; the shard's other cells are given their new values."""
        counts = None if all(active) else chosen(active)
        before = {key: cell.node for key, cell in shard.numbers.items()}
        stepped = 1.0 if counts is None else g.cast(counts, DType.F32)
        give(shard.steps, e.add(shard.steps.node, stepped))
        for key, node in self.advance(shard).items():
            new = node if counts is None else g.where(counts, node, before[key])
            give(shard.numbers[key], new)
        signs = [-1.0 if group["maximize"] else 1.0 for group in self.param_groups]
        if -1.0 in signs:
            gradient = g.mul(gradient, shard.spread.vector(signs))
        old = {name: s.node for name, s in shard.state.items()}
        moved, state = self.update(shard, value, gradient)
        if not all(active):
            moves = mask(shard.layout, active)
            moved = g.where(moves, moved, value)
            state = {name: g.where(moves, n, old[name]) for name, n in state.items()}
        for name, n in state.items():
            give(shard.state[name], n)
        return moved

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
        given = enumerate(self.setting("lr"))
        return [
            lr.node if isinstance(lr, Tensor) else self._cells[k, "lr", None].node
            for k, lr in given
        ]

    def operands(self, name: str, part: int | None = None) -> list[Operand]:
        """A schedulable setting of every group, or a member of it: a number, or once it has
        changed its value on the device."""
        found: list[Operand] = []
        for k, value in enumerate(self.setting(name)):
            cell = self._cells.get((k, name, part))
            found.append((value if part is None else value[part]) if cell is None else cell.node)
        return found

    def settle(self) -> None:
        """Bring what was changed on the host to the device."""
        if not self._is_flat:
            return
        for k, group in enumerate(self.param_groups):
            for name, part in (("lr", None), *self.schedulable):
                value = group[name] if part is None else group[name][part]
                if not isinstance(value, Tensor) and value != self._written[k, name, part]:
                    self._write((k, name, part), float(value))

    def _write(self, place: Place, value: float) -> None:
        if (trace := tracing()) is not None:
            raise TracingError(
                f"{place[1]!r} changes while {trace.function!r} is traced, so it would change "
                "only once; step the schedule outside of the jitted function"
            )
        cell = self._cells.get(place)
        if cell is None:
            device = self._cells[0, "lr", None].device
            self._hold(place, tensor(np.float32(value), device=device))
            self.moving |= {place}
            changed()
        else:
            array = engine(cell.device).put(np.asarray(np.float32(value)), DType.F32)
            become(cell, store.holding(array))
        self._written[place] = value

    def _hold(self, place: Place, cell: Tensor) -> None:
        self._cells[place] = cell
        governing[cell.serial] = self

    # groups and shards

    def add_param_group(self, param_group: Group) -> None:
        """Move these parameters, too, with the group's settings."""
        refuse_in_trace("a parameter group was added")
        self._add(param_group)
        self._place([len(self.param_groups) - 1])

    def _add(self, group: Group) -> None:
        given = group["params"]
        params = [given] if isinstance(given, Tensor) else list(given)
        extra = _settings(group)
        for name in set(extra) - {"params", *self.defaults}:
            from difflib import get_close_matches  # noqa: PLC0415  (for a message alone)

            if near := get_close_matches(name, self.defaults, cutoff=0.75):
                raise TensorError(f"unknown settings {[name]}; did you mean {near[0]!r}?")
        seen = {id(p) for g in self.param_groups for p in g["params"]}
        if not params:
            raise TensorError(
                f"an optimizer needs parameters, got none\n  called at {where_called()}"
            )
        for param in params:
            if not isinstance(param, Tensor) or not param.is_leaf or not param.dtype.is_float:
                raise TensorError(
                    f"cannot optimize {param!r}; only float leaves\n  called at {where_called()}"
                )
            if id(param) in seen:
                raise TensorError(f"a parameter is given twice\n  called at {where_called()}")
            seen.add(id(param))
        full = {**self.defaults, **extra, "params": params}
        if not self._is_flat:
            self.param_groups.append(full)
            return
        if not isinstance(full["lr"], Tensor) and not full["lr"] >= 0:
            raise ValueError(f"a learning rate is at least 0, got {full['lr']!r}")
        self.param_groups.append(full)
        k = len(self.param_groups) - 1
        for name, part in (("lr", None), *self.schedulable):
            value = full[name] if part is None else full[name][part]
            self._written[k, name, part] = _number(value)
        first = self._cells.get((0, "lr", None), params[0])
        rate = tensor(np.float32(_number(full["lr"])), device=first.device)
        self._hold((k, "lr", None), rate)

    def _place(self, groups: Iterable[int]) -> None:
        """Move the parameters of these groups into shards."""
        if not self._is_flat:
            return
        chosen = set(groups)
        each = [(k, p) for k, group in enumerate(self.param_groups) for p in group["params"]]
        members = [(i, k, p) for i, (k, p) in enumerate(each) if k in chosen]
        placed: dict[tuple[str, DType], list[Member]] = defaultdict(list)
        for i, k, p in members:
            placed[p.device, p.dtype].append((i, k, p))
        with ExitStack() as whole:
            for division in _divisions_of(p for _, _, p in members):
                whole.enter_context(division.taken())
            numbers = {key: self.number_at(key, 0) for key in self._number_keys()}
            made = [Shard(parts, self.state_names, numbers) for parts in placed.values()]
            for shard in made:
                governing[shard.steps.serial] = self
                for name, cell in shard.state.items():
                    if first := self.state_at_first(name):
                        rebind(cell, g.full(cell.shape, first, cell.dtype))
            self.shards = (*self.shards, *made)
            optimizer_of.update({p.serial: self for _, _, p in members})
            changed()

    # state

    @property
    def state(self) -> dict[Tensor, dict[str, Tensor]]:
        """What is kept for each parameter, by name, as of now; `load_state_dict` changes it. Of a
        class that defines `step` alone, what that put there."""
        if not self._is_flat:
            return self._own
        found = self.state_dict()["state"]
        params = [p for group in self.param_groups for p in group["params"]]
        return {params[i]: parts for i, parts in found.items()}

    def cells(self) -> dict[str, Tensor]:
        """All tensors that steps read and write beside parameters and gradients, by name, as they
        lie: who copies them has this optimizer's state to the bit, where its settings are equal."""
        found = {f"setting {place}": t for place, t in self._cells.items()}
        for i, kept in self._own_by_number().items():
            found |= {f"{i}.{name}": t for name, t in kept.items() if isinstance(t, Tensor)}
        for i, shard in enumerate(self.shards):
            found[f"{i}.steps"] = shard.steps
            found |= {f"{i}.number {key}": t for key, t in shard.numbers.items()}
            found |= {f"{i}.{name}": t for name, t in shard.state.items()}
        return found

    def state_dict(self) -> dict[str, Any]:
        """ "state": by parameter number its "step" and its tensors by name; "param_groups": the
        settings."""
        state: dict[int, dict[str, Any]] = {
            i: {k: v.detach() if isinstance(v, Tensor) else v for k, v in kept.items()}
            for i, kept in self._own_by_number().items()
        }
        for shard in self.shards:
            for at, i in enumerate(shard.indices):
                parts = {n: view(s, shard.layout, at).detach() for n, s in shard.state.items()}
                numbers = self.numbers_of(self.param_groups[shard.groups[at]])
                each = {"step": shard.steps} | {n: shard.numbers[k] for n, k in numbers.items()}
                state[i] = {n: _member(t, at) for n, t in each.items()} | parts
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

    def _own_by_number(self) -> dict[int, dict[str, Any]]:
        """What a class's own `step` keeps, by the parameters' numbers."""
        params = [p for group in self.param_groups for p in group["params"]]
        return {i: self._own[p] for i, p in enumerate(params) if p in self._own}

    def plain(self) -> dict[str, Any]:
        """What says beside `cells()` how steps go on: the groups' settings, and which parameters'
        counts are equal."""
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups]
        return {"groups": groups, "together": [shard.together for shard in self.shards]}

    def take_plain(self, values: Mapping[str, Any]) -> None:
        """Go on as `plain` of an optimizer like this one said."""
        for group, given in zip(self.param_groups, values["groups"], strict=True):
            group.update(given)
        for shard, together in zip(self.shards, values["together"], strict=True):
            shard.set_together(together)

    def __reduce__(self) -> Any:
        """Copies and pickles are made anew of the groups and the state, so that they belong to the
        parameters that are copied with them."""
        return _again, (type(self), self.param_groups, self.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`. Raises CheckpointError when it is of other parameters, and
        changes nothing."""
        groups = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in self.param_groups]
        given = [len(group["params"]) for group in groups]
        if sizes != given:
            raise CheckpointError(
                f"the optimizer has groups of {sizes} parameters, the state of {given}"
            )
        parts = {int(i): s for i, s in state_dict["state"].items()}
        for shard in self.shards:
            for at, i in enumerate(shard.indices):
                _check_parts(i, shard.layout.shapes[at], shard.state, parts.get(i, {}))
        for shard in self.shards:
            for name in shard.state if parts else ():
                rebind(shard.state[name], _joined(shard, name, parts))
        for group, new in zip(self.param_groups, groups, strict=True):
            group.update({k: v for k, v in new.items() if k not in {"params", *WAYS}})
        if not self._is_flat:
            params = [p for group in self.param_groups for p in group["params"]]
            self._own.clear()
            for i, kept in parts.items():
                self._own[params[i]] = {
                    k: v.to(params[i].device).clone() if isinstance(v, Tensor) else v
                    for k, v in kept.items()
                }
        for shard in self.shards:
            own = [parts.get(i, {}) for i in shard.indices]
            counts = [float(part.get("step", 0)) for part in own]
            numbers = {
                key: [self.number_at(key, count) for count in counts] for key in self._number_keys()
            }
            for at, (k, part) in enumerate(zip(shard.groups, own, strict=True)):
                for name, key in self.numbers_of(self.param_groups[k]).items():
                    if name in part:
                        numbers[key][at] = float(part[name])
            shard.set_counts(counts, numbers)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for k, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {k}")
            lines += [f"    {n}: {group[n]}" for n in sorted(group) if n != "params"]
        return "\n".join([*lines, ")"])


optimizer_of: WeakValueDictionary[int, Optimizer] = WeakValueDictionary()
"""The newest optimizer of each parameter, by the parameter's serial number."""


def _divisions_of(params: Iterable[Tensor]) -> list[Division]:
    """Who has spread parameters, or the flat arrays that these are in."""
    found: dict[int, Division] = {}
    for p in params:
        home = homes.get(p.serial)
        division = divisions.get((p if home is None else home.cell).serial)
        if division is not None:
            found[id(division)] = division
    return list(found.values())


def _check_parts(
    i: int, shape: tuple[int, ...], names: Iterable[str], parts: Mapping[str, Any]
) -> None:
    for name in names:
        part = parts.get(name)
        if part is not None and tuple(part.shape) != shape:
            raise CheckpointError(
                f"{name} of parameter {i} has shape {list(part.shape)}, not {list(shape)}"
            )


def _again(kind: type[Optimizer], groups: list[Group], state: Mapping[str, Any]) -> Optimizer:
    made: Any = kind
    optimizer: Optimizer = made(groups)
    optimizer.load_state_dict(state)
    return optimizer


def _joined(shard: Shard, name: str, parts: Mapping[int, Mapping[str, Any]]) -> Node:
    """A flat state from each parameter's part; 0 for a parameter that has none."""
    nodes = []
    for i, shape in zip(shard.indices, shard.layout.shapes, strict=True):
        part = parts.get(i, {}).get(name)
        if part is None:
            nodes.append(g.full(shape, 0, shard.spread.dtype))
            continue
        device = shard.flat.cell.device
        value = part if isinstance(part, Tensor) else tensor(np.asarray(part), device=device)
        nodes.append(g.cast(value.to(device).node, shard.spread.dtype))
    return shard.layout.join(nodes)


def _number(lr: Any) -> float:
    return 0.0 if isinstance(lr, Tensor) else float(lr)


def _grouped(params: Iterable[Any]) -> list[Group]:
    """The groups that are given as parameters, as (name, parameter) pairs or as dicts."""
    if isinstance(params, Tensor):
        raise TensorError(
            f"an optimizer takes a list of parameters, not a tensor\n  called at {where_called()}"
        )
    given = list(params)
    if given and isinstance(given[0], dict):
        return given
    return [{"params": [p[1] if isinstance(p, tuple) else p for p in given]}]


def _settings(given: Group) -> Group:
    """Those that change something. Raises NotImplementedError for a step that gradients are to flow
    through."""
    if given.get("differentiable"):
        raise NotImplementedError(
            "no gradient flows through an optimizer's step; leave differentiable=True out, and "
            "write the step as operations on tensors"
        )
    return {k: v for k, v in given.items() if k not in WAYS}
