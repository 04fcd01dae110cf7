"""Control flow that is data: loops and branches that a captured function keeps, with gradients.

A body's Python runs once, on tensors without values; what it reads from outside is read in place,
and what of it does not depend on the step is computed once. The names, arguments and results are
those of `torch.cond`, `torch.while_loop` and `torch._higher_order_ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, Type, rebuild, substitute
from hal.tile.size import is_symbolic
from stack import ops as g
from stack.framework import store
from stack.framework.apply import common_device, evaluate
from stack.framework.cell import Trace, here, hooked, owners, settle, tracing, under_way
from stack.framework.create import tensor
from stack.framework.devices import default_device
from stack.framework.errors import TensorError, TracingError, name_of, where_called
from stack.framework.functions import cat
from stack.framework.modes import grad_enabled
from stack.framework.reverse import leads_to_leaf, rules
from stack.framework.tensor import Tensor
from stack.framework.tree import Spec, flatten, unflatten
from stack.ops import UNBOUNDED, LoopBody

__all__ = ["associative_scan", "cond", "map", "scan", "while_loop"]


def scan(
    combine_fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    *,
    dim: int = 0,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """(carry, ys) after `carry, y = combine_fn(carry, x)` for each x along `dim` of `xs`, with
    `init` as the first carry; the y are stacked along a first axis, each at its x's place.

    `init`, `xs` and y are nested tuples, lists and dicts of tensors. The carry keeps its shapes and
    element types. With `reverse` the last x comes first. The time to compile does not depend on the
    number of steps. Raises TensorError where sizes along `dim` or a carry's type differ,
    TracingError where the body changes a tensor from outside or draws random numbers.
    """
    begins, form = _tensors(init, "init")
    rows, row_form = _tensors(xs, "xs")
    moved = [x.movedim(dim, 0) for x in rows]
    sizes = {x.shape[0] for x in moved}
    if len(sizes) != 1:
        raise _refused(f"scan: xs have sizes {sorted(sizes)} along dim {dim}; one is needed")
    name = name_of(combine_fn)

    def step(given: list[Tensor]) -> tuple[list[Tensor], Spec]:
        carry, y = combine_fn(
            unflatten(form, iter(given[: len(begins)])),
            unflatten(row_form, iter(given[len(begins) :])),
        )
        after, after_form = _tensors(carry, f"the carry of {name}")
        if after_form != form:
            raise _refused(f"scan: the carry of {name} has another structure than init")
        made, made_form = flatten(y, lambda value: isinstance(value, Tensor))
        return [*after, *made], made_form

    carry, ys, made_form = _looped(name, step, sizes.pop(), begins, moved, reverse=reverse)
    return unflatten(form, iter(carry)), unflatten(made_form, iter(ys))


def map(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """f(x, *args) of each x along the first axis of `xs`, stacked along a first axis."""
    _, ys = scan(lambda carry, x: (carry, f(x, *args)), (), xs)
    return ys


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Any]
) -> tuple[Any, ...]:
    """`carried = body_fn(*carried)` as long as cond_fn(*carried), a bool, is true.

    Where values can be read it is Python's own loop, with gradients. While a function is traced it
    is a loop of the plan, which reads the condition before each step and has no gradient: there it
    raises TracingError where one would flow.
    """
    carried = tuple(carried_inputs)
    if tracing() is None:
        while bool(cond_fn(*carried)):
            carried = _as_tuple(body_fn(*carried))
        return carried
    begins, form = _tensors(carried, "carried_inputs")
    name = name_of(body_fn)

    def step(given: list[Tensor]) -> tuple[list[Tensor], Spec]:
        after = _as_tuple(body_fn(*unflatten(form, iter(given[1:]))))
        found, after_form = _tensors(after, f"what {name} gives")
        if after_form != form:
            raise _refused(f"while_loop: {name} gives another structure than it takes")
        return [_flag(cond_fn(*after), given[0]), *found], Spec()

    first = _flag(cond_fn(*carried), begins[0] if begins else None)
    after, _, _ = _looped(name, step, UNBOUNDED, [first, *begins], [], tested=True)
    return tuple(unflatten(form, iter(after[1:])))


def cond(
    pred: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any] = (),
) -> Any:
    """true_fn(*operands) where `pred`, a bool or a tensor of one, is true, else
    false_fn(*operands).

    While a function is traced, a tensor is read when the plan runs, and the branch that is not
    taken is not computed; both give the same structure, shapes and element types.
    """
    if tracing() is None or not isinstance(pred, Tensor):
        return (true_fn if bool(pred) else false_fn)(*operands)
    taken = _flag(pred, pred)
    # What the first function gives, which is not computed
    name = name_of(true_fn)
    with _apart(name, set(), certain=False) as changes:
        found, form = _tensors(true_fn(*operands), f"what {name} gives")
    if changes:
        raise _changing(name, changes[0])
    shown = _Outline(tuple(t.node.type for t in found), form)
    before = [Tensor(g.full(t.shape, 0, t.dtype), pred.device) for t in shown.types]

    def run(function: Callable[..., Any], flag: Tensor, before: list[Tensor]) -> list[Tensor]:
        name = name_of(function)

        def step(given: list[Tensor]) -> tuple[list[Tensor], Spec]:
            found, form = _tensors(function(*operands), f"what {name} gives")
            if form != shown.form or [x.node.type for x in found] != list(shown.types):
                raise _refused(
                    f"cond: {name} gives {', '.join(str(t.node.type) for t in found)}, "
                    f"{name_of(true_fn)} "
                    f"{', '.join(str(t) for t in shown.types)}; branches give the same"
                )
            return [Tensor(g.const(False, DType.BOOL), given[0].device), *found], Spec()

        after, _, _ = _looped(name, step, 1, [flag, *before], [], tested=True)
        return after[1:]

    chosen = run(true_fn, taken, before)
    return unflatten(shown.form, iter(run(false_fn, taken.logical_not(), chosen)))


def associative_scan(
    combine_fn: Callable[[Any, Any], Any],
    xs: Any,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    """The inclusive prefix combinations of `xs` along `dim` by an associative function of two
    structures of tensors, in as many steps as the size has binary digits. `combine_mode` says what
    PyTorch may assume of the function, and changes nothing."""
    found, form = _tensors(xs, "xs")
    leaves = [x.flip(dim) if reverse else x for x in found]
    size, shift = leaves[0].shape[dim], 1
    while shift < size:
        early = unflatten(form, iter([x.narrow(dim, 0, size - shift) for x in leaves]))
        late = unflatten(form, iter([x.narrow(dim, shift, size - shift) for x in leaves]))
        both, _ = _tensors(combine_fn(early, late), f"what {name_of(combine_fn)} gives")
        leaves = [cat([x.narrow(dim, 0, shift), y], dim) for x, y in zip(leaves, both, strict=True)]
        shift *= 2
    return unflatten(form, iter([x.flip(dim) if reverse else x for x in leaves]))


# one loop


Step = Callable[[list[Tensor]], tuple[list[Tensor], Spec]]
"""(carried values and rows) to (the next carried values and what the step gives), and the structure
of the latter."""


def _looped(
    name: str,
    step: Step,
    steps: int,
    begins: Sequence[Tensor],
    rows: Sequence[Tensor],
    reverse: bool = False,
    tested: bool = False,
) -> tuple[list[Tensor], list[Tensor], Spec]:
    """The carried values at the end, what the steps give, and its structure."""
    device = common_device([*begins, *rows]) if begins or rows else default_device()
    before = [x.node.type for x in begins]
    types = [*before, *(x.node.type.with_shape(x.shape[1:]) for x in rows)]
    found = _traced(name, types, device, step, certain=not tested)
    for i, (old, new) in enumerate(zip(before, found.types, strict=False)):
        if old != new:
            raise _refused(
                f"{name}: the carried value {i - tested} is {old}, and {new} after a step"
            )
    tracks = grad_enabled() and (
        any(x.requires_grad for x in (*begins, *rows))
        or any(leads_to_leaf(n) for n in found.consts)
    )
    if tracks and steps == UNBOUNDED:
        raise TracingError(
            f"{name}: a while_loop of a captured function has no gradient; take scan over a number "
            f"of steps, or no_grad()\n  called at {where_called()}"
        )
    count = len(begins)

    def looped(own: list[Node], others: list[Node]) -> tuple[Node, ...]:
        return g.loop(found.body, steps, found.consts, own, others, reverse, tested, tracks)

    looped.__name__ = name
    if begins or rows:
        nodes, device, _ = evaluate(looped, (list(begins), list(rows)), {})
    else:
        nodes = looped([], [])
    made = [Tensor(n, device, requires_grad=tracks and n.dtype.is_float) for n in nodes]
    return made[:count], made[count : len(found.types)], found.form


@dataclass(frozen=True, slots=True)
class _Traced:
    """A body's graph, and what it reads from outside."""

    body: LoopBody
    consts: tuple[Node, ...]
    types: tuple[Type, ...]
    form: Spec


