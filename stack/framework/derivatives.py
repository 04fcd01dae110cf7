"""Derivatives of functions of tensors, with the names of `torch.autograd.functional`; what
`stack.framework.func` is made of.

A function's argument becomes a tensor of its own level: what the function reads of it otherwise is
a constant, and a gradient by the argument itself, if it requires one, goes on through it. So these
functions nest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from stack.framework import autograd
from stack.framework.autograd import Function, grad
from stack.framework.create import eye, ones_like
from stack.framework.errors import GradientError, where_called
from stack.framework.functions import stack
from stack.framework.modes import enable_grad, grad_enabled
from stack.framework.reverse import leads_to_leaf
from stack.framework.tensor import Tensor
from stack.framework.tree import flatten, unflatten

# `import ...autograd.functional` finds it as it finds PyTorch's.
sys.modules[f"{autograd.__name__}.functional"] = sys.modules[__name__]
vars(autograd)["functional"] = sys.modules[__name__]

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

_STRICT_FORWARD = '{}: strict=True tells nothing with {}="forward-mode"; leave one of them out'


class _Passed(Function):
    """A tensor of the next level, with the gradient of this one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return d


class Level:
    """The tensors of a tree of arguments as the function sees them, within which gradients are
    tracked; afterwards those of `closed` require a gradient only where one goes further out."""

    def __init__(self, tree: Any) -> None:
        given, self._spec = flatten(tree, is_tensor)
        outer = grad_enabled()
        with enable_grad():
            self.leaves: list[Tensor] = [
                _Passed.apply(x)
                if outer and x.requires_grad
                else x.detach().clone().requires_grad_()
                for x in given
            ]

    @property
    def tree(self) -> Any:
        return unflatten(self._spec, iter(self.leaves))

    def shaped(self, leaves: Sequence[Any]) -> Any:
        """A tree like that of the arguments."""
        return unflatten(self._spec, iter(leaves))

    def closed(self, tree: Any) -> Any:
        """The results of the level."""
        for x in self.leaves:
            if x.is_leaf:
                x.requires_grad_(False)
        leaves, spec = flatten(tree, is_tensor)
        kept = (
            Tensor(x.node, x.device, requires_grad=grad_enabled() and leads_to_leaf(x.node))
            if x.requires_grad
            else x
            for x in leaves
        )
        return unflatten(spec, kept)


def is_tensor(value: Any) -> bool:
    """Whether it is a leaf of a tree of arguments."""
    return isinstance(value, Tensor)


def derivatives(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    given: Sequence[Tensor] | None = None,
    strict: bool = False,
) -> list[Tensor]:
    """The derivatives by the inputs of the outputs, times those that are given. They can be
    differentiated in turn. Where nothing leads they are zeros; if `strict`, a GradientError."""
    for place, y in enumerate(outputs):
        if strict and not y.requires_grad:
            raise GradientError(
                f"tensor {place} of those that are differentiated does not depend on the inputs, "
                f"and strict=True was asked for\n  called at {where_called()}"
            )
    found = grad(
        outputs, inputs, given, create_graph=True, allow_unused=strict, materialize_grads=not strict
    )
    for place, x in enumerate(found):
        if x is None:
            raise GradientError(
                f"what is differentiated does not depend on tensor {place} of those by which it "
                f"is, and strict=True was asked for\n  called at {where_called()}"
            )
    return [x for x in found if x is not None]


def pushed(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], strict: bool = False
) -> Callable[..., list[Tensor]]:
    """The function from tangents of the inputs to those of the outputs: the derivative of the
    reverse one, which is linear, by its cotangents."""
    seeds = [ones_like(y).requires_grad_() for y in outputs]
    back = derivatives(outputs, inputs, seeds, strict)
    return lambda tangents: derivatives(back, seeds, tangents)


def _rows(y: Tensor) -> list[Tensor]:
    """For each element a tensor with 1 at its place."""
    return [row.reshape(y.shape) for row in eye(y.numel(), dtype=y.dtype, device=y.device)]


