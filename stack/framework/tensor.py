"""The tensor: a lazy value with PyTorch's operations.

Tensors share memory where PyTorch's do: a view, `detach()` and `data` are windows on the tensor
they were taken from, and what changes one of them in place changes all. Results of operations are
in row-major order, whatever the operands' strides are. Threads compute with tensors of their own,
and read those that nobody changes; one that several change is theirs to take turns with.
"""

from __future__ import annotations

import builtins
import copy
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, cast, overload

import numpy as np

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.core.values import Region
from hal.tile.node import Node, Type
from stack import ops as g
from stack.framework import dtypes, modes, store
from stack.framework.apply import common_device, evaluate
from stack.framework.at_once import read_at_once, write_at_once
from stack.framework.cell import (
    NO_HOOKS,
    Cell,
    Hook,
    Link,
    changed,
    connect,
    here,
    hooked,
    note_change,
    note_window,
    owners,
    rebind,
    root,
    serials,
    stale,
    tracing,
    under_way,
    write,
)
from stack.framework.devices import NDArray, engine, engines, placed
from stack.framework.errors import GradientError, RangeError, TensorError, absent, where_called
from stack.framework.expr import compact, index, movement
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import Operand
from stack.framework.host import host_array
from stack.framework.layout import (
    channels_last,
    channels_last_3d,
    check_layout,
    has_channels_last,
)
from stack.framework.modes import autocast_dtype, grad_enabled, gradients_are_local, no_grad
from stack.framework.moves import Move, known_moves, moves
from stack.framework.operators import Operators
from stack.framework.realize import array_of, realize, refuse_in_trace
from stack.framework.recorded import CellTape, recordable, tape_of
from stack.framework.removable import RemovableHandle
from stack.framework.reverse import check_told_apart, gradient_leaf, gradients
from stack.framework.within import remember
from stack.memory.slabs import SlabBlock
from stack.recorder import _walk as walk
from stack.recorder import kin
from stack.recorder import tape as tapes
from stack.recorder.tape import Named, read, same
from stack.recorder.window import Window
from stack.runtime.array import Array
from stack.runtime.memory import Life

Scalar = float | int | bool
Shape = int | Sequence[int]


def apply(function: Callable[..., Node], *args: Any, **kwargs: Any) -> Tensor:
    """An expression on nodes as an operation on tensors: the device and gradient tracking of the
    operands."""
    if (found := _recorded(function, args, kwargs)) is not None:
        return found
    node, device, tracked = evaluate(function, args, kwargs)
    return Tensor(node, device, requires_grad=tracked and node.dtype.is_float)


def _second(x: Node, source: Operand) -> Node:
    """The values of another tensor, or a number, in each place."""
    return source if isinstance(source, Node) else g.const(source, x.dtype)


def _with_diagonal(x: Node, value: Scalar) -> Node:
    places = [
        g.broadcast(g.reshape(g.arange(n), (n,) + (1,) * (len(x.shape) - 1 - a)), x.shape)
        for a, n in enumerate(x.shape)
    ]
    hit = places[0]
    equal = g.full(x.shape, True, DType.BOOL)
    for place in places[1:]:
        equal = g.and_(equal, g.eq(hit, place))
    return g.where(equal, g.full_like(x, value), x)


GradRule = Callable[[], None]


class Several:
    """A value of several tensors that does operations in its own way: a function of the table is
    its method of that name; one of a list of them, or of one among other operands, is `join`."""

    __slots__ = ()
    join: ClassVar[Callable[..., Any]]
    widen: ClassVar[Callable[[Tensor], Any]]
    """A tensor as complex numbers."""


class Extents(tuple[builtins.int, ...]):
    """The sizes of a tensor's axes: `Size` for users."""

    __slots__ = ()

    def numel(self) -> builtins.int:
        """Their product."""
        return math.prod(self)


@dataclass(frozen=True, slots=True)
class Backward:
    """That a gradient flows through a value, and by which operator: what `grad_fn` gives."""

    operator: str

    def name(self) -> str:
        return f"{self.operator.title().replace('_', '')}Backward"


class _TensorType(type):
    """The type of `Tensor`: called with host data or sizes it gives a float32 tensor, as PyTorch's
    oldest constructor does."""

    if not TYPE_CHECKING:

        def __call__(cls, *given: Any, **named: Any) -> Any:
            if cls is Tensor and not (given and isinstance(given[0], Node)):
                return Tensor.of_data(*given, **named)
            return super().__call__(*given, **named)


PRINTED: dict[str, Any] = {"precision": 4}
"""How values are shown, as `numpy.array2string` takes it."""