def _traced(name: str, types: Sequence[Type], device: str, step: Step, certain: bool) -> _Traced:
    nodes = [store.argument(t, name) for t in types]
    with _apart(name, set(nodes), certain) as changes:
        tracked = grad_enabled()
        given = [Tensor(n, device, requires_grad=tracked and n.dtype.is_float) for n in nodes]
        made, form = step(given)
        common_device([*given, *made])
        outputs = [t.node for t in made]
    if changes:
        raise _changing(name, changes[0])
    body, consts = _split(name, nodes, outputs)
    return _Traced(body, consts, tuple(n.type for n in outputs), form)


@dataclass(frozen=True, slots=True)
class _Outline:
    types: tuple[Type, ...]
    form: Spec


@contextmanager
def _apart(name: str, own: set[Node], certain: bool) -> Iterator[list[str]]:
    """A trace within the one under way, if any: values cannot be read, and tensors from outside are
    afterwards as before; what of them was changed is then in the list. A call of the outer one has
    to meet what this one needs of indices if it is `certain` to run."""
    outer = tracing()
    if outer is None:
        settle()
    trace, changes = Trace(name), list[str]()
    with store.lock:
        here.context.trace = trace
        under_way[:] = [*(t for t in under_way if t is not outer), trace]
    try:
        yield changes
    finally:
        changed = [c for c, before in trace.old.items() if c.node is not before.node]
        trace.revert()
        with store.lock:
            here.context.trace = outer
            under_way[:] = [t for t in under_way if t is not trace]
            if outer is not None:
                under_way.append(outer)
    if trace.gradients or trace.effects:
        changes.append("a gradient")
    changes += [f"a tensor of {c.node.type}" for c in changed]
    if outer is not None:
        for key, flag in trace.flags.items():
            outer.flags.setdefault(key, flag)
        outer.needs += [n for n in trace.needs if certain and n.source not in own]


