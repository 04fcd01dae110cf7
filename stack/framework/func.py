"""Functions that give derivatives of functions, with the names of `torch.func`. They nest; their
arguments may be nested tuples, lists and dicts of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stack.framework.derivatives import Level, derivatives, is_tensor, jacobians, pushed
from stack.framework.errors import absent
from stack.framework.functions import stack
from stack.framework.modes import enable_grad
from stack.framework.nn.module import Module
from stack.framework.random import draws_of_slices
from stack.framework.tensor import Tensor
from stack.framework.tree import Spec, flatten, unflatten

Numbers = int | Sequence[int]


class _Call:
    """A call of a function, of which some arguments are of a level of its own. With has_aux the
    function gives (value, anything)."""

    def __init__(
        self,
        func: Callable[..., Any],
        numbers: Sequence[int],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        has_aux: bool,
    ) -> None:
        self.level = Level([args[i] for i in numbers])
        inner = dict(zip(numbers, self.level.tree, strict=True))
        result = func(*(inner.get(i, a) for i, a in enumerate(args)), **kwargs)
        self.aux: Any = None
        self.value = result
        if has_aux:
            self.value, self.aux = result
        self.outputs: list[Tensor]
        self.outputs, self.form = flatten(self.value, is_tensor)


def _apart(tree: Any) -> Any:
    """The tensors without gradients."""
    leaves, spec = flatten(tree, is_tensor)
    return unflatten(spec, (x.detach() for x in leaves))


def _numbered(argnums: Numbers) -> tuple[int, ...]:
    return (argnums,) if isinstance(argnums, int) else tuple(argnums)


def grad_and_value(
    func: Callable[..., Any], argnums: Numbers = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives (gradient by the arguments at argnums, value of func, a scalar); with
    has_aux func gives (value, anything), and so does the value here."""

    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        with enable_grad():
            call = _Call(func, _numbered(argnums), args, kwargs, has_aux)
            found = call.level.shaped(derivatives(call.outputs, call.level.leaves))
        gradient = found[0] if isinstance(argnums, int) else tuple(found)
        gradient, value, aux = call.level.closed((gradient, call.value, call.aux))
        return gradient, ((value, aux) if has_aux else value)

    return both


