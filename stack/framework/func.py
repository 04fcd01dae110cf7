"""Functions that give derivatives of functions, with the names of `torch.func`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stack.framework.autograd import grad as derivatives
from stack.framework.create import eye, ones_like
from stack.framework.errors import absent
from stack.framework.functions import stack
from stack.framework.mode import enable_grad
from stack.framework.nn.module import Module
from stack.framework.tensor import Tensor
from stack.framework.tree import flatten, unflatten


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def value_and_grad(
    func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives (gradient by the arguments at argnums, value of func, a scalar); with
    has_aux func gives (value, anything), and so does the value here."""

    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        leaves, spec = flatten([args[i] for i in numbers], _is_tensor)
        with enable_grad():
            fresh = [x.detach().clone().requires_grad_() for x in leaves]
            inner = dict(zip(numbers, unflatten(spec, iter(fresh)), strict=True))
            result = func(*(inner.get(i, a) for i, a in enumerate(args)), **kwargs)
            loss = result[0] if has_aux else result
            found = derivatives(loss, fresh, create_graph=True, materialize_grads=True)
        tree = unflatten(spec, iter(found))
        return (tree[0] if isinstance(argnums, int) else tuple(tree)), result

    return both


def grad(
    func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives the gradient of func, a scalar, by the arguments at argnums; with
    has_aux (gradient, anything)."""

    def first(*args: Any, **kwargs: Any) -> Any:
        found, value = value_and_grad(func, argnums, has_aux)(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return first


def vjp(func: Callable[..., Any], *primals: Tensor) -> tuple[Any, Callable[..., Any]]:
    """func(*primals), and the function from a derivative by it to those by the primals."""
    with enable_grad():
        fresh = [x.detach().clone().requires_grad_() for x in primals]
        value = func(*fresh)

    def pull(cotangent: Any) -> tuple[Tensor | None, ...]:
        return derivatives(value, fresh, cotangent, materialize_grads=True)

    return value, pull


def jvp(
    func: Callable[..., Any], primals: Sequence[Tensor], tangents: Sequence[Tensor]
) -> tuple[Any, Any]:
    """func(*primals), and its derivative along the tangents: the derivative of a vjp, which is
    linear, by its cotangent."""
    with enable_grad():
        fresh = [x.detach().clone().requires_grad_() for x in primals]
        value = func(*fresh)
        dummy = ones_like(value).requires_grad_()
        back = derivatives(value, fresh, dummy, create_graph=True, materialize_grads=True)
        (forward,) = derivatives(back, dummy, list(tangents), materialize_grads=True)  # type: ignore[arg-type] # none is None
    return value, forward


def _only(found: Sequence[Tensor | None]) -> Tensor:
    (one,) = found
    assert one is not None, "zeros were asked for"
    return one


def jacrev(func: Callable[..., Any], argnums: int = 0) -> Callable[..., Tensor]:
    """A function that gives the derivatives of all of func's elements by all of an argument's."""

    def jacobian(*args: Any) -> Tensor:
        with enable_grad():
            x = args[argnums].detach().clone().requires_grad_()
            y = func(*args[:argnums], x, *args[argnums + 1 :])
            rows = eye(y.numel(), dtype=y.dtype, device=y.device)
            found = [
                _only(derivatives(y, x, row.reshape(y.shape), None, True, materialize_grads=True))
                for row in rows
            ]
        return stack(found).reshape(*y.shape, *x.shape)

    return jacobian


def hessian(func: Callable[..., Any], argnums: int = 0) -> Callable[..., Tensor]:
    """A function that gives the second derivatives of func, a scalar, by all of an argument's
    elements."""

    def gradient(*args: Any) -> Any:
        x = args[argnums]
        y = func(*args)
        return _only(derivatives(y, x, create_graph=True, materialize_grads=True))

    return jacrev(gradient, argnums)


def vmap(
    func: Callable[..., Any], in_dims: Any = 0, out_dims: int = 0, randomness: str = "error"
) -> Callable[..., Any]:
    """func of each slice along in_dims, stacked along out_dims. The slices are computed by one
    graph, but each by itself: where func can take a batch itself, that is faster."""

    def mapped(*args: Any) -> Any:
        dims = in_dims if isinstance(in_dims, tuple | list) else [in_dims] * len(args)
        sizes = {a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None}
        if len(sizes) != 1:
            raise ValueError(f"vmap needs one size along in_dims {in_dims}, got {sorted(sizes)}")
        results = []
        for i in range(sizes.pop()):
            given = [
                a if d is None else a.movedim(d, 0)[i] for a, d in zip(args, dims, strict=True)
            ]
            results.append(func(*given))
        if isinstance(results[0], tuple):
            return tuple(stack(list(each), out_dims) for each in zip(*results, strict=True))
        return stack(results, out_dims)

    return mapped


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """module(*args, **kwargs) with these tensors in the place of its own of these dotted names."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for path, value in parameter_and_buffer_dicts.items():
            parent, _, name = path.rpartition(".")
            own = vars(module.get_submodule(parent))
            before.append((own, name, own[name]))
            own[name] = value
        given = args if isinstance(args, tuple) else () if args is None else (args,)
        return module(*given, **(kwargs or {}))
    finally:
        for own, name, value in before:
            own[name] = value


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("func", name, [n for n in globals() if not n.startswith("_")])
