"""What of torch asks which device it is, or has no hook for one in Python, taught this one."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.bridge.torch import kernels
from stack.bridge.torch.tape import TORCH, lock
from stack.recorder.window import Window, steps_between


def install() -> None:
    """Change these, once."""
    every = torch.library.Library("_", "IMPL")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    own = torch.library.Library("aten", "IMPL")
    for layout in ("Sparse", "SparseCsr", "NestedTensor", "Quantized"):
        every.fallback(_dense_alone, f"{layout}PrivateUse1")
    _libraries.extend((every, own))
    for names, narrow in ((_NARROW, True), (_WIDE, False)):
        for name in names:
            base, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, base), overload or "default")
            own.impl(name, _cast_of(op, narrow), "AutocastPrivateUse1")
    Tensor.__deepcopy__ = _deepcopy_of(Tensor.__deepcopy__)
    Tensor.__repr__ = _repr_of(Tensor.__repr__)
    torch.UntypedStorage.resize_ = _resize_of(torch.UntypedStorage.resize_)
    forward_ad.enter_dual_level = _enter_of(forward_ad.enter_dual_level)
    if forward_ad._current_level >= 0:
        _linear_by_others()


def _dense_alone(op: Any, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        f"{op} on {kernels.NAME}: its tensors are dense, none is sparse, nested or quantized; an "
        "embedding takes sparse=False. docs/torch-ops.md lists the operators"
    )


def reshaped_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides under another shape; None where elements would have to be copied."""
    whole = Window(shape, strides)
    x: Node = g.input(0, Type(shape, DType.F32))
    steps = steps_between(x, g.reshape(x, wanted))
    found = None if steps is None else whole.through(steps)
    return None if found is None else found.strides


def _enter_of(otherwise: Any) -> Any:
    def enter_dual_level() -> int:
        _linear_by_others()
        level: int = otherwise()
        return level

    return enter_dual_level


@functools.cache
def _linear_by_others() -> None:
    """Let torch compute `linear` by other operators: as one it has no derivative forwards. All
    later calls take longer, so it is not done before somebody derives so."""
    key, op = torch._C.DispatchKey.CompositeImplicitAutograd, torch.ops.aten.linear.default
    own = torch.library.Library("aten", "IMPL")
    own.impl("linear", functools.partial(op._op_dk, key), "AutogradPrivateUse1")
    _libraries.append(own)


def _deepcopy_of(otherwise: Any) -> Any:
    def __deepcopy__(self: Tensor, memo: dict[int, Any]) -> Any:
        if self.device.type != kernels.NAME or not self.is_leaf or id(self) in memo:
            return otherwise(self, memo)
        with torch.no_grad():
            made: Any = _copied(self.detach(), memo)
            if isinstance(self, torch.nn.Parameter):
                made = type(self)(made, self.requires_grad)
            else:
                made.requires_grad_(self.requires_grad)
            if self.grad is not None:
                made.grad = copy.deepcopy(self.grad, memo)
            made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        memo[id(self)] = made
        return made

    return __deepcopy__


def _copied(x: Tensor, memo: dict[Any, Any]) -> Tensor:
    """x on a copy of its whole storage, of which a deep copy makes one: what shared it goes on
    sharing."""
    if not x.numel():
        return x.clone()
    rows = memo.setdefault(kernels.NAME, {})
    with lock:
        own = kernels.storage_of(x)
        if own not in rows:
            rows[own] = kernels.shared(own, x.device.index, TORCH[own.dtype]).clone()
    row = rows[own] if rows[own].dtype is x.dtype else rows[own].view(x.dtype)
    return kernels.view_of(row, x.shape, x.stride(), x.storage_offset())


def _resize_of(otherwise: Any) -> Any:
    """A storage of the device keeps its size: one of 0 bytes gives up what is in it, as those do
    that shard parameters, until it is written again."""

    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if self.device.type != kernels.NAME:
            made: torch.UntypedStorage = otherwise(self, size)
            return made
        if size not in (0, self.nbytes()):
            raise NotImplementedError(
                f"a storage of {self.nbytes()} bytes on {self.device} of {size} bytes: it can give "
                "up its memory, or keep its size"
            )
        if not size and self.data_ptr():
            kernels.give_up(self)
        return self

    return resize_


def _repr_of(otherwise: Any) -> Any:
    def __repr__(self: Tensor, *, tensor_contents: Any = None) -> str:
        has_values = type(self) in (Tensor, torch.nn.Parameter) and not _is_traced(self)
        if self.device.type != kernels.NAME or not has_values:
            return str(otherwise(self, tensor_contents=tensor_contents))
        shown = torch._tensor_str._tensor_str(self.detach().cpu(), 7)
        suffixes = [f"device='{self.device}'"]
        if not self.numel() and self.dim() != 1:
            suffixes.append(f"size={tuple(self.shape)}")
        plain = {torch.get_default_dtype()}
        if self.dtype not in (plain | _SEEN if self.numel() else plain):
            suffixes.append(f"dtype={self.dtype}")
        if self.grad_fn is not None:
            suffixes.append(f"grad_fn=<{type(self.grad_fn).__name__}>")
        elif self.requires_grad:
            suffixes.append("requires_grad=True")
        text = torch._tensor_str._add_suffixes(f"tensor({shown}", suffixes, 7, False)
        return f"Parameter containing:\n{text}" if isinstance(self, torch.nn.Parameter) else text

    return __repr__


_is_traced = torch._is_functional_tensor
_SEEN = {torch.int64, torch.bool}
"""Types that elements show."""


_NARROW = (
    *("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "conv1d", "conv2d"),
    *("conv3d", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"),
    *("convolution", "scaled_dot_product_attention", "einsum", "prelu"),
)
"""What autocast computes in its type."""
_WIDE = (
    *("softmax.int", "log_softmax.int", "layer_norm", "group_norm", "nll_loss", "nll_loss_nd"),
    *("cross_entropy_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"),
    *("binary_cross_entropy_with_logits", "exp", "log", "pow.Tensor_Scalar", "rsqrt"),
    *("sum", "sum.dim_IntList", "prod", "cumsum", "norm.Scalar", "linalg_vector_norm"),
)
"""What autocast computes in float32."""
_libraries: list[Any] = []


def _cast_of(op: Any, narrow: bool) -> Any:
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        wanted = torch.get_autocast_dtype(kernels.NAME) if narrow else torch.float32

        def cast(a: Any) -> Any:
            if isinstance(a, Tensor):
                known = a.dtype in (torch.float32, torch.bfloat16, torch.float16)
                return a.to(wanted) if known and a.device.type == kernels.NAME else a
            return type(a)([cast(x) for x in a]) if isinstance(a, list | tuple) else a

        with torch._C._ExcludeDispatchKeyGuard(key):
            return op(*[cast(a) for a in args], **{k: cast(v) for k, v in kwargs.items()})

    return kernel