def grad(
    func: Callable[..., Any], argnums: Numbers = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives the gradient of func, a scalar, by the arguments at argnums; with
    has_aux (gradient, anything)."""

    def first(*args: Any, **kwargs: Any) -> Any:
        found, value = grad_and_value(func, argnums, has_aux)(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return first


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """func(*primals), the function from a derivative by it to those by the primals, and with
    has_aux what else func gives."""
    with enable_grad():
        call = _Call(func, range(len(primals)), primals, {}, has_aux)
    leaves = call.level.leaves

    def pull(cotangents: Any) -> tuple[Any, ...]:
        given = flatten(cotangents, is_tensor)[0]
        with enable_grad():
            found = call.level.shaped(derivatives(call.outputs, leaves, given))
        return tuple(call.level.closed(found))

    value, aux = _apart((call.value, call.aux))
    return (value, pull, aux) if has_aux else (value, pull)


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """func(*primals), and the function from tangents of the primals to the value's."""
    with enable_grad():
        call = _Call(func, range(len(primals)), primals, {}, False)
        push = pushed(call.outputs, call.level.leaves)

    def along(*tangents: Any) -> Any:
        with enable_grad():
            found = push(flatten(tangents, is_tensor)[0])
        return call.level.closed(unflatten(call.form, iter(found)))

    return _apart(call.value), along


def jvp(
    func: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """func(*primals), its derivative along the tangents, and with has_aux what else func gives.
    `strict` is refused."""
    if strict:
        raise NotImplementedError(
            "a value that does not depend on the primals has a derivative of 0; leave strict=True "
            "out"
        )
    with enable_grad():
        call = _Call(func, range(len(primals)), tuple(primals), {}, has_aux)
        push = pushed(call.outputs, call.level.leaves)
        moved = push(flatten(tuple(tangents), is_tensor)[0])
    along = unflatten(call.form, iter(moved))
    value, along, aux = call.level.closed((call.value, along, call.aux))
    return (value, along, aux) if has_aux else (value, along)


def _jacobian(
    func: Callable[..., Any], argnums: Numbers, has_aux: bool, forward: bool
) -> Callable[..., Any]:
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        with enable_grad():
            call = _Call(func, _numbered(argnums), args, kwargs, has_aux)
            each = []
            for row in jacobians(call.outputs, call.level.leaves, forward):
                found = call.level.shaped(row)
                each.append(found[0] if isinstance(argnums, int) else tuple(found))
        made, aux = call.level.closed((unflatten(call.form, iter(each)), call.aux))
        return (made, aux) if has_aux else made

    return jacobian


def jacrev(
    func: Callable[..., Any], argnums: Numbers = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives the derivatives of all of func's elements by all of an argument's: one
    walk back for each of func's."""
    return _jacobian(func, argnums, has_aux, forward=False)


def jacfwd(
    func: Callable[..., Any],
    argnums: Numbers = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
) -> Callable[..., Any]:
    """`jacrev` by one walk for each of the argument's elements: for functions that give more than
    they take. func is called once, so that all walks see the same random numbers."""
    if randomness == "different":
        raise NotImplementedError("jacfwd calls its function once; draw before, or use vmap")
    return _jacobian(func, argnums, has_aux, forward=True)


def hessian(func: Callable[..., Any], argnums: Numbers = 0) -> Callable[..., Any]:
    """A function that gives the second derivatives of func, a scalar, by all of an argument's
    elements."""
    return jacfwd(jacrev(func, argnums), argnums)


def _sliced(tree: Any, dims: Any) -> tuple[list[tuple[Any, int | None]], Spec]:
    """The tensors of a tree with the axes along which they are sliced: one for all, or a tree of
    them."""
    leaves, spec = flatten(tree, is_tensor)
    if dims is None or isinstance(dims, int):
        return [(x, dims) for x in leaves], spec
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [pair for k, part in inner for pair in _sliced(part, dims[k])[0]], spec


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
) -> Callable[..., Any]:
    """func of each slice along in_dims, stacked along out_dims: numbers, or trees of them like the
    arguments' and the result's. The slices are computed by one graph, but each by itself: where
    func can take a batch itself, that is faster. Random numbers drawn from a device's stream are
    others for each slice with randomness "different", those of the first one with "same", and an
    error otherwise."""

    def mapped(*args: Any, **kwargs: Any) -> Any:
        every = in_dims if isinstance(in_dims, int) else tuple(in_dims)
        pairs, spec = _sliced(args, every)
        sizes = {x.shape[d] for x, d in pairs if d is not None}
        if len(sizes) != 1:
            raise ValueError(f"vmap needs one size along in_dims {in_dims}, got {sorted(sizes)}")
        columns = [None if d is None else x.movedim(d, 0) for x, d in pairs]
        results = []
        with draws_of_slices(randomness) as begin_slice:
            for i in range(sizes.pop()):
                each = iter(
                    [x if c is None else c[i] for (x, _), c in zip(pairs, columns, strict=True)]
                )
                begin_slice()
                results.append(func(*unflatten(spec, each), **kwargs))
        form = flatten(results[0], is_tensor)[1]
        rows = [flatten(r, is_tensor)[0] for r in results]
        wanted = [d for _, d in _sliced(results[0], out_dims)[0]]
        made = [
            each[0] if d is None else stack(list(each), d)
            for each, d in zip(zip(*rows, strict=True), wanted, strict=True)
        ]
        return unflatten(form, iter(made))

    return mapped


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """module(*args, **kwargs) with these tensors in the place of its own of these dotted names, of
    one dict or of several."""
    given_dicts = parameter_and_buffer_dicts
    dicts = [given_dicts] if isinstance(given_dicts, Mapping) else given_dicts
    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for path, value in ((k, v) for each in dicts for k, v in each.items()):
            parent, _, name = path.rpartition(".")
            own = vars(module.get_submodule(parent))
            before.append((own, name, own[name]))
            own[name] = value
        given = args if isinstance(args, tuple) else () if args is None else (args,)
        return module(*given, **(kwargs or {}))
    finally:
        for own, name, value in reversed(before):
            own[name] = value


def stack_module_state(
    models: Sequence[Module],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters, and the buffers, of models of one kind, by name, each stacked along a first
    axis: new leaves, which require a gradient where those do."""
    if not models:
        raise RuntimeError("stack_module_state takes one model or more, got none")

    def stacked(named: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        found = {}
        for name, first in named[0].items():
            made = stack([each[name].detach() for each in named])
            found[name] = made.requires_grad_(first.requires_grad)
        return found

    parameters = stacked([dict(m.named_parameters()) for m in models])
    return parameters, stacked([dict(m.named_buffers()) for m in models])


def replace_all_batch_norm_modules_(root: Module) -> Module:
    """Let no batch norm below keep running statistics, so that calls change nothing."""
    for module in root.modules():
        if hasattr(module, "track_running_stats"):
            vars(module).update(track_running_stats=False, num_batches_tracked=None)
            vars(module).update(running_mean=None, running_var=None)
    return root


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("func", name, [n for n in globals() if not n.startswith("_")])