class Tensor(Cell, Operators, metaclass=_TensorType):
    """An array of one element type on one device, computed when its values are asked for.

    Make tensors with `tensor`, `zeros`, `arange` and the like, not with this constructor, which
    takes a graph node.
    """

    __slots__ = ("_grad", "_grad_rules")
    __hash__ = object.__hash__
    __array_ufunc__ = None

    namespace: ClassVar[Any] = None
    """The module of the array API's names, which lies above this one."""
    of_data: ClassVar[Callable[..., Any]]
    """What makes a float32 tensor of host data or sizes, and lies above this one, too."""

    def __init__(
        self,
        node: Node,
        device: str,
        owns: builtins.bool = False,
        requires_grad: builtins.bool = False,
    ) -> None:
        super().__init__(node, device, owns, requires_grad)
        self._grad: Tensor | None = None
        self._grad_rules: tuple[GradRule, ...] = ()

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward` has gathered, for leaves that require one."""
        trace = tracing() if under_way else None
        if trace is None or self.serial >= trace.born:
            return self._grad
        if self not in trace.gradients:
            trace.note(self, "grad_type")
            trace.gradients[self] = held = self._grad
            if held is not None:
                leaf = store.argument(held.node.type, trace.function)
                trace.gradients[self] = Tensor(leaf, held.device, owns=True)
                trace.given[self] = trace.gradients[self], leaf
        found: Tensor | None = trace.gradients[self]
        return found

    @grad.setter
    def grad(self, gradient: Tensor | None) -> None:
        trace = tracing() if under_way else None
        if trace is not None and self.serial < trace.born:
            trace.gradients[self] = gradient
        elif gradient is not self._grad:
            self._grad = gradient
            changed()

    @property
    def grad_type(self) -> tuple[Type, str] | None:
        """What traces read of a gradient: its type and device, None where there is none."""
        return None if self._grad is None else (self._grad.node.type, self._grad.device)

    @property
    def grad_rules(self) -> tuple[GradRule, ...]:
        """What a `backward` ends with that has gathered a gradient here, such as sharing it with
        other ranks; a rule of several leaves is called once. Not within
        `mode.local_gradients()`."""
        if (trace := tracing()) is not None:
            trace.note_flag(self, "_grad_rules")
        return self._grad_rules

    @grad_rules.setter
    def grad_rules(self, rules: tuple[GradRule, ...]) -> None:
        self._grad_rules = rules
        changed()

    # facts

    @property
    def shape(self) -> Extents:
        return Extents(self.value_type.shape)

    @property
    def dtype(self) -> DType:
        return self.value_type.dtype

    @property
    def ndim(self) -> builtins.int:
        return len(self.value_type.shape)

    @property
    def is_leaf(self) -> builtins.bool:
        """Whether a gradient would be gathered here, not passed on."""
        return self.owns or not self.requires_grad

    def size(self, dim: builtins.int | None = None) -> Any:
        """The shape, or the size of one axis."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> builtins.int:
        return self.ndim

    def numel(self) -> builtins.int:
        """The number of elements."""
        return self.value_type.size

    nelement = numel
    ndimension = dim

    @property
    def itemsize(self) -> builtins.int:
        """The bytes of one element."""
        return self.element_size()

    @property
    def nbytes(self) -> builtins.int:
        """The bytes of all elements."""
        return self.numel() * self.itemsize

    @property
    def is_cpu(self) -> builtins.bool:
        """Whether the device is the host's processor."""
        return self.device.startswith("cpu:")

    @property
    def is_cuda(self) -> builtins.bool:
        """False: of PyTorch's own kinds of devices there is the host's processor alone."""
        return False

    is_mps = is_xpu = is_cuda

    @property
    def is_sparse(self) -> builtins.bool:
        """False: all elements are stored."""
        return False

    @property
    def is_meta(self) -> builtins.bool:
        """False: every tensor has values."""
        return False

    @property
    def layout(self) -> str:
        """ "strided", the only one."""
        return "strided"

    @property
    def is_quantized(self) -> builtins.bool:
        """False: quantised values are integers with scales of their own."""
        return False

    def get_device(self) -> builtins.int:
        """The number of the device of its kind; -1 for the host's processor."""
        return -1 if self.is_cpu else int(self.device.rpartition(":")[2])

    def is_pinned(self) -> builtins.bool:
        """False: the runtime pins what it copies from, while it copies."""
        return False

    def pin_memory(self) -> Tensor:
        """The tensor itself, which is copied as fast."""
        return self

    def equal(self, other: Tensor) -> builtins.bool:
        """Whether both have one shape and equal elements."""
        return equal(self, other)

    def is_complex(self) -> builtins.bool:
        """False: complex values are pairs, `ComplexTensor`."""
        return False

    def is_signed(self) -> builtins.bool:
        """Whether the element type has negative numbers."""
        return self.dtype.kind in "if"

    def is_nonzero(self) -> builtins.bool:
        """Whether the single element is not 0."""
        return bool(self.item())

    def is_same_size(self, other: Tensor) -> builtins.bool:
        return self.shape == other.shape

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The node of a window whose memory has changed; any other name is not there."""
            if name.startswith("_") or name == "node":
                return super().__getattr__(name)
            raise absent("Tensor", name, [n for n in dir(type(self)) if not n.startswith("_")])

    def __len__(self) -> builtins.int:
        if not self.shape:
            raise TensorError(f"a 0-d tensor has no length\n  called at {where_called()}")
        return self.shape[0]

    # values

    def numpy(self) -> NDArray:
        """A copy of the values on the host. bfloat16 comes as ml_dtypes.bfloat16."""
        found = read_at_once(self)
        return engine(self.device).get(array_of(self)) if found is None else found

    def __array__(self, dtype: Any = None, copy: builtins.bool | None = None) -> NDArray:
        if copy is False:
            raise ValueError(
                "values come to the host as a copy; leave copy=False out\n"
                f"  called at {where_called()}"
            )
        return np.asarray(self.numpy(), dtype)

    def __dlpack__(self, **options: Any) -> Any:
        """A copy of the values on the host, for DLPack."""
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return np.zeros(0).__dlpack_device__()

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The array API standard's names: `stack.framework.array_api`."""
        if api_version not in (None, "2024.12"):
            raise ValueError(f"the version of the array API is 2024.12, not {api_version}")
        assert Tensor.namespace is not None, "the framework's module sets it"
        return Tensor.namespace

    def to_device(self, device: str, /, *, stream: None = None) -> Tensor:
        """`to`, under the array API's name."""
        return self.to(device)

    def tolist(self) -> Any:
        """The values as Python numbers in nested lists."""
        return self.numpy().tolist()

    def item(self) -> Any:
        """The single value as a Python number. Raises TensorError for more or less than one
        element."""
        if self.numel() != 1:
            raise TensorError(
                f"item() needs one element, got shape {list(self.shape)}; use tolist()\n"
                f"  called at {where_called()}"
            )
        return self.numpy().reshape(()).item()

    def __float__(self) -> builtins.float:
        return float(self.item())

    def __int__(self) -> builtins.int:
        return int(self.item())

    def __index__(self) -> builtins.int:
        if not self.dtype.is_int:
            raise TensorError(f"only integer tensors index, got {dtypes.NAMES[self.dtype]}")
        return int(self.item())

    def __bool__(self) -> builtins.bool:
        return bool(self.item())

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __format__(self, spec: str) -> str:
        return format(self.item() if spec and not self.shape else str(self), spec)

    def __repr__(self) -> str:
        if tracing() is not None:
            return f"tensor(<traced {self.node.type}>)"
        text = np.array2string(self.numpy(), separator=", ", prefix="tensor(", **PRINTED)
        facts = [text, f"device={self.device!r}", f"dtype={dtypes.NAMES[self.dtype]}"]
        return f"tensor({', '.join(facts + ['requires_grad=True'] * self.requires_grad)})"

    # gradients

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: builtins.bool | None = None,
        create_graph: builtins.bool = False,
        inputs: Tensor | Sequence[Tensor] | None = None,
    ) -> None:
        """Add the derivative of this value by every leaf that requires a gradient, or by `inputs`
        alone, to the leaf's `grad`; with create_graph it can be differentiated in turn.

        A value of more than one element takes the derivative of the loss by it as `gradient`.
        `retain_graph` changes nothing: what a value was computed from lives as long as the value.
        """
        _check_seed(self, gradient)
        plain = not under_way and inputs is None and not create_graph
        leaves = self._backward_on_tape(gradient) if plain else None
        if leaves is None:
            leaves = self._backward_in_nodes(gradient, create_graph, inputs)
        if not gradients_are_local():
            for rule in dict.fromkeys(rule for leaf in leaves for rule in leaf.grad_rules):
                rule()

    def _backward_on_tape(self, gradient: Tensor | None) -> list[Tensor] | None:
        """The leaves that have gathered gradients; None where it is not for a tape."""
        tape = tape_of(self.device)
        found = tape.backward(self, gradient)
        if found is None:
            return None
        sums: list[builtins.int] = []
        seen: set[builtins.int] = set()
        for leaf, n in found:
            assert isinstance(leaf, Tensor), "only tensors require gradients"
            held = leaf._grad
            if held is not None:
                if id(held) in seen:
                    return None  # two leaves have one gradient: both are added to it
                seen.add(id(held))
                simple = held.link is None and not held._requires_grad
                before = tape.number(held) if simple else -1
                if before < 0 or held.value_type != tape.tape.types[n]:
                    return None
                n = tape.tape.append((g.add, before, n))
            sums.append(n)
        for (leaf, _), n in zip(found, sums, strict=True):
            assert isinstance(leaf, Tensor), "only tensors require gradients"
            if leaf._grad is None:
                leaf.grad = on_tape(tape, n)
            else:
                tape.overwrite(leaf._grad, n)
        return [cast("Tensor", leaf) for leaf, _ in found]

    def _backward_in_nodes(
        self,
        gradient: Tensor | None,
        create_graph: builtins.bool,
        inputs: Tensor | Sequence[Tensor] | None,
    ) -> list[Tensor]:
        d = _seed(self, gradient)
        exchanges: list[Node] = []
        chosen = [inputs] if isinstance(inputs, Tensor) else inputs
        only = None if chosen is None else {x.node for x in chosen}

        def is_wanted(n: Node) -> builtins.bool:
            return gradient_leaf(n) is not None and (only is None or n in only)

        found = gradients([(self.node, d)], is_wanted, exchanges)
        check_told_apart(exchanges)
        leaves: list[Tensor] = []
        for n, total in found.items():
            leaf = gradient_leaf(n)
            assert isinstance(leaf, Tensor), "only tensors require gradients"
            leaves.append(leaf)
            if leaf.grad is None:
                leaf.grad = Tensor(total, leaf.device, requires_grad=create_graph)
            elif create_graph:
                leaf.grad = leaf.grad + Tensor(total, leaf.device, requires_grad=True)
            else:
                rebind(leaf.grad, g.add(leaf.grad.node, total))
        trace = tracing()
        if exchanges and trace is not None:
            trace.effects += [Tensor(n, self.device) for n in exchanges if g.is_message(n)]
            check_told_apart(e.node for e in trace.effects)
        elif exchanges:  # now, on all ranks, whoever looks at a gradient
            realize(*(leaf.grad for leaf in leaves if leaf.grad is not None))
        return leaves

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Call the hook with each gradient by this tensor, before it goes on; what it returns, if
        it does, takes its place. Equal computations are one: the hook sees the sum of their
        gradients."""
        if not self.requires_grad:
            raise GradientError(
                f"a hook looks at the gradient of what requires one\n  called at {where_called()}"
            )
        here.context.make_nodes()  # what was recorded before is not looked at
        hooks = _hooks(self) if self.owns else hooked.setdefault(self.node, {})
        handle, device = RemovableHandle(hooks), self.device

        def look(total: Node) -> Node:
            with no_grad():
                found = hook(Tensor(total, device))
            return total if found is None else found.node

        hooks[handle.id] = look
        return handle

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Call the hook with this leaf after each `backward` that has gathered a gradient here."""
        if not (self.owns and self.requires_grad):
            raise GradientError(f"only leaves gather gradients\n  called at {where_called()}")
        rules: dict[builtins.int, GradRule] = {}
        handle, me = RemovableHandle(rules), weakref.ref(self)
        rules[handle.id] = lambda: hook(found) if (found := me()) is not None else None

        def run() -> None:
            for rule in list(rules.values()):
                rule()

        self.grad_rules = (*self.grad_rules, run)
        return handle

    def retain_grad(self) -> None:
        """Gather the gradient by this computed value in `grad`, too."""
        if self.owns:
            return
        me = weakref.ref(self)

        def keep(total: Tensor) -> None:
            if (kept := me()) is not None:
                kept.grad = total if kept.grad is None else kept.grad + total

        self.register_hook(keep)

    @property
    def grad_fn(self) -> Backward | None:
        """Of a computed value through which gradients flow, by which operator; None of others."""
        if not self.requires_grad or self.is_leaf:
            return None
        return Backward(self.node.op)

    @property
    def requires_grad(self) -> builtins.bool:
        """Whether gradients are gathered here, or flow through here."""
        return super().requires_grad

    @requires_grad.setter
    def requires_grad(self, required: builtins.bool) -> None:
        self.requires_grad_(required)

    def detach(self) -> Tensor:
        """A window on the same memory, through which no gradient flows."""
        source, window = _place(self)
        if under_way:
            result = Tensor(store.barrier(self.node), self.device, owns=True)
        else:
            result = _without_node(self.device, False)
            result.owns = True
        connect(result, Link(source, window, cut=True), self.value_type)
        return result

    def detach_(self) -> Tensor:
        """Make this tensor a leaf through which no gradient flows."""
        self.require_grad(False)
        if self.link is None:
            rebind(self, self.node)
        else:
            self.link = self.link._replace(cut=True)
            _own(self, store.barrier(self.node))
        return self

    @property
    def data(self) -> Tensor:
        """`detach()`. A tensor that is assigned gives its memory, which both then share; gradients
        are left alone."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        _check_like(self, value.value_type)
        share(self, value)

    def requires_grad_(self, requires_grad: builtins.bool = True) -> Tensor:
        """Gather gradients here from now on (or no more). Only for float leaves."""
        if requires_grad and not self.dtype.is_float:
            raise GradientError(f"a {dtypes.NAMES[self.dtype]} tensor has no gradient")
        if self.requires_grad and not self.is_leaf:
            raise GradientError("only leaves can change requires_grad; use detach()")
        if requires_grad and not self.owns and self.link is not None:
            with store.lock:
                self.link = self.link._replace(cut=True)
                _own(self, store.barrier(self.node))
        elif not self.owns and self.link is None:
            rebind(self, self.node)
        self.require_grad(requires_grad)
        return self

    # memory

    def stride(self, dim: builtins.int | None = None) -> Any:
        """How many elements lie between neighbours on each axis, or on one."""
        strides = _geometry(self).strides
        return strides if dim is None else strides[dim]

    def storage_offset(self) -> builtins.int:
        """How many elements of the memory lie before the first one."""
        return _geometry(self).offset

    def is_contiguous(self, memory_format: Any = None) -> builtins.bool:
        """Whether the elements lie one after the other in row-major order, or in that of a
        format with channels last."""
        check_layout("memory_format", memory_format)
        if memory_format in (channels_last, channels_last_3d):
            return has_channels_last(memory_format, self.shape, self.stride())
        return _geometry(self).is_contiguous

    def __deepcopy__(self, memo: dict[builtins.int, Any]) -> Tensor:
        """A tensor with memory of its own. Tensors that share memory, and are copied together,
        share it again. Raises GradientError for what was computed from tensors that require a
        gradient."""
        if id(self) in memo:
            found: Tensor = memo[id(self)]
            return found
        self._check_leaf("copied")
        if self.link is None:
            copied = store.barrier(self.node)
            result = _leaf(type(self), copied, self.device, self._requires_grad)
        else:
            source = _copied_memory(self.link.source, memo)
            result = _linked(type(self), source, self.link.window, self._requires_grad)
        memo[id(self)] = result
        result.grad = copy.deepcopy(self.grad, memo)
        for name, value in _extras(self).items():
            setattr(result, name, copy.deepcopy(value, memo))
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Values, element type, device and whether a gradient is required; tensors that share
        memory, and are pickled together, share it again."""
        self._check_leaf("pickled")
        own = (None, _extras(self))
        if self.link is None or not all(c.owns or not c._requires_grad for c in _sources(self)):
            values = self.numpy(), self.dtype, self.device
            return _loaded, (type(self), *values, self._requires_grad), own
        where = self.link.source, self.link.window
        return _linked, (type(self), *where, self._requires_grad), own

    def _check_leaf(self, what: str) -> None:
        if not self.is_leaf:
            raise GradientError(
                f"only leaves can be {what}, not what was computed from tensors that require a "
                f"gradient; detach() it first\n  called at {where_called()}"
            )

    def clone(self, *, memory_format: str | None = None) -> Tensor:
        """The same values as a tensor of their own, in row-major order; gradients flow through
        it."""
        check_layout("memory_format", memory_format)
        return apply(same, self)

    # conversion

    @overload
    def to(
        self,
        device: str | None = None,
        dtype: DType | None = None,
        non_blocking: builtins.bool = False,
        copy: builtins.bool = False,
    ) -> Tensor: ...
    @overload
    def to(
        self, dtype: DType, non_blocking: builtins.bool = False, copy: builtins.bool = False
    ) -> Tensor: ...
    @overload
    def to(
        self, other: Tensor, non_blocking: builtins.bool = False, copy: builtins.bool = False
    ) -> Tensor: ...

    def to(self, *args: Any, copy: builtins.bool = False, **kwargs: Any) -> Tensor:
        """The values on another device, as another element type, or as and where another tensor's
        are: itself where nothing differs, unless a copy is asked for."""
        device, dtype = placement(*args, **kwargs)
        moved = self if device is None or device == self.device else self._moved(device)
        cast = moved if dtype is None or dtype is self.dtype else apply(e.to, moved, dtype)
        return cast.clone() if copy and cast is self else cast

    def cpu(self) -> Tensor:
        """The values on the host's processor, "cpu:0"."""
        return self.to("cpu:0")

    def _moved(self, device: str) -> Tensor:
        refuse_in_trace(f"to({device!r}) was called")
        device = placed(device)
        if self.requires_grad and grad_enabled():
            raise GradientError("gradients do not cross devices; use .detach().to(device)")
        return Tensor(put(self.numpy(), self.dtype, device), device, owns=True)

    def is_floating_point(self) -> builtins.bool:
        return self.dtype.is_float

    def element_size(self) -> builtins.int:
        """The bytes of one element."""
        return self.dtype.bits // 8

    def fill_diagonal_(self, fill_value: Scalar) -> Tensor:
        """Make the elements whose indices are all equal this number."""
        return self._change(_with_diagonal, fill_value)

    def type_as(self, other: Tensor) -> Tensor:
        return self.to(other.dtype)

    def float(self) -> Tensor:
        return self.to(DType.F32)

    def double(self) -> Tensor:
        return self.to(DType.F64)

    def half(self) -> Tensor:
        return self.to(DType.F16)

    def bfloat16(self) -> Tensor:
        return self.to(DType.BF16)

    def long(self) -> Tensor:
        return self.to(DType.I64)

    def short(self) -> Tensor:
        return self.to(DType.I16)

    def char(self) -> Tensor:
        return self.to(DType.I8)

    def byte(self) -> Tensor:
        return self.to(DType.U8)

    def type(self, dtype: DType | None = None) -> Any:
        """The values as another element type; without one what PyTorch's programs call tensors of
        this one, such as "torch.FloatTensor"."""
        return dtypes.TENSORS[self.dtype] if dtype is None else self.to(dtype)

    def int(self) -> Tensor:
        return self.to(DType.I32)

    def bool(self) -> Tensor:
        return self.to(DType.BOOL)

    # views

    def reshape_as(self, other: Tensor) -> Tensor:
        return self.reshape(other.shape)

    def expand_as(self, other: Tensor) -> Tensor:
        return self.expand(other.shape)

    def view(self, *shape: Any, dtype: DType | None = None) -> Tensor:
        """The same memory under another shape; one -1 stands for what remains. Raises TensorError
        where elements do not lie as it needs. Of an element type a copy whose elements have the
        bits of these."""
        first = shape[0] if shape else dtype
        if type(first) is not builtins.int and isinstance(asked := dtypes.of(first), DType):
            return apply(movement.read_as, self, asked)
        if not shape:
            raise TypeError("view() needs a shape")
        sizes = shape if len(shape) > 1 or type(first) is builtins.int else tuple(shape[0])
        result: Tensor = _windows(movement.reshape, (self, sizes), {})
        if result.link is None:
            raise TensorError(
                f"view: a tensor of shape {list(self.shape)} and strides {list(self.stride())} has "
                f"no view of shape {list(result.shape)}; use reshape(), which copies\n  called at "
                f"{where_called()}"
            )
        return result

    def as_strided(
        self,
        size: Sequence[builtins.int],
        stride: Sequence[builtins.int],
        storage_offset: builtins.int | None = None,
    ) -> Tensor:
        """A copy of the elements of this tensor's memory at `storage_offset`, or where this one
        begins, and the products of strides and places."""
        offset = self.storage_offset() if storage_offset is None else storage_offset
        link = self.link
        source = self if link is None else cast("Tensor", root(self))
        found = apply(movement.strided, source, tuple(size), tuple(stride), offset)
        return found.detach() if link is not None and link.cut else found

    def view_as(self, other: Tensor) -> Tensor:
        return self.view(other.shape)

    def contiguous(self, memory_format: str | None = None) -> Tensor:
        """The tensor itself, or a copy in row-major order where it lies otherwise, whichever
        format is asked for."""
        check_layout("memory_format", memory_format)
        return self if self.is_contiguous() else self.clone()

    @property
    def T(self) -> Tensor:
        """The axes in reverse order."""
        return self.permute(tuple(range(self.ndim))[::-1])

    @property
    def H(self) -> Tensor:
        """The conjugate transpose of a matrix."""
        return self.transpose(0, 1)

    @property
    def mH(self) -> Tensor:
        """The conjugate transposes of matrices."""
        return self.transpose(-2, -1)

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged."""
        return self.transpose(-2, -1)

    def unbind(self, dim: builtins.int = 0) -> tuple[Tensor, ...]:
        """The slices along an axis, without it."""
        pieces = tuple(piece.squeeze(dim) for piece in self.split(1, dim))
        for piece in pieces:
            assert piece.link is not None
            piece.link = piece.link._replace(refusal=_ONE_OF_SEVERAL)
        return pieces

    def __getitem__(self, place: Any) -> Tensor:
        shown: Tensor | None = walk.view(index.getitem, self, place)
        if shown is None:
            place = _without_masks(place, self)
            if (both := _in_two(place)) is not None:
                return self[both[0]][both[1]]
            shown = _on_tape(index.getitem, (self, place), {})
        return _windows(index.getitem, (self, place), {}) if shown is None else shown

    # in place

    def __setitem__(self, place: Any, value: Tensor | Scalar) -> None:
        if walk.write(index.getitem, self, place, value):
            return
        place = place if _is_mask(place) else _without_masks(place, self)
        shown = value if isinstance(value, Tensor) and value.link else None
        in_one = shown is not None and _source(shown) is _source(self)
        if shown is not None and in_one and _geometry(shown) == _geometry(self[place]):
            # `x[place] += 1` gives the window, which has been written.
            self._check_changes("setitem", grad_enabled() and shown.requires_grad)
        elif not under_way and (both := _in_two(place)) is not None:
            self[both[0]][both[1]] = value
        elif under_way or not self._set_on_tape(place, value):
            self._change(index.setitem, place, value)

    def _set_on_tape(self, place: Any, value: Any) -> builtins.bool:
        """Whether the part has these values on a tape now; False where it is not for one."""
        given = value if isinstance(value, Tensor) else None
        if self._requires_grad or (given is None and not isinstance(value, builtins.int | float)):
            return False
        if given is not None and given.dtype is not self.dtype:
            return False
        if given is not None and given._requires_grad and grad_enabled():
            return False
        shown = walk.view(index.getitem, self, place)
        if shown is None:
            known = moves(index.getitem, self.value_type, (place,), {})
            shown = _shown(self, known[1][0], False, "") if known and known[0] else None
        if shown is None or shown.link is None or shown.link.window.repeats:
            return False
        source = shown.link.source
        if source.link is not None or source._requires_grad or source.device != self.device:
            return False
        if write_at_once(source, shown.link.window, value):
            return True
        tape = tape_of(self.device)
        if given is None:
            n = tape.filled(shown.value_type, value)
        elif given.device != self.device:
            return False
        elif given.value_type == shown.value_type:
            n = tape.number(given)
        else:
            try:
                n = tape.number(given.expand(shown.value_type.shape))
            except TensorError:  # told by the operation itself, if it does not take it either
                return False
        if n < 0 or tape.tape.types[n] != shown.value_type or tape.number(source) < 0:
            return False
        tape.overwrite(shown, n)
        return True

    def copy_(self, source: Tensor | Scalar, non_blocking: builtins.bool = False) -> Tensor:
        """Take the values of another tensor, which broadcast, or a number. They are waited for when
        they are needed."""
        if self.link is not None and not under_way and self._set_on_tape(..., source):
            return self
        alike = isinstance(source, Tensor) and source.value_type == self.value_type
        if alike and not under_way and self._changed_on_tape(same, (source,), {}):
            return self
        return self._change(_second, source)

    def fill_(self, value: Tensor | Scalar) -> Tensor:
        """Make every element this number."""
        if self.link is not None and not under_way and self._set_on_tape(..., value):
            return self
        return self._change(_second, value)

    def zero_(self) -> Tensor:
        """Make every element 0."""
        return self.fill_(0)

    def squeeze_(self, *dim: Any) -> Tensor:
        """`squeeze`, of which this tensor becomes the result."""
        return self._become(self.squeeze(*dim))

    def unsqueeze_(self, dim: builtins.int) -> Tensor:
        """`unsqueeze`, of which this tensor becomes the result."""
        return self._become(self.unsqueeze(dim))

    def t_(self) -> Tensor:
        """`t`, of which this tensor becomes the result."""
        return self._become(self.t())

    def transpose_(self, dim0: builtins.int, dim1: builtins.int) -> Tensor:
        """`transpose`, of which this tensor becomes the result."""
        return self._become(self.transpose(dim0, dim1))

    swapaxes_ = swapdims_ = transpose_

    def _become(self, view: Tensor) -> Tensor:
        """Show what a view of this tensor does; other views keep the memory, which all share."""
        if view is self:
            return self
        refuse_in_trace("a tensor's shape was changed in place")
        if self.is_leaf and self.requires_grad:
            raise GradientError(
                "the shape of a leaf that requires a gradient does not change in place\n  called "
                f"at {where_called()}"
            )
        assert view.link is not None, "these operations give views"
        own, node = self.link, view.node
        with store.lock:
            if self.requires_grad:
                leave(self)
                self.node, self.recording = node, None
                connect(self, view.link)
            elif own is None or not own.cut:
                _share(self, view)
            else:
                window = own.window.through(view.link.window.steps)
                assert window is not None, "axes change their places alone"
                leave(self)
                _take(self, node)
                connect(self, Link(own.source, window, cut=True))
        return self

    def masked_fill_(self, mask: Tensor, value: Tensor | Scalar) -> Tensor:
        """Make the elements where the mask holds `value`."""
        return self._change(e.fill_where, mask, value)

    def _change(self, function: Callable[..., Node], *args: Any, **kwargs: Any) -> Tensor:
        """Give this tensor the function's result, in its own shape and element type."""
        if not under_way and self._changed_on_tape(function, (self, *args), kwargs):
            return self
        node, _, tracked = evaluate(function, (self, *args), kwargs)
        name = function.__name__.strip("_")
        node = _fitted(self, node, name)
        self._check_changes(name, tracked)
        write(self, node, tracked and self.dtype.is_float)
        return self

    def _changed_on_tape(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> builtins.bool:
        """Whether the change to the function's result is on a tape now; False where it is not for
        one."""
        link = self.link
        if link is not None:
            source = link.source
            if source.link is not None or source._requires_grad or link.window.repeats:
                return False
        if self._requires_grad and (grad_enabled() or not self.owns):
            return False  # a leaf may not change now, and where it is no operand no tape says so
        tape = tape_of(self.device)
        if link is not None and tape.number(link.source) < 0:
            return False
        n = tape.operate(function, args, kwargs)
        if n < 0 or tape.tracked or tape.tape.types[n] != self.value_type:
            return False
        tape.overwrite(self, n)
        return True

    def _check_changes(self, name: str, tracked: builtins.bool) -> None:
        """Raise where the operation of this name may not change this tensor in place now."""
        if wrong := self._why_fixed(tracked):
            raise GradientError(f"{name}, in place: {wrong}\n  called at {where_called()}")
        if any(x.link and x.link.window.repeats for x in (self, *_sources(self))):
            raise TensorError(
                f"{name}, in place: elements of an expanded tensor lie in one place; clone() it "
                f"first\n  called at {where_called()}"
            )

    def _why_fixed(self, tracked: builtins.bool) -> str:
        """Why no operation in place may change this tensor now, or nothing."""
        if not grad_enabled():
            return ""
        link = self.link
        if self.requires_grad and self.is_leaf:
            return "a leaf that requires a gradient changes only under no_grad()"
        if link is None:
            return ""
        if not link.cut and link.source.owns and link.source.requires_grad:
            return "a view of a leaf that requires a gradient changes only under no_grad()"
        return link.refusal if tracked or link.source.requires_grad else ""


_ONE_OF_SEVERAL = (
    "it is one of several views that one operation gave, and gradients flow through it; use an "
    "operation that gives a new value"
)
_UNTRACKED = (
    "it is a view that was made under no_grad() of what requires a gradient; take the view and "
    "change it both within no_grad(), or both outside"
)


def _hooks(leaf: Tensor) -> dict[int, Hook]:
    """A leaf's hooks, to which more may be added."""
    if not isinstance(leaf.hooks, dict):
        leaf.hooks = {}
    return leaf.hooks


def _geometry(x: Tensor) -> Window:
    """How x lies in its memory."""
    return Window.whole(x.shape) if x.link is None else x.link.window.own()


def _sources(x: Cell) -> Iterator[Cell]:
    """The cells that x is a window on, one through the other."""
    while x.link is not None:
        x = x.link.source
        yield x


def _extras(x: Tensor) -> dict[str, Any]:
    """What subclasses hold beside the tensor."""
    found = dict(getattr(x, "__dict__", {}))
    for kind in type(x).__mro__[: type(x).__mro__.index(Tensor)]:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(x, name) and name not in ("__dict__", "__weakref__"):
                found[name] = getattr(x, name)
    return found


def _copied_memory(x: Cell, memo: dict[int, Any]) -> Cell:
    """The copy of what others are windows on."""
    if x.owns or not x._requires_grad:
        found: Cell = copy.deepcopy(x, memo)
        return found
    key = -1 - id(x)  # apart from the keys of `deepcopy`
    if key not in memo:
        if x.link is None:
            memo[key] = _leaf(Tensor, store.barrier(x.node), x.device, False)
        else:
            memo[key] = _linked(Tensor, _copied_memory(x.link.source, memo), x.link.window, False)
        memo.setdefault(id(memo), []).append(x)
    copied: Cell = memo[key]
    return copied


def _source(x: Tensor) -> Cell:
    """What a view of x is a window on."""
    return x if x.link is None or x.link.cut else x.link.source


def _place(x: Tensor) -> tuple[Cell, Window]:
    """What a view of x is a window on, and where x lies in it."""
    if x.link is None or x.link.cut:
        return x, _geometry(x)
    return x.link.source, x.link.window


def _windows(expression: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an expression that moves the elements of its first operand, or all of them in
    a tuple: windows on the operand, or tensors of their own where elements are copied."""
    if not kwargs and (view := walk.view(expression, *args)) is not None:
        return view
    x: Tensor = args[0]
    known = None if under_way else moves(expression, x.value_type, args[1:], kwargs)
    if known is not None and None not in [m.steps for m in known[1]]:
        single, all_moves = known
        if single and not all_moves[0].steps and expression is movement.flatten:
            return x  # as in PyTorch, and as nowhere else
        tracked = x._requires_grad and grad_enabled()
        if single:
            found = _shown(x, all_moves[0], tracked, "")
            found = _copied(x, all_moves[0], tracked) if found is None else found
            if found is not None:
                return found
        else:
            shown = [_shown(x, m, tracked, _ONE_OF_SEVERAL) for m in all_moves]
            if all(x is not None for x in shown):  # `in` would ask tensors whether they equal None
                return tuple(shown)
        whole = x.node
        nodes = [reduce(lambda x, step: step(x), m.steps or (), whole) for m in all_moves]
        device = x.device
    else:
        while True:  # another thread that begins to trace gives pending tensors leaves
            whole = x.node
            result, device, tracked = evaluate(expression, args, kwargs)
            if x.node is whole:
                break
        single = isinstance(result, Node)
        nodes = [result] if single else list(result)
        all_moves = tuple([Move.of(whole, n) for n in nodes])
    if single and nodes[0] is whole and expression is movement.flatten:
        return x  # as in PyTorch, and as nowhere else
    made = [
        _window(x, n, m, device, tracked, "" if single else _ONE_OF_SEVERAL)
        for n, m in zip(nodes, all_moves, strict=True)
    ]
    return made[0] if single else tuple(made)


def _shown(x: Tensor, move: Move, tracked: builtins.bool, refusal: str) -> Tensor | None:
    """A window on x, for which no node is made yet; None where elements would be copied."""
    source: Cell = x
    shown = move.shown
    if x.link is not None:
        source, window = _place(x)
        shown = walk.through(window, move)
        if not (refusal or x.link.cut):
            refusal = x.link.refusal
    if shown is None:
        return None
    result = _without_node(x.device, tracked and move.type.dtype.is_float)
    if x._requires_grad and not tracked:
        result.owns = True
        result.link = Link(source, shown, True, None, _UNTRACKED)
    else:
        result.link = Link(source, shown, False, None, refusal)
    result.shown = move.type
    note_window(source, result)
    return result


def _copied(x: Tensor, move: Move, tracked: builtins.bool) -> Tensor | None:
    """What a movement shows of x, in memory of its own, on a tape; None where it is not for one."""
    if under_way or x.requires_grad != tracked:
        return None
    tape = tape_of(x.device)
    n = tape.number(x)
    if n < 0:
        return None
    window = replace(Window.whole(move.type.shape), steps=move.steps or ())
    return on_tape(tape, tape.tape.append((read, n, window)), tracked and move.type.dtype.is_float)


def _window(
    x: Tensor, node: Node, move: Move, device: str, tracked: builtins.bool, refusal: str
) -> Tensor:
    """One result of moving x's elements."""
    result = Tensor(node, device, requires_grad=tracked and node.dtype.is_float)
    if move.steps is None:
        return result
    source: Cell = x
    shown = move.shown
    if x.link is not None:
        source, window = _place(x)
        shown = window.through(move.steps)
    if shown is None:
        return result
    if x._requires_grad and not tracked:
        _own(result, store.barrier(node))
        connect(result, Link(source, shown, cut=True, refusal=_UNTRACKED))
    else:
        inherited = x.link.refusal if x.link is not None and not x.link.cut else ""
        connect(result, Link(source, shown, refusal=refusal or inherited))
    return result


def _own(x: Tensor, leaf: Node) -> None:
    x.node, x.owns, x.recording, x.part = leaf, True, None, None
    owners[leaf] = weakref.ref(x)


def _take(x: Tensor, node: Node) -> None:
    """Give x a value without gradients, and leave the way of its own gradient."""
    if x._requires_grad and not x.owns:
        x.node = store.through(node, x.node)
    else:
        _own(x, store.barrier(node))


def leave(x: Tensor) -> None:
    """Part x from its memory, which the windows on x keep. x keeps its value for now."""
    windows = x.windows()
    if windows:
        heir = Tensor(x.node, x.device, requires_grad=x._requires_grad)
        if x.link is not None:
            _own(heir, store.barrier(x.node))
            connect(heir, x.link)
        for w in windows:
            assert w.link is not None
            connect(w, w.link._replace(source=heir))
    note_change(x)
    x.node, x.link = x.node, None


def share(x: Tensor, other: Tensor) -> None:
    """Let x have the memory of another tensor of its type. Windows on x keep the memory that x had.
    Within a trace x only takes the values."""
    if tracing() is not None:
        rebind(x, other.node)
        return
    if root(x) is root(other) and _geometry(x) == _geometry(other):
        return
    with store.lock:
        _share(x, other)


def _share(x: Tensor, other: Tensor) -> None:
    leave(x)
    if other.link is None and other is not x:
        _take(x, other.node)
        if not other._requires_grad:
            other.owns = True
        connect(other, Link(x, Window.whole(x.shape), cut=True))
        if not other._requires_grad:
            del other.node
            stale(other)
    else:
        source, window = _place(other)
        _take(x, other.node)
        connect(x, Link(source, window, cut=True))


def _leaf(kind: type[Tensor], node: Node, device: str, requires_grad: bool) -> Tensor:
    """A leaf of this class."""
    result = kind.__new__(kind)
    Tensor.__init__(result, node, device, owns=True, requires_grad=requires_grad)
    return result


def _linked(kind: type[Tensor], source: Cell, window: Window, requires_grad: bool) -> Tensor:
    """A window of this class, which is a leaf."""
    leaf = store.barrier(window.read(source.node))
    result = _leaf(kind, leaf, source.device, requires_grad)
    connect(result, Link(source, window, cut=True))
    return result


def _loaded(
    kind: type[Tensor], values: NDArray, dtype: DType, device: str, requires_grad: bool
) -> Tensor:
    return _leaf(kind, put(values, dtype, device), device, requires_grad)


def put(values: NDArray, dtype: DType, device: str) -> Node:
    """A leaf with a copy of these values, which nobody changes from now on, on a device."""
    leaf = store.holding(engine(device).put(values, dtype))
    remember(leaf, values)
    return leaf


def placement(*args: Any, **kwargs: Any) -> tuple[str | None, DType | None]:
    """The device and the element type that the arguments of `to` name, in any of its forms:
    (device, dtype), (dtype), (tensor), or by keyword. `non_blocking` and `memory_format` change
    nothing: a transfer is waited for when its values are needed. Raises TensorError."""
    device, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
    kwargs.pop("non_blocking", None)
    check_layout("memory_format", kwargs.pop("memory_format", None))
    other = kwargs.pop("other", kwargs.pop("tensor", None))
    dtype = dtypes.of(dtype)
    for value in map(dtypes.of, (*args, other)):
        if isinstance(value, Tensor):
            device, dtype = value.device, value.dtype
        elif isinstance(value, DType):
            dtype = value
        elif isinstance(value, str):
            device = placed(value)
        elif not isinstance(value, builtins.bool | None):
            raise TensorError(
                f"to() takes a device, an element type or a tensor, not {value!r}; cfloat() and "
                f"cdouble() make complex numbers\n"
                f"  called at {where_called()}"
            )
    if kwargs:
        raise TensorError(f"to() has no argument {sorted(kwargs)}\n  called at {where_called()}")
    return None if device is None else placed(device), dtype


def _fitted(target: Tensor, node: Node, name: str) -> Node:
    if dtypes.category(node.dtype) > dtypes.category(target.dtype) and name != "second":
        raise TensorError(
            f"{name}: a {dtypes.NAMES[node.dtype]} result does not fit into a "
            f"{dtypes.NAMES[target.dtype]} "
            f"tensor; convert it first\n  called at {where_called()}"
        )
    try:
        return movement.expand(g.cast(node, target.dtype), target.shape)
    except TensorError as error:
        raise TensorError(f"{name}, in place: {error}\n  called at {where_called()}") from None


def _check_like(target: Tensor, type: Type) -> None:
    if type != target.value_type:
        raise TensorError(
            f"a tensor of {target.value_type} cannot take a value of {type}; convert it first\n"
            f"  called at {where_called()}"
        )


def _is_mask(item: Any) -> builtins.bool:
    return isinstance(item, Tensor) and item.dtype is DType.BOOL


def _in_two(place: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """An index of tensors beside numbers as what shows a window, and what is read in that; None for
    any other one."""
    if not isinstance(place, tuple) or not any(isinstance(x, Tensor) for x in place):
        return None
    whole = slice(None)
    numbers = [(isinstance(x, slice) and x != whole) or _is_number(x) for x in place]
    plain = [x is None or x is ... or isinstance(x, Tensor | slice) or _is_number(x) for x in place]
    if not (any(numbers) and all(plain)):
        return None
    window = tuple([whole if isinstance(x, Tensor) else x for x in place])
    rest = [x for x in place if not _is_number(x)]
    return window, tuple([x if x is ... or isinstance(x, Tensor) else whole for x in rest])


def _is_number(x: Any) -> builtins.bool:
    return isinstance(x, builtins.int) and not isinstance(x, builtins.bool)


def _check_masks(items: tuple[Any, ...], x: Tensor) -> None:
    """Raise RangeError where a mask in an index of x is not as large as the axes that it is for."""
    taken = [
        i.ndim if _is_mask(i) else 0 if i is None or i is ... or isinstance(i, builtins.bool) else 1
        for i in items
    ]
    at = 0
    for number, item in enumerate(items):
        if item is ...:
            at = x.ndim - sum(taken[number + 1 :])
        of = x.shape[at : at + taken[number]]
        if _is_mask(item) and not item.ndim and x.ndim:
            raise RangeError(
                "a mask of no axes takes all or nothing of a tensor: use x[None] or x[None][:0]"
                f"\n  called at {where_called()}"
            )
        if _is_mask(item) and tuple(item.shape) != tuple(of):
            raise RangeError(
                f"a mask of {tuple(item.shape)} is not for axes {at} and on, of {tuple(of)}, of a "
                f"tensor of {tuple(x.shape)}\n  called at {where_called()}"
            )
        at += taken[number]


def _without_masks(place: Any, x: Tensor) -> Any:
    """An index of x with the places where each mask holds instead; waits for their number."""
    if type(place) is builtins.int or type(place) is slice:
        return place
    items = place if isinstance(place, tuple) else (place,)
    if any(isinstance(item, np.ndarray) for item in items):
        items = tuple(
            [
                Tensor(put(*host_array(item, None), x.device), x.device)
                if isinstance(item, np.ndarray)
                else item
                for item in items
            ]
        )
        place = items if isinstance(place, tuple) else items[0]
    if not any(map(_is_mask, items)):
        return place
    _check_masks(items, x)
    found: list[Any] = []
    for item in items:
        if _is_mask(item):
            count = int(item.sum().item()) if item.numel() else 0
            found += call(compact.places, item, count)
        else:
            found.append(item)
    return tuple(found)


def _check_seed(loss: Tensor, gradient: Tensor | None) -> None:
    if not loss.requires_grad:
        raise GradientError(
            "this value was computed from nothing that requires a gradient\n  called at "
            f"{where_called()}"
        )
    if gradient is None:
        if loss.numel() != 1:
            raise GradientError(
                f"backward from shape {list(loss.shape)} needs the derivative by it as an "
                "argument\n"
                f"  called at {where_called()}"
            )
        return
    _check_like(loss, gradient.value_type)
    common_device([loss, gradient])


def _seed(loss: Tensor, gradient: Tensor | None) -> Node:
    """The derivative of the loss by its own value."""
    _check_seed(loss, gradient)
    return g.full_like(loss.node, 1) if gradient is None else gradient.node


def grad(
    outputs: Tensor,
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | None = None,
    create_graph: bool = False,
) -> tuple[Tensor, ...]:
    """The derivatives of the output by each input, without touching any `grad`; zeros where there
    is none.

    With create_graph they can be differentiated in turn.
    """
    wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    nodes = {x.node for x in wanted}
    found = gradients([(outputs.node, _seed(outputs, grad_outputs))], nodes.__contains__)
    totals = [found.get(x.node, g.full_like(x.node, 0)) for x in wanted]
    return tuple(Tensor(n, outputs.device, requires_grad=create_graph) for n in totals)


def equal(x: Tensor, y: Tensor) -> bool:
    """Whether both have one shape and equal elements."""
    return x.shape == y.shape and bool((x == y).all().item())


# operators


def _recorded(
    expression: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor | None:
    """The operation's result as a value on a tape; None where it is not for one."""
    found = NotImplemented if kwargs else walk.known(expression, *args)
    return _on_tape(expression, args, kwargs) if found is NotImplemented else found


def _on_tape(
    expression: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor | None:
    """`_recorded` of any operands; `walk.known` does the same for those that are usual."""
    if under_way or not args:
        return None
    first = args[0]
    if not isinstance(first, Tensor):
        listed = isinstance(first, list | tuple) and first
        first = first[0] if listed else args[1] if len(args) > 1 else None
        if not isinstance(first, Tensor):
            return None
    tape = tape_of(first.device)
    n = tape.operate(expression, args, kwargs)
    if n < 0:
        return None
    return on_tape(tape, n, tape.tracked and tape.tape.types[n].dtype.is_float)


def on_tape(tape: CellTape, n: int, requires_grad: bool = False) -> Tensor:
    """A tensor with the value of a number of a tape."""
    result = _without_node(tape.device, requires_grad)
    tape.put(result, n)
    return result


def window_on(source: Tensor, window: Window) -> Tensor:
    """A window on a tensor through which no gradients flow."""
    result = _without_node(source.device, False)
    connect(result, Link(source, window), Type(window.shape, source.dtype))
    return result


def _without_node(device: str, requires_grad: bool) -> Tensor:
    """A tensor whose node is made when somebody asks for it."""
    result = Tensor.__new__(Tensor)
    result.device, result.owns, result.link, result.hooks = device, False, None, NO_HOOKS
    result._requires_grad, result._waits, result._windows = requires_grad, None, ()
    result._grad, result._grad_rules, result.recording, result.part = None, (), None, None
    result.serial = next(serials)
    return result


def call(expression: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`apply` for an expression that may give several nodes, in a list or a named tuple."""
    named = of_several.get(expression)
    kind = None if named is None else named.get((*map(type, args), *kwargs))
    if kind is None and (found := _recorded(expression, args, kwargs)) is not None:
        return found
    if kind is not None and type(args[0]) is Tensor:
        operation: Any = Named(expression, tuple(kwargs)) if kwargs else expression
        several = recorded_several(operation, *args, *kwargs.values())
        if several is not None:
            return kind(*several)
    result, device, tracked = evaluate(expression, args, kwargs)
    if isinstance(result, Node):
        return Tensor(result, device, requires_grad=tracked and result.dtype.is_float)
    parts = [Tensor(n, device, requires_grad=tracked and n.dtype.is_float) for n in result]
    if not isinstance(result, tuple):
        return tuple(parts)
    if expression in recordable:
        of_several.setdefault(expression, {})[*map(type, args), *kwargs] = type(result)
    return type(result)(*parts)


of_several: dict[Callable[..., Any], dict[tuple[Any, ...], type]] = {}
"""What expressions gave for operands of such kinds: named tuples of tensors."""


def call_several(expression: Callable[..., Any], first: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """`call` for an expression whose values follow from its operands alone and are always as
    many."""
    if (recorded := recorded_several(expression, first, *args)) is not None:
        return recorded
    found: tuple[Tensor, ...] = call(expression, first, *args)
    return found


def recorded_several(
    expression: Callable[..., Any], first: Tensor, *args: Any
) -> tuple[Tensor, ...] | None:
    """The same on a tape; None where it is not for one."""
    if under_way:
        return None
    tape = tape_of(first.device)
    numbers = tape.operate_several(expression, (first, *args))
    if numbers is None:
        return None
    types, tracked = tape.tape.types, tape.tracked
    return tuple([on_tape(tape, n, tracked and types[n].dtype.is_float) for n in numbers])


def show(expression: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`call` for an expression whose results are windows on the first operand, where they can
    be."""
    return _windows(expression, args, kwargs)


walk.bind(
    {
        "Array": Array,
        "Cell": Cell,
        "CellTape": CellTape,
        "DType": DType,
        "Inference": kin.Inference,
        "Kin": kin.Kin,
        "Life": Life,
        "Link": Link,
        "Listed": tapes.Listed,
        "Move": Move,
        "Node": Node,
        "Point": tapes.Point,
        "Region": Region,
        "Scalar": kin.Scalar,
        "SlabBlock": SlabBlock,
        "Tape": tapes.Tape,
        "Tensor": Tensor,
        "Type": Type,
        "Window": Window,
        "arrays": store.arrays,
        "autocast": autocast_dtype,
        "engines": engines,
        "grad_mode": grad_enabled,
        "here": here,
        "leaf_slots": store.leaf_slots,
        "mode_key": modes.key,
        "moves": known_moves,
        "no_hooks": NO_HOOKS,
        "note_window": note_window,
        "number_key": tapes.number_key,
        "owners": owners,
        "read": tapes.read,
        "recordable": recordable,
        "serials": serials,
        "stale": stale,
        "store": store,
        "tape_of": tape_of,
        "told": kin.told,
        "under_way": under_way,
        "write": tapes.write,
    }
)
