"""Weights by direction and length, of a largest singular value of 1, or with orthonormal
columns."""

from __future__ import annotations

from typing import Any

from stack.framework import functional as F
from stack.framework.create import eye
from stack.framework.functions import cat, diag_embed, dot, matrix_exp, where
from stack.framework.linalg import qr, solve
from stack.framework.modes import no_grad
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


def _reflected(vectors: Tensor) -> Tensor:
    """The first columns of the product of the reflections I - 2 v v^T / |v|^2 whose v are these
    columns: a 1 on the diagonal, what is below it, and 0 above."""
    rows, count = vectors.shape[-2:]
    like: Any = {"dtype": vectors.dtype, "device": vectors.device}
    found = eye(rows, count, **like).expand(vectors.shape)
    for v in (vectors.tril(-1) + eye(rows, count, **like)).split(1, -1)[::-1]:
        found = found - v * ((v.mT @ found) * (2 / (v * v).sum(-2, keepdim=True)))
    return found


def _reflections(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Columns v for which `_reflected`, each column times -1 where the sign says so, is the Q of
    matrix = Q R; and these signs [..., 1, columns]. LAPACK's choice of the sign of R's
    diagonal."""
    columns, signs = [], []
    for j in range(matrix.shape[-1]):
        x = matrix[..., j:, j : j + 1]
        top, below = x[..., :1, :], x[..., 1:, :]
        rest = (below * below).sum(-2, keepdim=True)
        flips = rest > 0
        size = where(top < 0, 1.0, -1.0) * (top * top + rest).sqrt()
        v = F.pad(where(flips, below / (top - size), 0.0), (0, 0, 1, 0)) + F.pad(
            top * 0 + 1, (0, 0, 0, x.shape[-2] - 1)
        )
        part = 2 / (v * v).sum(-2, keepdim=True) * flips
        rows = matrix[..., j:, :]
        matrix = cat([matrix[..., :j, :], rows - v * (part * (v.mT @ rows))], -2)
        columns.append(F.pad(v, (0, 0, j, 0)))
        signs.append(where(top < 0, 1.0, -1.0))
    return cat(columns, -1), cat(signs, -1)


class Orthogonal(Module):
    """A matrix with orthonormal columns (or rows, if it is wide) of any matrix: `matrix_exp` or
    `cayley` of the skew part of its lower triangle, or the product of the `householder` reflections
    that its columns are. With use_trivialization it is that times `base`, the value that the
    weight began with: Lezcano-Casado and Martinez-Rubio, https://arxiv.org/abs/1901.08428."""

    base: Tensor | None

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        self.shape, self.orthogonal_map = weight.shape, orthogonal_map
        self.use_trivialization = use_trivialization
        self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        is_wide = x.shape[-2] < x.shape[-1]
        x = x.mT if is_wide else x
        rows, columns = x.shape[-2:]
        if self.orthogonal_map == "householder":
            diagonal = x.detach().diagonal(dim1=-2, dim2=-1).trunc()
            made = _reflected(x) * diagonal.unsqueeze(-2)
        else:
            lower = F.pad(x.tril(), (0, rows - columns))
            skew = lower - lower.mT
            if self.orthogonal_map == "matrix_exp":
                made = matrix_exp(skew)
            else:
                one = eye(rows, dtype=x.dtype, device=x.device)
                made = solve(one - skew / 2, one + skew / 2)
            made = made[..., :columns]
        found = made if self.base is None else self.base @ made
        return found.mT if is_wide else found

    def right_inverse(self, value: Tensor) -> Tensor:
        """What gives this value, which is made orthonormal first."""
        if value.shape != self.shape:
            raise ValueError(
                f"a matrix {list(self.shape)} is expected, not one of {list(value.shape)}"
            )
        is_wide = value.shape[-2] < value.shape[-1]
        x = value.mT if is_wide else value
        rows, columns = x.shape[-2:]
        if not self.use_trivialization:
            if self.orthogonal_map != "householder":
                raise NotImplementedError(
                    f"{self.orthogonal_map} cannot be given a value without use_trivialization"
                )
            vectors, signs = _reflections(x)
            found = vectors.tril(-1) + F.pad(
                diag_embed(signs[..., 0, :]), (0, 0, 0, rows - columns)
            )
            return found.mT if is_wide else found
        if columns < rows:
            more = (*x.shape[:-1], rows - columns)
            x = cat([x, randn(*more, dtype=x.dtype, device=x.device)], -1)
        # The Q of matrix = Q R in which R's diagonal is positive.
        q, r = qr(x)
        base: Tensor = q * where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).unsqueeze(-2)
        if self.base is None:
            self.register_buffer("base", base)
        else:
            self.base.copy_(base)
        return -eye(*value.shape[-2:], dtype=x.dtype, device=x.device).expand(value.shape)


_MAPS = ("matrix_exp", "cayley", "householder")


def orthogonal(
    module: Module,
    name: str = "weight",
    orthogonal_map: str | None = None,
    *,
    use_trivialization: bool = True,
) -> Module:
    """Learn a weight of orthonormal columns, or rows where it is wide: by `Orthogonal`, with
    matrix_exp where it is square and householder elsewhere unless orthogonal_map is given."""
    weight: Any = getattr(module, name, None)
    if weight is None:
        raise ValueError(f"{type(module).__name__} has no parameter or buffer {name!r}")
    if weight.ndim < 2:
        raise ValueError(f"a weight of at least 2 axes is expected, not one of {weight.ndim}")
    usual = "matrix_exp" if weight.shape[-2] == weight.shape[-1] else "householder"
    chosen = usual if orthogonal_map is None else orthogonal_map
    if chosen not in _MAPS:
        raise ValueError(f"orthogonal_map is one of {', '.join(_MAPS)}, not {chosen!r}")
    made = Orthogonal(weight, chosen, use_trivialization)
    return register_parametrization(module, name, made, unsafe=True)


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
