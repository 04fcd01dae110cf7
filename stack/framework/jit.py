"""`jit`: a function of tensors captured once and replayed as one plan, without Python between
kernels."""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

import numpy as np

from hal.tile.node import Node, Type
from stack.compiler.program import GraphRequest
from stack.framework import modes, store
from stack.framework.capture import Argument, Captured, capture, cell_of
from stack.framework.cell import (
    Cell,
    rebind,
    take_over,
    tracing,
    under_way,
)
from stack.framework.devices import default_device, engine
from stack.framework.errors import GradientError, TensorError, name_of, where_called
from stack.framework.host import host_array
from stack.framework.kinds import GENERALS, NO_STEPS, Call, GeneralTrace, Kind, Row, Symbols
from stack.framework.realize import (
    array_of,
    compute,
    compute_before,
    is_of_parts,
    isolate,
    realize,
    realize_leaves,
)
from stack.framework.request import depends
from stack.framework.spread import GradientOf, divisions_of
from stack.framework.tensor import Tensor
from stack.framework.tree import LEAF, flatten, unflatten
from stack.framework.within import Values, forget, values_of
from stack.recorder import _walk as walk
from stack.runtime.array import Array
from stack.runtime.engine import Engine
from stack.runtime.families import Dynamic
from stack.runtime.general import periods_of
from stack.runtime.plan import Bound, Plan

P = ParamSpec("P")
R = TypeVar("R")

NOTES = 200
"""How many traces are told."""

PLANS = 256
"""How many plans a function keeps, for the kinds of arguments that it was called with last."""


