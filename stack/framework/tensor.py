"""The tensor: a lazy value with PyTorch's operations.

A tensor is a value, not a window on memory: an operation in place changes the tensor that it is
called on and no other, also where PyTorch would make a view. Tensors are for one thread at a time.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework import dtypes, store
from stack.framework.apply import common_device, evaluate
from stack.framework.autograd import gradient_leaf, gradients
from stack.framework.cell import Cell, follow, rebind, traces
from stack.framework.device import NDArray, engine
from stack.framework.errors import GradientError, TensorError, where_called
from stack.framework.expr import activation, contract, index, movement
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.expr.operand import Operand
from stack.framework.mode import grad_enabled, share_gradients
from stack.framework.realize import array_of, refuse_in_trace

P = ParamSpec("P")
M = TypeVar("M", bound=Callable[..., Any])
Scalar = float | int | bool
Shape = int | Sequence[int]


class Extreme(NamedTuple):
    """What max and min along an axis give: the values and where they are."""

    values: Tensor
    indices: Tensor


def apply(function: Callable[..., Node], *args: Any, **kwargs: Any) -> Tensor:
    """An expression on nodes as an operation on tensors: the device and gradient tracking of the
    operands."""
    node, device, tracked = evaluate(function, args, kwargs)
    return Tensor(node, device, requires_grad=tracked and node.dtype.is_float)


def apply_many(
    function: Callable[..., list[Node]], *args: Any, **kwargs: Any
) -> tuple[Tensor, ...]:
    """`apply` for an expression with several results."""
    nodes, device, tracked = evaluate(function, args, kwargs)
    return tuple(Tensor(n, device, requires_grad=tracked and n.dtype.is_float) for n in nodes)


def _method(
    function: Callable[Concatenate[Node, P], Node],
) -> Callable[Concatenate[Tensor, P], Tensor]:
    def method(self: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        return apply(function, self, *args, **kwargs)

    return _named(method, function)


def _binary(function: Callable[[Operand, Operand], Node]) -> Callable[[Tensor, Any], Tensor]:
    def method(self: Tensor, other: Any) -> Tensor:
        return apply(function, self, other) if _is_operand(other) else NotImplemented

    return _named(method, function)


def _reflected(function: Callable[[Operand, Operand], Node]) -> Callable[[Tensor, Any], Tensor]:
    def method(self: Tensor, other: Any) -> Tensor:
        return apply(function, other, self) if _is_operand(other) else NotImplemented

    return _named(method, function)


def _inplace(function: Callable[..., Node]) -> Callable[..., Tensor]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self._change(function, *args, **kwargs)

    return _named(method, function)


def _variadic(function: Callable[[Node, Sequence[int]], Node]) -> Callable[..., Tensor]:
    """A method that takes sizes or axes one by one or as one sequence."""

    def method(self: Tensor, *sizes: Shape) -> Tensor:
        first = sizes[0] if len(sizes) == 1 else sizes
        return apply(function, self, (first,) if isinstance(first, int) else tuple(first))

    return _named(method, function)


def _named(method: M, function: Callable[..., Any]) -> M:
    method.__name__, method.__doc__ = function.__name__.strip("_"), function.__doc__
    return method


def _is_operand(value: Any) -> bool:
    return isinstance(value, Tensor | float | int | np.generic)


def _same(x: Node) -> Node:
    return x


def _second(x: Node, source: Operand) -> Node:
    """The values of another tensor, or a number, in each place."""
    return source if isinstance(source, Node) else g.const(source, x.dtype)


def _fill_where(x: Node, mask: Node, value: Operand) -> Node:
    return e.where(mask, value if isinstance(value, Node) else g.const(value, x.dtype), x)


class Tensor(Cell):
    """An array of one element type on one device, computed when its values are asked for.

    Make tensors with `tensor`, `zeros`, `arange` and the like, not with this constructor, which
    takes a graph node.
    """

    __slots__ = ("grad",)
    __hash__ = object.__hash__
    __array_ufunc__ = None

    grad: Tensor | None
    """The gradient that `backward` has gathered, for leaves that require one."""

    def __init__(
        self,
        node: Node,
        device: str,
        owns: builtins.bool = False,
        requires_grad: builtins.bool = False,
    ) -> None:
        super().__init__(node, device, owns, requires_grad)
        self.grad = None

    # facts

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def ndim(self) -> builtins.int:
        return len(self.node.shape)

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
        return self.node.type.size

    def __len__(self) -> builtins.int:
        if not self.shape:
            raise TensorError(f"a 0-d tensor has no length\n  called at {where_called()}")
        return self.shape[0]

    # values

    def numpy(self) -> NDArray:
        """A copy of the values on the host. bfloat16 comes as ml_dtypes.bfloat16."""
        return engine(self.device).get(array_of(self))

    def __array__(self, dtype: Any = None, copy: builtins.bool | None = None) -> NDArray:
        return np.asarray(self.numpy(), dtype)

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

    def __repr__(self) -> str:
        if traces:
            return f"tensor(<traced {self.node.type}>)"
        text = np.array2string(self.numpy(), separator=", ", prefix="tensor(", precision=4)
        facts = [text, f"device={self.device!r}", f"dtype={dtypes.NAMES[self.dtype]}"]
        return f"tensor({', '.join(facts + ['requires_grad=True'] * self.requires_grad)})"

    # gradients

    def backward(self, gradient: Tensor | None = None) -> None:
        """Add the derivative of this value by every leaf that requires a gradient to the leaf's
        `grad`.

        A value of more than one element takes the derivative of the loss by it as `gradient`.
        """
        d = _seed(self, gradient)
        found = gradients([(self.node, d)], lambda n: gradient_leaf(n) is not None)
        for n, total in found.items():
            leaf = gradient_leaf(n)
            assert isinstance(leaf, Tensor), "only tensors require gradients"
            if leaf.grad is None:
                leaf.grad = Tensor(total, leaf.device)
            else:
                rebind(leaf.grad, g.add(leaf.grad.node, total))
        share_gradients()

    def detach(self) -> Tensor:
        """The same values, through which no gradient flows."""
        return Tensor(store.barrier(self.node), self.device, owns=True)

    @property
    def data(self) -> Tensor:
        """`detach()`. Assigning replaces the values and leaves gradients alone."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        _check_like(self, value.node)
        rebind(self, value.node)

    def requires_grad_(self, requires_grad: builtins.bool = True) -> Tensor:
        """Gather gradients here from now on (or no more). Only for float leaves."""
        if requires_grad and not self.dtype.is_float:
            raise GradientError(f"a {dtypes.NAMES[self.dtype]} tensor has no gradient")
        if self.requires_grad and not self.is_leaf:
            raise GradientError("only leaves can change requires_grad; use detach()")
        if not self.owns:
            rebind(self, self.node)
        self.requires_grad = requires_grad
        return self

    def clone(self) -> Tensor:
        """The same values as a tensor of their own; gradients flow through it."""
        return apply(_same, self)

    # conversion

    def to(self, target: DType | str | Tensor) -> Tensor:
        """The values as another element type, on another device, or as and where another tensor's
        are."""
        if isinstance(target, Tensor):
            return self.to(target.device).to(target.dtype)
        if isinstance(target, DType):
            return self if target is self.dtype else apply(e.to, self, target)
        return self if target == self.device else self._moved(target)

    def _moved(self, device: str) -> Tensor:
        refuse_in_trace(f"to({device!r}) was called")
        if self.requires_grad and grad_enabled():
            raise GradientError("gradients do not cross devices; use .detach().to(device)")
        array = engine(device).put(self.numpy(), self.dtype)
        return Tensor(store.holding(array), device, owns=True)

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

    def int(self) -> Tensor:
        return self.to(DType.I32)

    def bool(self) -> Tensor:
        return self.to(DType.BOOL)

    # arithmetic

    add = __add__ = __radd__ = _binary(e.add)
    mul = __mul__ = __rmul__ = _binary(e.mul)
    sub = __sub__ = _binary(e.sub)
    div = true_divide = __truediv__ = _binary(e.div)
    floor_divide = __floordiv__ = _binary(e.floor_divide)
    remainder = __mod__ = _binary(e.remainder)
    pow = __pow__ = _binary(e.pow)
    __rsub__ = _reflected(e.sub)
    __rtruediv__ = _reflected(e.div)
    __rfloordiv__ = _reflected(e.floor_divide)
    __rmod__ = _reflected(e.remainder)
    __rpow__ = _reflected(e.pow)
    matmul = mm = bmm = __matmul__ = _binary(contract.matmul)
    minimum = _binary(e.minimum)
    maximum = _binary(e.maximum)
    eq = _binary(e.eq)
    ne = _binary(e.ne)
    __eq__ = _binary(e.eq)  # type: ignore[assignment]
    __ne__ = _binary(e.ne)  # type: ignore[assignment]
    lt = __lt__ = _binary(e.lt)
    le = __le__ = _binary(e.le)
    gt = __gt__ = _binary(e.gt)
    ge = __ge__ = _binary(e.ge)
    bitwise_and = __and__ = __rand__ = _binary(e.bitwise_and)
    bitwise_or = __or__ = __ror__ = _binary(e.bitwise_or)
    bitwise_xor = __xor__ = __rxor__ = _binary(e.bitwise_xor)
    __lshift__ = _binary(e.shift_left)
    __rshift__ = _binary(e.shift_right)
    logical_and = _binary(e.logical_and)
    logical_or = _binary(e.logical_or)

    neg = __neg__ = _method(e.neg)
    abs = __abs__ = _method(e.abs_)
    __invert__ = _method(e.bitwise_not)
    logical_not = _method(e.logical_not)
    sign = _method(e.sign)
    exp = _method(e.exp)
    log = _method(e.log)
    log2 = _method(e.log2)
    log10 = _method(e.log10)
    sin = _method(e.sin)
    cos = _method(e.cos)
    tan = _method(e.tan)
    tanh = _method(e.tanh)
    sigmoid = _method(e.sigmoid)
    erf = _method(e.erf)
    sqrt = _method(e.sqrt)
    rsqrt = _method(e.rsqrt)
    reciprocal = _method(e.reciprocal)
    floor = _method(e.floor)
    ceil = _method(e.ceil)
    round = _method(e.round)
    square = _method(e.square)
    isnan = _method(e.isnan)
    isinf = _method(e.isinf)
    isfinite = _method(e.isfinite)
    clamp = clip = _method(e.clamp)
    relu = _method(activation.relu)

    def where(self, condition: Tensor, other: Tensor | Scalar) -> Tensor:
        """self where the condition holds, else other."""
        return apply(e.where, condition, self, other)

    def masked_fill(self, mask: Tensor, value: Tensor | Scalar) -> Tensor:
        """value where the mask holds, else self; its element type is that of self."""
        return apply(_fill_where, self, mask, value).to(self.dtype)

    # reductions

    sum = _method(r.sum)
    mean = _method(r.mean)
    prod = _method(r.prod)
    amax = _method(r.max)
    amin = _method(r.min)
    argmax = _method(r.argmax)
    argmin = _method(r.argmin)
    any = _method(r.any_)
    all = _method(r.all_)
    var = _method(r.var)
    std = _method(r.std)
    norm = _method(r.norm)
    logsumexp = _method(r.logsumexp)
    softmax = _method(r.softmax)
    log_softmax = _method(r.log_softmax)
    cumsum = _method(r.cumsum)
    cumprod = _method(r.cumprod)

    def max(self, dim: Any = None, keepdim: builtins.bool = False) -> Any:
        """The greatest element; with an axis (values, indices) along it; with a tensor
        `maximum`."""
        return self._extreme(r.max, r.argmax, e.maximum, dim, keepdim)

    def min(self, dim: Any = None, keepdim: builtins.bool = False) -> Any:
        """The least element; with an axis (values, indices) along it; with a tensor `minimum`."""
        return self._extreme(r.min, r.argmin, e.minimum, dim, keepdim)

    def _extreme(self, value: Any, place: Any, pair: Any, dim: Any, keepdim: builtins.bool) -> Any:
        if isinstance(dim, Tensor):
            return apply(pair, self, dim)
        if dim is None:
            return apply(value, self)
        return Extreme(apply(value, self, dim, keepdim), apply(place, self, dim, keepdim))

    # movement

    reshape = view = _variadic(movement.reshape)
    permute = _variadic(movement.permute)
    expand = _variadic(movement.expand)
    flip = _variadic(movement.flip)
    transpose = swapaxes = _method(movement.transpose)
    t = _method(movement.t)
    flatten = _method(movement.flatten)
    squeeze = _method(movement.squeeze)
    unsqueeze = _method(movement.unsqueeze)
    tril = _method(movement.tril)
    triu = _method(movement.triu)

    def expand_as(self, other: Tensor) -> Tensor:
        return self.expand(other.shape)

    def view_as(self, other: Tensor) -> Tensor:
        return self.reshape(other.shape)

    def contiguous(self) -> Tensor:
        return self

    @property
    def T(self) -> Tensor:
        """The axes in reverse order."""
        return self.permute(tuple(range(self.ndim))[::-1])

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged."""
        return self.transpose(-2, -1)

    def split(
        self, size: builtins.int | Sequence[builtins.int], dim: builtins.int = 0
    ) -> tuple[Tensor, ...]:
        """Pieces along an axis: of `size` each (the last may be less), or of the sizes given."""
        return apply_many(movement.split, self, size, dim)

    def chunk(self, chunks: builtins.int, dim: builtins.int = 0) -> tuple[Tensor, ...]:
        """At most `chunks` pieces of one size along an axis; the last may be smaller."""
        return apply_many(movement.chunk, self, chunks, dim)

    def unbind(self, dim: builtins.int = 0) -> tuple[Tensor, ...]:
        """The slices along an axis, without it."""
        return tuple(piece.squeeze(dim) for piece in self.split(1, dim))

    def __getitem__(self, place: Any) -> Tensor:
        return apply(index.getitem, self, place)

    def index_select(self, dim: builtins.int, places: Tensor) -> Tensor:
        """The slices at these positions of an axis."""
        return apply(index.take, self, places, dim)

    gather = _method(index.gather)

    # in place

    def __setitem__(self, place: Any, value: Tensor | Scalar) -> None:
        self._change(index.setitem, place, value)

    add_ = __iadd__ = _inplace(e.add)
    sub_ = __isub__ = _inplace(e.sub)
    mul_ = __imul__ = _inplace(e.mul)
    div_ = __itruediv__ = _inplace(e.div)
    clamp_ = clip_ = _inplace(e.clamp)
    copy_ = _inplace(_second)
    fill_ = _inplace(_second)
    neg_ = _inplace(e.neg)
    exp_ = _inplace(e.exp)
    sqrt_ = _inplace(e.sqrt)

    def zero_(self) -> Tensor:
        """Make every element 0."""
        return self.fill_(0)

    def masked_fill_(self, mask: Tensor, value: Tensor | Scalar) -> Tensor:
        """Make the elements where the mask holds `value`."""
        return self._change(_fill_where, mask, value)

    def _change(self, function: Callable[..., Node], *args: Any, **kwargs: Any) -> Tensor:
        """Give this tensor the function's result, in its own shape and element type."""
        node, _, tracked = evaluate(function, (self, *args), kwargs)
        node = _fitted(self, node, function.__name__.strip("_"))
        if self.requires_grad and (self.is_leaf if grad_enabled() else not self.is_leaf):
            raise GradientError(
                f"{function.__name__}: a leaf that requires a gradient changes only under "
                "no_grad(), a value "
                f"computed from one only outside it\n  called at {where_called()}"
            )
        if tracked and self.dtype.is_float:
            follow(self, node)
            self.requires_grad = True
        else:
            rebind(self, node)
        return self


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


def _check_like(target: Tensor, node: Node) -> None:
    if node.type != target.node.type:
        raise TensorError(
            f"a tensor of {target.node.type} cannot take a value of {node.type}; convert it first\n"
            f"  called at {where_called()}"
        )


def _seed(loss: Tensor, gradient: Tensor | None) -> Node:
    """The derivative of the loss by its own value."""
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
        return g.full_like(loss.node, 1)
    _check_like(loss, gradient.node)
    common_device([loss, gradient])
    return gradient.node


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