def jacobians(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    forward: bool = False,
    strict: bool = False,
) -> Any:
    """For each output the list of its derivatives by each input, [*output, *input]: one walk for
    each element of the outputs, or `forward` for each one of the inputs."""
    if not forward:
        found = []
        for y in outputs:
            rows = [derivatives([y], inputs, [row], strict) for row in _rows(y)]
            each = zip(*rows, strict=True) if rows else ([] for _ in inputs)
            found.append([
                _stacked(list(r), (*y.shape, *x.shape), x)
                for r, x in zip(each, inputs, strict=True)
            ])  # fmt: skip
        return found
    push = pushed(outputs, inputs)
    columns: list[list[Tensor]] = []
    for i, x in enumerate(inputs):
        others = [a * 0 for a in inputs]
        moved = [push([*others[:i], row, *others[i + 1 :]]) for row in _rows(x)]
        columns.append([
            _stacked([m[k].reshape(-1) for m in moved], (x.numel(), y.numel()), x)
            .t()
            .reshape(*y.shape, *x.shape)
            for k, y in enumerate(outputs)
        ])  # fmt: skip
    return [[column[k] for column in columns] for k in range(len(outputs))]


def _stacked(rows: list[Tensor], shape: Sequence[int], like: Tensor) -> Tensor:
    return stack(rows).reshape(*shape) if rows else like.new_zeros(tuple(shape))


def _called(func: Callable[..., Any], inputs: Any) -> tuple[Level, Any, list[Tensor], Any]:
    """The level of the inputs, a tensor or several, what the function gives there, and its
    tensors."""
    level = Level(inputs)
    with enable_grad():
        given = level.tree
        value = func(*given) if isinstance(given, tuple | list) else func(given)
    leaves, spec = flatten(value, is_tensor)
    return level, value, leaves, spec


def _finished(level: Level, tree: Any, create_graph: bool) -> Any:
    if create_graph:
        return level.closed(tree)
    leaves, spec = flatten(tree, is_tensor)
    return unflatten(spec, (x.detach() for x in leaves))


def _single(leaves: Sequence[Tensor], what: str) -> Tensor:
    if len(leaves) != 1 or leaves[0].numel() != 1:
        raise GradientError(
            f"{what} takes a function of one scalar, not one that gives "
            f"{[list(x.shape) for x in leaves]}\n  called at {where_called()}"
        )
    return leaves[0]


def jacobian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The derivatives of all elements that func(*inputs) gives by all of the inputs': a tensor, or
    a tuple for each output of one for each input, as there are."""
    forward = strategy == "forward-mode"
    if strict and forward:
        raise GradientError(_STRICT_FORWARD.format("jacobian", "strategy"))
    level, value, leaves, _ = _called(func, inputs)
    with enable_grad():
        found = jacobians(leaves, level.leaves, forward, strict)
    rows = [tuple(row) if isinstance(inputs, tuple) else row[0] for row in found]
    made = tuple(rows) if isinstance(value, tuple) else rows[0]
    return _finished(level, made, create_graph)


def hessian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The second derivatives of a scalar by all elements of the inputs: a tensor, or for each input
    a tuple of one for each."""
    forward = outer_jacobian_strategy == "forward-mode"
    if strict and forward:
        raise GradientError(_STRICT_FORWARD.format("hessian", "outer_jacobian_strategy"))
    level, _, leaves, _ = _called(func, inputs)
    with enable_grad():
        first = derivatives([_single(leaves, "hessian")], level.leaves, strict=strict)
        rows = jacobians(first, level.leaves, forward, strict)
    made = tuple(tuple(row) for row in rows) if isinstance(inputs, tuple) else rows[0][0]
    return _finished(level, made, create_graph)


def _listed(v: Any) -> list[Tensor]:
    return flatten(v, is_tensor)[0]


def vjp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """What func gives, and v, derivatives by that, through func: those by the inputs."""
    level, value, leaves, _ = _called(func, inputs)
    with enable_grad():
        found = derivatives(leaves, level.leaves, None if v is None else _listed(v), strict)
    return _finished(level, (value, level.shaped(found)), create_graph)  # type: ignore[no-any-return] # of two


def jvp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """What func gives, and how it changes as the inputs change along v."""
    level, value, leaves, spec = _called(func, inputs)
    with enable_grad():
        along = [ones_like(x) for x in level.leaves] if v is None else _listed(v)
        found = pushed(leaves, level.leaves, strict)(along)
    return _finished(level, (value, unflatten(spec, iter(found))), create_graph)  # type: ignore[no-any-return] # of two


def vhp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """What func gives, a scalar, and the product of v with its second derivatives."""
    level, value, leaves, _ = _called(func, inputs)
    with enable_grad():
        first = derivatives([_single(leaves, "vhp")], level.leaves, strict=strict)
        along = [ones_like(x) for x in level.leaves] if v is None else _listed(v)
        found = derivatives(first, level.leaves, along, strict)
    return _finished(level, (value, level.shaped(found)), create_graph)  # type: ignore[no-any-return] # of two


hvp = vhp
"""The product of the second derivatives with v: they are symmetric."""
