"""Weights by direction and length, and weights of a largest singular value of 1."""

from __future__ import annotations

from typing import Any

from stack.framework import functional as F
from stack.framework.functions import dot
from stack.framework.mode import no_grad
from stack.framework.nn.convolutions import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from stack.framework.nn.module import Module, Parameter
from stack.framework.nn.utils.parametrize import register_parametrization
from stack.framework.random import randn
from stack.framework.tensor import Tensor


def norm_except_dim(v: Tensor, dim: int) -> Tensor:
    """The 2-norm over all axes but one, which stay with size 1; over all for -1."""
    axes = [i for i in range(v.ndim) if dim == -1 or i != dim % v.ndim]
    return (v * v).sum(axes, keepdim=True).sqrt() if axes else v.abs()


class WeightNorm(Module):
    """g * v / |v|: Salimans and Kingma, https://arxiv.org/abs/1602.07868."""

    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weight_v * (weight_g / norm_except_dim(weight_v, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The norm and the weight itself."""
        return norm_except_dim(weight, self.dim), weight


class SpectralNorm(Module):
    """weight / its largest singular value, which steps of power iteration follow in training:
    Miyato et al., https://arxiv.org/abs/1802.05957. `order` is of which vector a step begins with:
    u of the rows, or v of the columns."""

    def __init__(
        self,
        weight: Tensor,
        n_power_iterations: int = 1,
        dim: int = 0,
        eps: float = 1e-12,
        order: str = "uv",
    ) -> None:
        super().__init__()
        if n_power_iterations < 1:
            raise ValueError(f"n_power_iterations is at least 1, got {n_power_iterations}")
        self.n_power_iterations, self.dim, self.eps = n_power_iterations, dim, eps
        self.order = order
        if weight.ndim > 1:
            with no_grad():
                matrix = self._matrix(weight)
                for name, size in zip(("_u", "_v"), matrix.shape, strict=True):
                    drawn = randn(size, dtype=weight.dtype, device=weight.device)
                    self.register_buffer(name, F.normalize(drawn, dim=0, eps=eps))
                self._follow(matrix, 15)

    def _matrix(self, weight: Tensor) -> Tensor:
        return weight.movedim(self.dim, 0).flatten(1)

    def _follow(self, matrix: Tensor, steps: int) -> None:
        with no_grad():
            for name in self.order * steps:
                new = matrix @ self._v if name == "u" else matrix.t() @ self._u
                getattr(self, f"_{name}").copy_(F.normalize(new, dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._follow(matrix.detach(), self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()
        return weight / dot(u, matrix @ v)

    def right_inverse(self, value: Tensor) -> Tensor:
        """The value itself: it is divided at its next use."""
        return value


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Learn a weight as lengths, `original0`, and directions, `original1`, along an axis."""
    return register_parametrization(module, name, WeightNorm(dim), unsafe=True)


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Divide a weight by its largest singular value, as a matrix whose rows are along an axis."""
    weight: Tensor = getattr(module, name)
    made = SpectralNorm(weight, n_power_iterations, _rows(module, dim), eps)
    return register_parametrization(module, name, made)


def _rows(module: Module, dim: int | None) -> int:
    """The axis of a layer's outputs in its weight."""
    if dim is not None:
        return dim
    return int(isinstance(module, ConvTranspose1d | ConvTranspose2d | ConvTranspose3d))


class _Before:
    """Sets a weight anew before each forward, from parameters beside it: the form that PyTorch had
    before parametrizations, with its names."""

    def __init__(self, name: str, kind: str, function: Module) -> None:
        self.name, self.kind, self.function = name, kind, function

    def __call__(self, module: Module, args: Any) -> None:
        setattr(module, self.name, self.computed(module))

    def computed(self, module: Module) -> Tensor:
        self.function.training = module.training
        names = ("_g", "_v") if self.kind == "weight_norm" else ("_orig",)
        value: Tensor = self.function(*(getattr(module, self.name + end) for end in names))
        return value


def weight_norm_before(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """`weight_norm` with parameters called NAME_g and NAME_v."""
    weight, function = module.get_parameter(name), WeightNorm(dim)
    delattr(module, name)
    with no_grad():
        g, v = function.right_inverse(weight.detach())
    module.register_parameter(f"{name}_g", Parameter(g))
    module.register_parameter(f"{name}_v", Parameter(v))
    return _begun(module, _Before(name, "weight_norm", function))


def spectral_norm_before(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """`spectral_norm` with a parameter called NAME_orig and buffers NAME_u and NAME_v."""
    weight = module.get_parameter(name)
    given = weight.detach(), n_power_iterations, _rows(module, dim), eps
    function = SpectralNorm(*given, order="vu")
    delattr(module, name)
    module.register_parameter(f"{name}_orig", weight)
    for end in ("_u", "_v"):
        module.register_buffer(name + end, getattr(function, end))
    return _begun(module, _Before(name, "spectral_norm", function))


def _begun(module: Module, hook: _Before) -> Module:
    handle = module.register_forward_pre_hook(hook)
    vars(module)[f"_{hook.kind}_of_{hook.name}"] = hook, handle
    vars(module)[hook.name] = hook.computed(module)
    return module


def removed(kind: str, module: Module, name: str) -> Module:
    """Make a weight a parameter again, with the value that it has. Raises ValueError."""
    found = vars(module).pop(f"_{kind}_of_{name}", None)
    if found is None:
        raise ValueError(f"{kind} of {name!r} not found in {module}")
    hook, handle = found
    handle.remove()
    value = hook.computed(module).detach().clone()
    ends = ("_g", "_v") if kind == "weight_norm" else ("_orig", "_u", "_v")
    for end in (*ends, ""):
        delattr(module, name + end)
    module.register_parameter(name, Parameter(value))
    return module


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Undo `nn.utils.weight_norm`, with the value that the weight has."""
    return removed("weight_norm", module, name)


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Undo `nn.utils.spectral_norm`, with the value that the weight has."""
    return removed("spectral_norm", module, name)