@overload
def jit(
    function: Callable[P, R],
    *,
    dynamic: bool | None = None,
    memory: int | None = None,
    host_memory: int | None = None,
) -> Jitted[P, R]: ...
@overload
def jit(
    *, dynamic: bool | None = None, memory: int | None = None, host_memory: int | None = None
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
def jit(
    function: Any = None,
    *,
    dynamic: bool | None = None,
    memory: int | None = None,
    host_memory: int | None = None,
) -> Any:
    """Capture the function, gradients and optimizer steps included, as one plan for each kind of
    arguments.

    Arguments are nested tuples, lists and dicts. Tensors, numpy arrays and numpy scalars in them
    may change from call to call; everything else is part of the plan, as are shapes, element types
    and which tensors from outside require gradients: another value is traced anew. The function's
    Python runs only when it is traced. Tensors from outside that it reads are read at each call,
    and those that it changes in place are updated in place. Gradients that it gathers are kept, or
    added to those that are there; but for one that it began anew (by `zero_grad`) and that an
    optimizer's step in it has used: then there is none. Within the function values cannot be read.
    It returns tensors in nested tuples, lists and dicts.

    Plans live as long as their function, which keeps those of the last PLANS kinds of arguments: a
    kind that was not seen for longer is traced anew.

    The first call is traced for its own sizes and numbers (Python's floats and integers from 2 on,
    among the arguments). A second one that differs in these alone is traced so that what differs is
    data, and serves every further call that meets the conditions which `explain` tells
    (`dynamic=None`). `dynamic=True` begins so; `dynamic=False` traces and compiles for each call
    anew: sums are then made in one order for each size, of which those over halves of the rows are
    parts.

    With `memory` a call needs at most so many bytes at one time for what it reads, its temporaries
    and its results: where that is less than what it takes to keep every value of a forward pass,
    values wait in the host's memory, at most `host_memory` bytes (by default none if the device's
    memory is the host's, otherwise as many as it takes); where that is not enough, as few of them
    as are enough are computed again for the backward pass. Both give the same bits; `explain` tells
    what was chosen and what it costs. Each kind of arguments is then traced for itself. Under
    `parallel` these are the bytes of one rank. Raises InvalidCall when called, with the least bytes
    there are, if that is more.
    """
    if function is None:
        return lambda function: Jitted(function, dynamic, memory, host_memory)
    return Jitted(function, dynamic, memory, host_memory)


class Jitted(walk.Replaying, Generic[P, R]):
    """A function under `jit`; `traced` counts its traces, `plans` the plans that it keeps."""

    def __init__(
        self,
        function: Callable[P, R],
        dynamic: bool | None = None,
        memory: int | None = None,
        host_memory: int | None = None,
    ) -> None:
        if memory is None and host_memory is not None:
            raise TensorError(
                f"host_memory={host_memory} says where values may wait that `memory` has no room "
                "for; give `memory`, too"
            )
        self._function, self._memory, self._host_memory = function, memory, host_memory
        self._dynamic = dynamic if memory is None else False
        self._captured: dict[Hashable, tuple[Captured, ...]] = {}  # least recently used first
        self._newest: tuple[Captured, ...] = ()
        self._usual: Usual | None = None
        self._lock = threading.RLock()
        self._kinds: OrderedDict[Hashable, Kind] = OrderedDict()
        self._notes: deque[str] = deque(maxlen=NOTES)
        self.plans = 0
        self.traced = 0
        _functions.add(self)
        update_wrapper(self, function)

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def _call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """A call for which there is no usual way."""
        if under_way and tracing() is not None:
            return self._function(*args, **kwargs)
        given: list[Any] = []
        parts: list[Any] = [modes.key(), len(args)]
        for x in args:
            _add_key(x, given, parts)
        if kwargs:
            _add_key(kwargs, given, parts)
        key: Hashable = tuple(parts)
        try:
            plans = self._captured.get(key, ())
        except TypeError as error:
            raise TensorError(
                f"an argument of {self._name} is neither an array nor hashable: {error}\n"
                f"  called at {where_called()}"
            ) from None
        # the first that this thread would trace the same now
        captured = next((plan for plan in plans if plan.holds()), None)
        if captured is None:
            realize_leaves()  # a device computes them while the function is traced
            _, spec = flatten((args, kwargs), _is_array)
            arguments = tuple([_argument(x) for x in given])

            def traced(given: list[Tensor]) -> Any:
                args, kwargs = unflatten(spec, iter(given))
                return self._function(*args, **kwargs)

            call = Call.of(spec, arguments, parts[0])
            captured = self._general(call)
            if captured is not None and call.has_numbers:
                return cast("R", _run(captured, given))  # found again by its kind
            if captured is None:
                self.traced += 1
                captured = capture(self._name, traced, arguments, self._plan)
                for division in divisions_of(captured.sources):
                    division.called(self._name, [_value(x) for x in given])
            self._keep(key, (*plans, captured))
            self._usual = _usual(captured, args, parts)
        elif plans is not self._newest:
            self._keep(key, plans)
            self._usual = _usual(captured, args, parts)
        result: R = _run(captured, given)
        return result

    def _keep(self, key: Hashable, plans: tuple[Captured, ...]) -> None:
        """These are the plans of a kind, which was called last."""
        with self._lock:
            self._newest = plans
            self.plans += len(plans) - len(self._captured.pop(key, ()))
            self._captured[key] = plans
            while self.plans > PLANS:
                oldest, (_, *kept) = next(iter(self._captured.items()))
                self.plans -= 1
                self._captured[oldest] = tuple(kept)
                if not kept:
                    del self._captured[oldest]

    def _plan(self, device: str, request: GraphRequest) -> Plan | Bound:
        # It lives as long as this function.
        own: object = engine(device)
        if self._memory is not None and isinstance(own, Engine):
            what = f"a call of {self._name}"
            plan, cost = own.within(request, self._memory, self._host_memory, what)
            self._notes.append(f"{self._name} {cost}")
            return plan
        return engine(device).plan(request, keep=False, general=self._dynamic is not False)

    def _general(self, call: Call) -> Captured | None:
        """What serves many calls, this one among them; None where it is to be traced for itself."""
        if self._dynamic is False or not call.row:
            return None
        with self._lock:
            kind = self._kinds.setdefault(call.kind, Kind())
            self._kinds.move_to_end(call.kind)
            if len(self._kinds) > PLANS:
                self._kinds.popitem(last=False)
            found = kind.at(call.row)
            if found is not None:
                return found
            seen = call.row in kind.rows
            first = not kind.rows
            if not seen:
                kind.rows.append(call.row)
            if len([t for t in kind.traces if t.captured.holds()]) >= GENERALS and not kind.fixed:
                kind.fixed = f"the conditions of {GENERALS} traces for many calls leave others out"
            if kind.fixed or seen or (first and not self._dynamic):
                why = kind.fixed or "the first of its kind"
                self._notes.append(f"traced for {_shown(call)}: {why}")
                return None
            rows = [*kind.rows]
        if first:  # nothing is known of what varies: all of it may
            rows.insert(0, tuple([type(v)(v + 1) for v in call.row]))
        return self._traced_for_many(call, kind, rows)

    def _traced_for_many(
        self, call: Call, kind: Kind, rows: Sequence[Row], steps: Mapping[str, int] = NO_STEPS
    ) -> Captured | None:
        device = call.arguments[0].device if call.arguments else default_device()
        own: object = engine(device)
        if not isinstance(own, Engine):  # tests bring others
            return None
        symbols = Symbols.of(call, rows, own.families.have_sizes, steps)
        if symbols is None:
            self._notes.append(f"traced for {_shown(call)}: sizes of {device} are not data")
            return None
        # The last trace is for whatever size there is.
        may_step = not steps and len(kind.traces) < GENERALS - 1
        spec, arguments = call.with_values(symbols.values)
        dynamics: list[Dynamic] = []

        def traced(given: list[Tensor]) -> Any:
            args, kwargs = unflatten(spec, iter(given))
            return self._function(*args, **kwargs)

        def make(device: str, request: GraphRequest) -> Plan | Bound:
            found = symbols.common_steps(rows, periods_of(request)) if may_step else {}
            if found:
                raise _Steps(found)
            with own.compiling():
                dynamic = own.dynamic(request, f"calls of {self._name} with other sizes or numbers")
                if dynamic is None:
                    raise _FixedSizes("these sizes cannot be data")
                dynamics.append(dynamic)
                plan = own.at(dynamic, symbols.facts.hints)
            assert plan is not None, "what was compiled for a call serves it"
            return plan

        try:
            captured = capture(self._name, traced, arguments, make, symbols.facts)
        except _Steps as found:
            return self._traced_for_many(call, kind, rows, found.steps)
        except Exception as error:  # noqa: BLE001 - the function may not take what stands for a number
            kind.fixed = f"with sizes or numbers as data: {type(error).__name__}: {error}"
            self._notes.append(f"traced for {_shown(call)}: {kind.fixed}")
            return None
        self.traced += 1
        plans = OrderedDict[Plan, None]() if call.has_numbers else None
        kind.traces.append(GeneralTrace(captured, symbols, dynamics[0], own, plans))
        conditions = dynamics[0].conditions
        said = "".join(f"\n  if {c}" for c in conditions)
        varied = ", ".join(f"{name} = {row}" for name, row in symbols.facts.hints.items())
        varied += "".join(
            f", of sizes {step} * {name} + {rest}"
            for name, (step, rest) in symbols.steps.items()
            if step > 1
        )
        self._notes.append(f"traced for many, here {varied}{said}")
        return kind.at(call.row)

    def explain(self) -> str:
        """What was traced, for which calls, and why, the last NOTES of it: a line each, and below
        it the conditions under which it serves others."""
        return "\n".join(self._notes)

    def _forget_all(self) -> None:
        self._captured.clear()
        self._kinds.clear()
        self._newest, self._usual, self.plans = (), None, 0
        self._lock = threading.RLock()

    @property
    def _name(self) -> str:
        return name_of(self._function)

    @property
    def launches(self) -> int:
        """The kernel launches of all captured plans."""
        return sum(c.plan.launches for plans in self._captured.values() for c in plans)


class _FixedSizes(Exception):
    """Sizes of a graph cannot be data."""


class _Steps(Exception):
    """Sizes are divided by plain numbers, as by strides: of those so many apart a graph is compiled
    in which nothing is left to divide."""

    def __init__(self, steps: Mapping[str, int]) -> None:
        super().__init__(str(steps))
        self.steps = steps


def _shown(call: Call) -> str:
    """A call's arguments: the types of tensors, then the numbers."""
    numbers = call.row[call.sizes :]
    return ", ".join([*(str(a.type) for a in call.arguments), *map(str, numbers)])


_ARRAYS = (Tensor, np.ndarray, np.generic)


def _is_array(x: Any) -> bool:
    return isinstance(x, _ARRAYS)


def _add_key(x: Any, given: list[Any], parts: list[Any]) -> None:
    """Append the arrays of an argument to `given`, and to `parts` what its trace depends on.

    Each value begins with what tells how many parts follow (a type of arrays, of a container or of
    what is fixed), so two lists of parts are equal for equal calls alone.
    """
    if isinstance(x, Tensor):
        given.append(x)
        parts += (x.node.type, x.device, x.requires_grad)
    elif isinstance(x, dict):
        parts += (type(x), tuple(x))
        for value in x.values():
            _add_key(value, given, parts)
    elif isinstance(x, tuple | list):
        parts += (type(x), len(x))
        for value in x:
            _add_key(value, given, parts)
    elif _is_array(x):
        given.append(x)
        parts += _argument(x)
    else:
        parts += (type(x), x)


_functions: weakref.WeakSet[Jitted[..., Any]] = weakref.WeakSet()


def _forget_parents() -> None:
    """Plans run on the devices of the process that captured them."""
    for function in _functions:
        function._forget_all()


os.register_at_fork(after_in_child=_forget_parents)


def _argument(x: Any) -> Argument:
    if isinstance(x, Tensor):
        return Argument(x.node.type, x.device, x.requires_grad)
    _, dtype = host_array(np.empty(0, x.dtype), None)
    return Argument(Type(np.shape(x), dtype), default_device(), False)


def _value(x: Any) -> Any:
    """An argument's value, as an array of the host or a device; None where ranks have parts."""
    if not isinstance(x, Tensor):
        return x
    return None if is_of_parts(x.node) else array_of(x)


Usual = tuple[Any, ...]
"""What the recorder needs for a quick call: the kinds of arguments, the modes, what tells
whether the plan holds (None where it always does), the plan, its sources, the device, the number of
results and what makes one value of them (None where they are one tensor)."""


def _usual(captured: Captured, args: Sequence[Any], parts: list[Any]) -> Usual | None:
    """A plan as it is most often, for calls like this one, whose trace depends on `parts`: of
    tensors, which it reads and leaves as they are."""
    writes = captured.states or captured.gradients or captured.gathered
    if writes or captured.needs or captured.settlers:
        return None
    modes_then, _, *facts = parts
    if not all(type(x) is Tensor for x in args) or len(facts) != 3 * len(args):
        return None
    if not all(isinstance(s, int | Cell | Array) for s in captured.sources):
        return None
    bound: object = captured.plan
    plan, numbers = (bound.plan, bound.numbers) if isinstance(bound, Bound) else (bound, ())
    if not isinstance(plan, Plan):  # tests bring others
        return None
    kinds = tuple(zip(facts[::3], facts[1::3], facts[2::3], strict=True))
    whole = None if captured.results is LEAF else partial(unflatten, captured.results)
    return (
        *(kinds, modes_then, captured.holds if captured.may_end else None, plan),
        *((*captured.sources, *numbers), captured.device, captured.result_count, whole),
    )


def _run(captured: Captured, given: Sequence[Any]) -> Any:
    for settler in captured.settlers:
        take_over(settler)
    if captured.needs:
        # Raise RangeError where arguments of the host hold an index that is out of range.
        seen: dict[int, Values | None] = {}
        for call in captured.needs:
            values, number = call.need.known, call.argument
            if number is not None:
                if number not in seen:
                    x = given[number]
                    seen[number] = (
                        values_of(x.node) if isinstance(x, Tensor) else Values(np.asarray(x))
                    )
                values = seen[number]
                if values is None:
                    continue
            call.need.check(values, call.sizes(captured.sizes))
    written = _held_apart(captured) if captured.held or captured.states else set[Node]()
    if written:
        compute_before(written)
        for found in store.leaves.keyrefs():
            n = found()
            if n is not None and depends([n], written, through_known=True):
                store.leaves.pop(n, None)
        forget(written)
    arrays = [_array(source, given, captured, written) for source in captured.sources]
    outputs = captured.plan.run(arrays)
    if captured.gradients or captured.gathered:
        # Leave the gradients as the function does.
        for t, new in captured.gradients:
            if isinstance(new, int):
                t.grad = Tensor(store.holding(outputs[new]), captured.device, owns=True)
            else:
                t.grad = new
        for t, at in captured.gathered:
            if t.grad is not None and t.grad.link is not None:  # its memory is another tensor's
                rebind(t.grad, store.holding(arrays[at]))
    device = captured.device
    if captured.results is LEAF:
        return Tensor(store.holding(outputs[0]), device, owns=True)
    results = outputs[: captured.result_count]
    tensors = [Tensor(store.holding(a), device, owns=True) for a in results]
    return unflatten(captured.results, iter(tensors))


def _held_apart(captured: Captured) -> set[Node]:
    """Give what the function reads from outside arrays of its own; the nodes that it overwrites.
    Raises GradientError for a gradient that it adds to and that is another tensor's, too."""
    gathered = [t.grad for t, _ in captured.gathered if t.grad is not None]
    for gradient in gathered:
        if gradient.link is None and not gradient.owns:
            rebind(gradient, gradient.node)  # so that no other tensor has its array
    cells = [c for s in captured.held if (c := cell_of(s)) is not None and c.link is None]
    if gathered:
        count = Counter(map(id, cells))
        for gradient in gathered:
            if count[id(gradient)] > 1:
                raise GradientError(
                    f"a jitted function adds to a gradient of {gradient.value_type} that two "
                    "tensors have, or that it reads as a tensor from outside; give each tensor its "
                    "own by clone(), and within the function read it as `grad`\n"
                    f"  called at {where_called()}"
                )
    if any(c.node not in store.arrays for c in cells):
        realize(*cells)
        isolate(c for c in cells if c.node not in store.arrays)
    return {c.node for c in (*captured.states, *gathered) if c.link is None}


def _array(source: Any, given: Sequence[Any], captured: Captured, written: set[Node]) -> Any:
    if isinstance(source, GradientOf):
        held = cell_of(source)
        assert held is not None, "the plan is for tensors that have a gradient"
        if held.link is not None or depends([held.node], written - {held.node}):
            return compute([held.node], captured.device)[0]
        return store.arrays.get(held.node) or array_of(held)
    if isinstance(source, Cell):
        # Another thread that begins to trace gives a leaf to what shares one.
        return store.arrays.get(source.node) or array_of(source)
    if not isinstance(source, int):
        return source
    value = given[source]
    if not isinstance(value, Tensor):
        array, dtype = host_array(value, None)
        return engine(captured.device).put(array, dtype)
    node = value.node
    if written and depends([node], written, through_known=True):
        return compute([node], captured.device)[0]
    return store.arrays.get(node) or array_of(value)
