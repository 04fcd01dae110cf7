"""Complex numbers: a tensor of real parts and one of imaginary parts, with PyTorch's operations.

A gradient by a complex number is that by its real part plus i times that by its imaginary part, as
in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from stack.framework import autograd
from stack.framework.devices import NDArray
from stack.framework.errors import TensorError, absent, where_called
from stack.framework.expr import contract, elementwise, movement
from stack.framework.tensor import Extents, Several, Tensor, apply, call, put


@dataclass(frozen=True, slots=True)
class ComplexType:
    """The element type of complex numbers whose parts are of `part`."""

    name: str
    part: DType

    def __repr__(self) -> str:
        return self.name


complex64 = cfloat = ComplexType("complex64", DType.F32)
complex128 = cdouble = ComplexType("complex128", DType.F64)
_TYPES = {t.part: t for t in (complex64, complex128)}


class ComplexTensor(Several):
    """Complex numbers, as `real` and `imag`, two tensors of one shape and float type. A change in
    place of a part changes this."""

    __slots__ = ("imag", "real")
    __array_ufunc__ = None
    __hash__ = object.__hash__

    real: Tensor
    imag: Tensor

    def __init__(self, real: Tensor, imag: Tensor) -> None:
        if real.shape != imag.shape or real.dtype is not imag.dtype or real.dtype not in _TYPES:
            raise TensorError(
                f"the parts of complex numbers are of one shape and of float32 or float64, got "
                f"{real.dtype.numpy}{list(real.shape)} and {imag.dtype.numpy}{list(imag.shape)}\n"
                f"  called at {where_called()}"
            )
        self.real, self.imag = real, imag

    @staticmethod
    def of(value: Any, like: ComplexTensor) -> ComplexTensor:
        """A number, a real tensor or complex ones as complex ones of the same part type, at least
        where `like` is."""
        if isinstance(value, ComplexTensor):
            return value
        if isinstance(value, Tensor):
            real = value if value.dtype.is_float else value.to(like.real.dtype)
            return ComplexTensor(real, real * 0.0)
        number = complex(value)
        one = like.real.detach().new_ones(())
        return ComplexTensor(one * number.real, one * number.imag)

    # facts

    @property
    def shape(self) -> Extents:
        return self.real.shape

    @property
    def ndim(self) -> int:
        return self.real.ndim

    @property
    def dtype(self) -> ComplexType:
        return _TYPES[self.real.dtype]

    @property
    def device(self) -> str:
        return self.real.device

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one axis."""
        return self.real.size(dim)

    def dim(self) -> int:
        return self.real.ndim

    def numel(self) -> int:
        """The number of elements."""
        return self.real.numel()

    def is_complex(self) -> bool:
        return True

    def is_floating_point(self) -> bool:
        return False

    def numpy(self) -> NDArray:
        """A copy of the values on the host."""
        return self.real.numpy() + 1j * self.imag.numpy()

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def item(self) -> complex:
        """The single value as a Python number."""
        return complex(self.real.item(), self.imag.item())

    __complex__ = item

    def __len__(self) -> int:
        return len(self.real)

    def __iter__(self) -> Iterator[ComplexTensor]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        text = np.array2string(self.numpy(), separator=", ", prefix="tensor(", precision=4)
        return f"tensor({text}, device={self.device!r}, dtype={self.dtype})"

    def __getattr__(self, name: str) -> Any:
        raise absent("ComplexTensor", name, [n for n in dir(type(self)) if not n.startswith("_")])

    # gradients

    @property
    def requires_grad(self) -> bool:
        return self.real.requires_grad or self.imag.requires_grad

    def requires_grad_(self, requires_grad: bool = True) -> ComplexTensor:
        """Gather gradients here from now on (or no more). Only for leaves."""
        self.real.requires_grad_(requires_grad)
        self.imag.requires_grad_(requires_grad)
        return self

    @property
    def grad(self) -> ComplexTensor | None:
        """The gradient that `backward` has gathered."""
        parts = self.real.grad, self.imag.grad
        if parts[0] is None and parts[1] is None:
            return None
        own = self.real, self.imag
        a, b = (p * 0.0 if d is None else d for d, p in zip(parts, own, strict=True))
        return ComplexTensor(a.detach(), b.detach())

    @grad.setter
    def grad(self, value: ComplexTensor | None) -> None:
        self.real.grad = None if value is None else value.real
        self.imag.grad = None if value is None else value.imag

    def backward(self, gradient: ComplexTensor | None = None) -> None:
        """Add the derivative by every leaf to its `grad`, given that by this value."""
        if gradient is None:
            raise TensorError(
                f"backward from complex numbers needs the derivative by them\n  called at "
                f"{where_called()}"
            )
        pairs = (self.real, gradient.real), (self.imag, gradient.imag)
        followed = [(y, d) for y, d in pairs if y.requires_grad]
        autograd.backward([y for y, _ in followed], [d for _, d in followed])

    # arithmetic

    def _meet(self, other: Any) -> tuple[ComplexTensor, ComplexTensor]:
        return ComplexTensor.of(self, self), ComplexTensor.of(other, self)

    def add(self, other: Any, alpha: float = 1) -> ComplexTensor:
        """x + alpha * y."""
        a, b = self._meet(other)
        return ComplexTensor(a.real.add(b.real, alpha), a.imag.add(b.imag, alpha))

    def sub(self, other: Any, alpha: float = 1) -> ComplexTensor:
        """x - alpha * y."""
        return self.add(other, -alpha)

    def mul(self, other: Any) -> ComplexTensor:
        """x * y."""
        a, b = self._meet(other)
        return ComplexTensor(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)

    def div(self, other: Any) -> ComplexTensor:
        """x / y."""
        a, b = self._meet(other)
        return a.mul(b.reciprocal())

    def reciprocal(self) -> ComplexTensor:
        """1 / x, by parts that are divided by the greater one first: their squares do not
        overflow."""
        top = self.real.detach().abs().maximum(self.imag.detach().abs())
        a, b = self.real / top, self.imag / top
        square = (a * a + b * b) * top
        return ComplexTensor(a / square, -b / square)

    def matmul(self, other: Any) -> ComplexTensor:
        """x @ y."""
        a, b = self._meet(other)
        return ComplexTensor(a.real @ b.real - a.imag @ b.imag, a.real @ b.imag + a.imag @ b.real)

    def pow(self, exponent: Any) -> ComplexTensor:
        """x to the power of a number or of complex ones."""
        if isinstance(exponent, int) and 0 < exponent <= 8:
            total = self
            for _ in range(exponent - 1):
                total = total.mul(self)
            return total
        a, b = self._meet(exponent)
        return a.log().mul(b).exp()

    def __rsub__(self, other: Any) -> ComplexTensor:
        return ComplexTensor.of(other, self).sub(self)

    def __rtruediv__(self, other: Any) -> ComplexTensor:
        return ComplexTensor.of(other, self).div(self)

    def __rmatmul__(self, other: Any) -> ComplexTensor:
        return ComplexTensor.of(other, self).matmul(self)

    def __rpow__(self, other: Any) -> ComplexTensor:
        return ComplexTensor.of(other, self).pow(self)

    def __eq__(self, other: object) -> Any:
        a, b = self._meet(other)
        return (a.real == b.real) & (a.imag == b.imag)

    def __ne__(self, other: object) -> Any:
        return ~(self == other)

    __add__ = __radd__ = add
    __sub__ = sub
    __mul__ = __rmul__ = mul
    __truediv__ = div
    __matmul__ = matmul
    __pow__ = pow

    # functions

    def conj(self) -> ComplexTensor:
        """The conjugates."""
        return ComplexTensor(self.real, -self.imag)

    conj_physical = conj

    def resolve_conj(self) -> ComplexTensor:
        return self

    resolve_neg = resolve_conj

    def abs(self) -> Tensor:
        """The sizes, as a real tensor; their gradient at 0 is 0."""
        top = self.real.detach().abs().maximum(self.imag.detach().abs())
        is_zero = top == 0
        safe = top.masked_fill(is_zero, 1.0)
        a, b = self.real / safe, self.imag / safe
        inside = (a * a + b * b).masked_fill(is_zero, 1.0)
        found: Tensor = (inside.sqrt() * safe).masked_fill(is_zero, 0.0)
        return found

    absolute = __abs__ = abs

    def angle(self) -> Tensor:
        """The angles in radians, as a real tensor."""
        return self.imag.atan2(self.real)

    def sgn(self) -> ComplexTensor:
        """x / |x|, 0 for 0."""
        size = self.abs()
        safe = size.masked_fill(size == 0, 1.0)
        return ComplexTensor(self.real / safe, self.imag / safe)

    def exp(self) -> ComplexTensor:
        """e to the x."""
        size = self.real.exp()
        return ComplexTensor(size * self.imag.cos(), size * self.imag.sin())

    def log(self) -> ComplexTensor:
        """The natural logarithms whose angle is from -pi to pi."""
        return ComplexTensor(self.abs().log(), self.angle())

    def sqrt(self) -> ComplexTensor:
        """The square roots with a real part that is not negative."""
        half, angle = self.abs().sqrt(), self.angle() * 0.5
        return ComplexTensor(half * angle.cos(), half * angle.sin())

    def square(self) -> ComplexTensor:
        return self.mul(self)

    def sin(self) -> ComplexTensor:
        a, b = self.real, self.imag
        return ComplexTensor(a.sin() * b.cosh(), a.cos() * b.sinh())

    def cos(self) -> ComplexTensor:
        a, b = self.real, self.imag
        return ComplexTensor(a.cos() * b.cosh(), -(a.sin() * b.sinh()))

    def sinh(self) -> ComplexTensor:
        a, b = self.real, self.imag
        return ComplexTensor(a.sinh() * b.cos(), a.cosh() * b.sin())

    def cosh(self) -> ComplexTensor:
        a, b = self.real, self.imag
        return ComplexTensor(a.cosh() * b.cos(), a.sinh() * b.sin())

    def tan(self) -> ComplexTensor:
        return self.sin().div(self.cos())

    def tanh(self) -> ComplexTensor:
        return self.sinh().div(self.cosh())

    def norm(self, p: float = 2, dim: Any = None, keepdim: bool = False) -> Tensor:
        """The norm of the sizes."""
        return self.abs().norm(p, dim, keepdim)

    def isnan(self) -> Tensor:
        return self.real.isnan() | self.imag.isnan()

    def isfinite(self) -> Tensor:
        return self.real.isfinite() & self.imag.isfinite()

    def isreal(self) -> Tensor:
        """Whether the imaginary part is 0, as bool."""
        return self.imag == 0

    # both parts alike

    def to(self, *args: Any, **kwargs: Any) -> ComplexTensor:
        """On another device, or as another complex type."""
        given: list[Any] = [a.part if isinstance(a, ComplexType) else a for a in args]
        if isinstance(kwargs.get("dtype"), ComplexType):
            kwargs = {**kwargs, "dtype": kwargs["dtype"].part}
        return ComplexTensor(self.real.to(*given, **kwargs), self.imag.to(*given, **kwargs))

    @property
    def T(self) -> ComplexTensor:
        """The axes in reverse order."""
        return ComplexTensor(self.real.T, self.imag.T)

    @property
    def mT(self) -> ComplexTensor:
        """The last two axes exchanged."""
        return ComplexTensor(self.real.mT, self.imag.mT)

    @property
    def mH(self) -> ComplexTensor:
        """The conjugate transposes of matrices."""
        return self.mT.conj()

    H = mH

    def __getitem__(self, place: Any) -> ComplexTensor:
        return ComplexTensor(self.real[place], self.imag[place])

    def __setitem__(self, place: Any, value: Any) -> None:
        given = ComplexTensor.of(value, self)
        self.real[place], self.imag[place] = given.real, given.imag

    def outer(self, other: Any) -> ComplexTensor:
        """The products of all pairs of elements of two vectors."""
        found: ComplexTensor = self.unsqueeze(-1).mul(other)
        return found

    def isclose(
        self, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Tensor:
        """|self - other| <= atol + rtol * |other|."""
        a, b = self._meet(other)
        near: Tensor = a.sub(b).abs() <= b.abs() * rtol + atol
        return near | (a.isnan() & b.isnan()) if equal_nan else near


_BOTH = """
reshape view permute transpose t flatten squeeze unsqueeze expand expand_as flip split chunk
unbind roll movedim moveaxis narrow select index_select gather take_along_dim contiguous
clone detach cpu repeat tile broadcast_to tril triu diagonal diag diag_embed unflatten
swapaxes swapdims masked_select sum mean cumsum neg positive fliplr flipud rot90
tensor_split ravel
"""
"""What is done to both parts."""


def _both(name: str) -> Callable[..., Any]:
    """The tensors' method of that name, done to both parts."""

    def method(self: ComplexTensor, *args: Any, **kwargs: Any) -> Any:
        a, b = (getattr(part, name)(*args, **kwargs) for part in (self.real, self.imag))
        if isinstance(a, tuple):
            return tuple(ComplexTensor(*parts) for parts in zip(a, b, strict=True))
        return ComplexTensor(a, b)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"`Tensor.{name}` of both parts."
    return method


for _name in _BOTH.split():
    setattr(ComplexTensor, _name, _both(_name))
setattr(ComplexTensor, "__neg__", _both("neg"))  # noqa: B010  as the loop above
setattr(ComplexTensor, "__pos__", _both("positive"))  # noqa: B010
for _name, _own in (("subtract", "sub"), ("multiply", "mul"), ("divide", "div"),
                    ("true_divide", "div"), ("mm", "matmul"), ("bmm", "matmul"),
                    ("negative", "neg"), ("adjoint", "")):  # fmt: skip
    setattr(ComplexTensor, _name, getattr(ComplexTensor, _own) if _own else lambda x: x.mH)


def _einsum(equation: str, *operands: Any) -> ComplexTensor:
    """The sum over all choices of a part of each operand."""
    nodes = operands[0] if len(operands) == 1 and isinstance(operands[0], list) else operands
    sums: list[Any] = [None, None]
    for chosen in product(*[(0, 1) if isinstance(x, ComplexTensor) else (0,) for x in nodes]):
        each = [(x.real, x.imag)[i] if isinstance(x, ComplexTensor) else x
                for i, x in zip(chosen, nodes, strict=True)]  # fmt: skip
        turns = sum(chosen)
        term = call(contract.einsum, equation, *each)
        term = -term if turns % 4 in (2, 3) else term
        own = sums[turns % 2]
        sums[turns % 2] = term if own is None else own + term
    return ComplexTensor(*sums)


def _join(kind: str, parts: Any, *more: Any, dim: int = 0) -> ComplexTensor:
    """`cat` or `stack` of complex and real ones, `where` and `einsum` with such."""
    if kind == "einsum":
        return _einsum(parts, *more)
    (dim,) = more or (dim,)
    if kind == "where":
        condition, *parts = parts
        like = next(p for p in parts if isinstance(p, ComplexTensor))
        a, b = (ComplexTensor.of(p, like) for p in parts)
        choose = elementwise.where
        return ComplexTensor(
            apply(choose, condition, a.real, b.real), apply(choose, condition, a.imag, b.imag)
        )
    if kind not in ("cat", "stack"):
        raise TensorError(f"{kind} takes no complex numbers\n  called at {where_called()}")
    like = next(p for p in parts if isinstance(p, ComplexTensor))
    pairs = [ComplexTensor.of(p, like) for p in parts]
    move = getattr(movement, kind)
    return ComplexTensor(
        apply(move, [p.real for p in pairs], dim), apply(move, [p.imag for p in pairs], dim)
    )


def _widened(x: Tensor) -> ComplexTensor:
    real = x if x.dtype.is_float else x.float()
    return ComplexTensor(real, real.detach() * 0.0)


Several.join = staticmethod(_join)
Several.widen = staticmethod(_widened)

# functions


def complex_(real: Tensor, imag: Tensor) -> ComplexTensor:
    """real + i imag."""
    return ComplexTensor(*call(movement.broadcast_tensors, real, imag))


def holds_complex(data: Any) -> bool:
    """Whether host data is of complex numbers, as its first one says."""
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return isinstance(data, complex | ComplexTensor) or (
        isinstance(data, np.ndarray | np.generic) and data.dtype.kind == "c"
    )


def complex_tensor(
    data: Any, dtype: ComplexType | None, device: str, requires_grad: bool = False
) -> ComplexTensor:
    """A copy of complex numbers of the host on a device; complex64 unless a type is asked for, or
    they are of numpy's complex128. Raises TensorError for a type without imaginary part."""
    if dtype is not None and not isinstance(dtype, ComplexType):
        raise TensorError(f"complex numbers have no {dtype}; take their .real, or complex64")
    array = data.numpy() if isinstance(data, ComplexTensor) else np.asarray(data, np.complex128)
    is_wide = getattr(data, "dtype", None) in (np.complex128, complex128)
    part = (dtype or (complex128 if is_wide else complex64)).part
    width = np.float64 if part is DType.F64 else np.float32
    parts = (array.real.astype(width), array.imag.astype(width))
    made = (Tensor(put(v, part, device), device, owns=True) for v in parts)
    return ComplexTensor(*made).requires_grad_(requires_grad)


def polar(abs: Tensor, angle: Tensor) -> ComplexTensor:
    """abs * exp(i angle)."""
    return ComplexTensor(abs * angle.cos(), abs * angle.sin())


def view_as_real(input: ComplexTensor) -> Tensor:
    """The parts along a new last axis, as a copy."""
    return apply(movement.stack, [input.real, input.imag], -1)


def view_as_complex(input: Tensor) -> ComplexTensor:
    """Complex numbers whose parts lie along the last axis, which has two elements."""
    if not input.shape or input.shape[-1] != 2:
        raise TensorError(
            f"the last axis holds two parts, got shape {list(input.shape)}\n  called at "
            f"{where_called()}"
        )
    return ComplexTensor(input.select(-1, 0), input.select(-1, 1))


def real(input: Tensor | ComplexTensor) -> Tensor:
    """The real parts; of a real tensor itself."""
    return input.real if isinstance(input, ComplexTensor) else input


def imag(input: ComplexTensor) -> Tensor:
    """The imaginary parts."""
    if not isinstance(input, ComplexTensor):
        raise TensorError(f"a real tensor has no imaginary parts\n  called at {where_called()}")
    return input.imag


def is_complex(input: Any) -> bool:
    """Whether these are complex numbers."""
    return isinstance(input, ComplexTensor)


def is_conj(input: Any) -> bool:
    """False: conjugates are computed, not noted."""
    return False


def parts(input: Tensor | ComplexTensor) -> tuple[Tensor, Tensor | None]:
    """Real and imaginary parts; None for those of a real tensor."""
    return (input.real, input.imag) if isinstance(input, ComplexTensor) else (input, None)
