"""Derivatives on request, and functions whose gradient the user writes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from hal.tile.node import Node
from stack import ops as g
from stack.framework import store
from stack.framework.errors import GradientError, absent, where_called
from stack.framework.modes import enable_grad, grad_enabled, inference_mode, no_grad
from stack.framework.modes import set_grad_enabled as set_grad_enabled
from stack.framework.reverse import Rule, gradients, rules
from stack.framework.tensor import Tensor

__all__ = [
    "Function",
    "Variable",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "grad",
    "inference_mode",
    "no_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
]


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, Tensor) else list(value)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The derivatives of the outputs' sum by each input, without touching any `grad`.

    With create_graph they can be differentiated in turn. An input that no output was computed from
    is an error; with allow_unused its derivative is None, with materialize_grads zeros.
    """
    if is_grads_batched:
        raise NotImplementedError("grad takes no batch of grad_outputs; call it for each")
    given, wanted = _listed(outputs), _listed(inputs)
    nodes = {x.node for x in wanted}
    each = [None] * len(given) if grad_outputs is None else _listed(grad_outputs)
    pairs = []
    for y, d in zip(given, each, strict=True):
        if d is None and y.numel() != 1:
            raise GradientError(
                f"the derivative of shape {list(y.shape)} needs grad_outputs\n"
                f"  called at {where_called()}"
            )
        pairs.append((y.node, g.full_like(y.node, 1) if d is None else d.node))
    found = gradients(pairs, nodes.__contains__)
    results: list[Tensor | None] = []
    for i, x in enumerate(wanted):
        node = found.get(x.node)
        if node is None and not (allow_unused or materialize_grads):
            raise GradientError(
                f"no output was computed from input {i}; allow_unused=True gives None for it\n"
                f"  called at {where_called()}"
            )
        if node is None and not materialize_grads:
            results.append(None)
            continue
        total = g.full_like(x.node, 0) if node is None else node
        results.append(Tensor(total, x.device, requires_grad=create_graph))
    return tuple(results)


def Variable(data: Tensor, requires_grad: bool = False) -> Tensor:
    """The tensor's values as a leaf, as old programs ask for it; every tensor takes gradients."""
    return data.detach().requires_grad_(requires_grad)


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add the derivatives of these tensors by every leaf, or by `inputs` alone, to the leaf's
    `grad`: `Tensor.backward` of each. `grad_variables` is the old name of `grad_tensors`."""
    given = _listed(tensors)
    seeds = grad_variables if grad_tensors is None else grad_tensors
    each = [None] * len(given) if seeds is None else _listed(seeds)
    for y, d in zip(given, each, strict=True):
        y.backward(d, retain_graph, create_graph, inputs)


class Context:
    """What a function's forward leaves for its backward; further attributes may be set."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.saved_tensors: tuple[Any, ...] = ()
        self.fixed: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Hold tensors as `saved_tensors`."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Let these outputs require no gradient; `backward` gets zeros for them, as for those of
        integers."""
        self.fixed = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Nothing: an output without a gradient gets zeros."""


class Function:
    """A function with a gradient of its own: subclasses define static `forward(ctx, *args)`, or
    `forward(*args)` and `setup_context(ctx, inputs, output)`, and `backward(ctx, *gradients)`,
    which gives a gradient or None for each argument. Call it by `apply`."""

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a Function defines forward")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError("this Function defines no backward")

    setup_context: Callable[..., None] | None = None

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """forward(ctx, *args), through which gradients flow by `backward`."""
        needs = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        ctx = Context(needs)
        with no_grad():
            if cls.setup_context is None:
                result = cls.forward(ctx, *args)
            else:
                result = cls.forward(*args)
                cls.setup_context(ctx, args, result)
        if not (grad_enabled() and any(needs)):
            return result
        outputs = list(result) if isinstance(result, tuple) else [result]
        fixed = {id(t) for t in ctx.fixed}
        moves = [isinstance(t, Tensor) and t.dtype.is_float and id(t) not in fixed for t in outputs]
        if not any(moves):
            return result
        followed = _follow(cls, ctx, args, outputs, moves)
        final = [next(followed) if moved else t for t, moved in zip(outputs, moves, strict=True)]
        return tuple(final) if isinstance(result, tuple) else final[0]


def _follow(
    cls: type[Function],
    ctx: Context,
    args: Sequence[Any],
    results: Sequence[Any],
    moves: Sequence[bool],
) -> Any:
    """The outputs that move with the arguments as parts of one leaf, whose gradient `backward` gets
    whole, with zeros for other tensors."""
    outputs = [t for t, moved in zip(results, moves, strict=True) if moved]
    if len({t.dtype for t in outputs}) > 1:
        raise GradientError(f"{cls.__name__} gives outputs of several float types; convert them")
    sizes = [t.numel() for t in outputs]
    flat = g.concat([g.reshape(t.node, (n,)) for t, n in zip(outputs, sizes, strict=True)], 0)
    leaf = store.barrier(flat)
    wanted = [i for i, needed in enumerate(ctx.needs_input_grad) if needed]

    def parts(whole: Node) -> list[Node]:
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [
            g.reshape(g.slice(whole, (start,), (start + n,)), t.shape)
            for t, n, start in zip(outputs, sizes, starts, strict=True)
        ]

    shapes = [args[i].node for i in wanted]
    device = outputs[0].device

    def pull(d: Node, lead: Sequence[bool]) -> list[Node | None]:
        with no_grad():
            own = iter(parts(d))
            seen = [
                next(own) if moved else g.full_like(t.node, 0) if isinstance(t, Tensor) else None
                for t, moved in zip(results, moves, strict=True)
            ]
            given = cls.backward(ctx, *(n if n is None else Tensor(n, device) for n in seen))
        each = list(given) if isinstance(given, tuple) else [given]
        if len(each) != len(args):
            raise GradientError(
                f"{cls.__name__}.backward gives {len(each)} gradients for {len(args)} arguments"
            )
        found: list[Node | None] = []
        for i, source in zip(wanted, shapes, strict=True):
            if each[i] is not None and math.prod(each[i].shape) != source.type.size:
                raise GradientError(
                    f"{cls.__name__}.backward gives shape {list(each[i].shape)} for argument {i} "
                    f"of shape {list(source.shape)}"
                )
            found.append(None if each[i] is None else g.reshape(each[i].node, source.shape))
        return found

    rules[leaf] = Rule(tuple(shapes), pull)
    return (Tensor(n, device, requires_grad=True) for n in parts(leaf))


def set_detect_anomaly(mode: bool, check_nan: bool = True) -> AbstractContextManager[None]:
    """Nothing for False. Warns for True, since no NaN is looked for in gradients; errors of
    operations name the line that called them in any case."""
    if mode:
        warnings.warn(
            "gradients are not searched for NaN here: set_detect_anomaly(True) changes nothing",
            stacklevel=2,
        )
    return nullcontext()


def detect_anomaly(check_nan: bool = True) -> AbstractContextManager[None]:
    """`set_detect_anomaly(True)`."""
    return set_detect_anomaly(True, check_nan)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("autograd", name, __all__)