def _changing(name: str, what: str) -> TracingError:
    return TracingError(
        f"{name}, which is a step of a loop or a branch, changes {what} from outside of it, or "
        "draws random numbers; carry the value, or draw before the loop and take what was drawn as "
        f"an argument\n  called at {where_called()}"
    )


# a body's graph, and what it reads


def _split(
    name: str, arguments: Sequence[Node], outputs: Sequence[Node]
) -> tuple[LoopBody, tuple[Node, ...]]:
    """The body, whose inputs are what it reads from outside and then the arguments; and the
    former. What does not depend on the arguments is computed outside, but for views and constants,
    which cost nothing. A parameter that an optimizer holds is a view of its flat array, and the end
    of a gradient's way: the body takes it as it is."""
    depends, plain = _depending(outputs, set(arguments))
    consts: dict[Node, Node] = {}
    done: dict[Node, Node] = {n: store.fresh(n.type) for n in arguments}
    places = [done[n] for n in arguments]
    stack = list(reversed(outputs))
    while stack:
        n = stack[-1]
        if n in done:
            stack.pop()
            continue
        is_view = n.op in store.VIEWS and n not in store.leaves and n not in owners
        inside = depends[n] or plain[n] or is_view
        below = _below(n) if inside else ()
        waiting = [s for s in below if s not in done]
        if waiting:
            stack += reversed(waiting)
            continue
        stack.pop()
        if not inside:
            done[n] = consts.setdefault(n, store.fresh(n.type))
        elif n.op == "input":
            _check_plain_leaf(name, n)
            done[n] = g.detached(done[below[0]])
        else:
            done[n] = rebuild(n, tuple(done[s] for s in n.srcs))
    inner = [*consts.values(), *places]
    slots = {n: g.input(i, n.type) for i, n in enumerate(inner)}
    made = substitute([done[n] for n in outputs], slots)
    return LoopBody(tuple(slots[n] for n in inner), made), tuple(consts)


def _below(n: Node) -> tuple[Node, ...]:
    origin = store.origins.get(n) if n.op == "input" else None
    return n.srcs if origin is None else (origin,)


def _depending(
    outputs: Sequence[Node], arguments: set[Node]
) -> tuple[dict[Node, bool], dict[Node, bool]]:
    """Of each node whether it depends on an argument, and whether on constants alone."""
    depends: dict[Node, bool] = {}
    plain: dict[Node, bool] = {}
    stack = list(outputs)
    while stack:
        n = stack[-1]
        below = _below(n)
        waiting = [s for s in below if s not in depends]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        depends[n] = n in arguments or any(depends[s] for s in below)
        is_data = n.op == "input" or (n.op == "const" and is_symbolic(n["value"]))
        plain[n] = not is_data and all(plain[s] for s in below)
    return depends, plain


def _check_plain_leaf(name: str, n: Node) -> None:
    """Raise TracingError for a leaf with a gradient that a body's graph cannot hold."""
    if n in store.histories or n in rules or n in hooked:
        raise TracingError(
            f"{name}, which is a step of a loop or a branch, writes without gradients over a value "
            "that has one, or uses an autograd.Function; neither can be in a body\n"
            f"  called at {where_called()}"
        )


# structures of tensors


def _tensors(tree: Any, what: str) -> tuple[list[Tensor], Spec]:
    """The tensors of a structure that has nothing else. Raises TensorError."""
    found, form = flatten(tree, lambda x: not isinstance(x, tuple | list | dict))
    for x in found:
        if not isinstance(x, Tensor):
            raise _refused(f"{what}: {x!r} is no tensor")
    return found, form


def _flag(value: Any, like: Tensor | None) -> Tensor:
    """A condition as a 0-d bool."""
    if not isinstance(value, Tensor):
        return tensor(bool(value), device=None if like is None else like.device)
    if value.numel() != 1:
        raise _refused(f"a condition is one bool, not {value.node.type}")
    return value.reshape(()).bool().detach()


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _refused(text: str) -> TensorError:
    return TensorError(f"{text}\n  called at {where_called()}")
