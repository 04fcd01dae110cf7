"""`torch.compile(backend="hal")`: graphs of Dynamo whose operators are recorded as one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch._dynamo import graph_bytecode_inputs
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.schemas import (
    MutationType,
    PlainTensorMeta,
    ViewAndMutationMeta,
)
from torch._functorch.aot_autograd import make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.bridge.torch import algebra, draws, kernels, ranges
from stack.bridge.torch.device import leave_frames
from stack.bridge.torch.kernels import NAME
from stack.bridge.torch.module import Stream
from stack.bridge.torch.rows import inlined, words
from stack.bridge.torch.table import ROWS
from stack.bridge.torch.tape import DTYPES, Row
from stack.framework.expr import create, movement

leave_frames()


def backend(graph: fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """What `torch.compile` calls: forward and backward each become one recorded operator. Tensors
    of the CPU are copied to the device and back, which `stats` counts."""
    made: Callable[..., Any] = _backend(graph, examples)
    # let Dynamo not look up the current stream in each call of a graph that does not mention one:
    # the device has one order, and looking it up costs as much as recording the graph
    streams = [ref() for ref in graph_bytecode_inputs.index_to_external_object_weakref.values()]
    mentioned = any(
        isinstance(n.target, torch._ops.HigherOrderOperator)
        or n.target is graph_bytecode_inputs.get_external_object_by_index
        or str(n.target).startswith("streams.")
        for n in graph.graph.nodes
    )
    if len(streams) == 1 and isinstance(streams[0], Stream) and not mentioned:
        graph_bytecode_inputs.index_to_bytecode_constructor.clear()
    direct: _Direct | None = getattr(made, _DIRECT, None)
    if direct is None or direct.arguments != len(examples):
        return made
    recorded = direct.recorded
    if not direct.takes_indices:
        return recorded
    return lambda *args: made(*args) if ranges.is_on() else recorded(*args)


class _Direct(NamedTuple):
    """A graph as one operator on so many tensors of the device."""

    recorded: Callable[..., list[Any]]
    arguments: int
    takes_indices: bool


_RECORDED, _DIRECT = "_hal_recorded", "_hal_direct"
"""Attributes of compiled functions, which `functools.wraps` carries through torch's wrappers: the
graph as one operator; the same where nothing is lost when it is called without these wrappers."""


def _compile_inference(graph: fx.GraphModule, examples: Sequence[Any]) -> Any:
    """`_compile`, which marks what torch's wrappers do nothing for: they turn gradients off, which
    our tensors are made without; write arguments that are changed; make results views of others."""
    run = _compile(graph, shown=None)
    known = _metadata()
    if (
        known is not None
        and hasattr(run, _RECORDED)
        and all(info.mutation_type is MutationType.NOT_MUTATED for info in known.input_info)
        and not (known.num_outputs_aliased or known.num_intermediate_bases)
        and not (known.dynamic_outputs or known.tokens or known.act_input_indices)
        and not known.is_rng_op_functionalized
        and known.grad_enabled_mutation is None
        and all(
            isinstance(meta, PlainTensorMeta)
            for meta in (*known.subclass_inp_meta, *known.subclass_fw_graph_out_meta)
        )
    ):
        setattr(run, _DIRECT, getattr(run, _RECORDED))
    return run


def _compile_forward(graph: fx.GraphModule, examples: Sequence[Any]) -> Any:
    known = _metadata()
    return _compile(graph, shown=None if known is None else known.num_forward_returns)


def _metadata() -> ViewAndMutationMeta | None:
    """What torch found out about the graph that is being compiled."""
    context = torch._guards.TracingContext.try_get()
    return None if context is None else context.fw_metadata


def _compile(graph: fx.GraphModule, shown: int | None) -> Any:
    """What runs a graph. Of its results users see so many first ones, all without a number: these
    share memory and have strides as if they were computed operator by operator."""
    calls = [n for n in graph.graph.nodes if n.op == "call_function"]
    found = []
    for n in calls:
        if isinstance(n.target, torch._ops.OpOverload):
            found += [_name(n)] if n.target is not _SIZE else []
            found += ["a generator"] if n.kwargs.get("generator") is not None else []
        elif isinstance(n.target, torch._ops.OperatorBase):
            found.append(str(n.target))
    attributes = [n for n in graph.graph.nodes if n.op == "get_attr"]
    constants = {n: held for n in attributes if (held := _constant(n)) is not None}
    names = found + [f"attribute {n.target}" for n in attributes if n not in constants]
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    if not all(_is_lowered(n) for n in names) or all(_is_number(n) for n in inputs):
        return make_boxed_func(graph.forward)  # by operators, which torch decomposes or refuses
    drawing = any(name in draws.IN_GRAPHS for name in names)
    given = [a for n in graph.graph.nodes if n.op == "output" for a in _flat(n.args[0])]
    places = [i for i, a in enumerate(given) if isinstance(a, fx.Node) and not _is_number(a)]
    visible = {given[i] for i in places if shown is None or i < shown}
    whole_of = _whole_of(visible)
    results = list(dict.fromkeys(whole_of[given[i]] for i in places if given[i] in whole_of))
    results += [given[i] for i in places if given[i] not in whole_of]
    seen = visible | set(results[: len(set(whole_of.values()))])
    row = Row(
        f"a compiled graph of {len(graph.graph.nodes)} nodes",
        _lower_of(graph, results, drawing, constants),
        orders=tuple([_order(n) if n in seen else None for n in results]),
    )
    record = kernels.alike(row)
    back = [_is_host(given[i]) for i in places]
    numbers = {i: a for i, a in enumerate(given) if isinstance(a, fx.Node) and _is_number(a)}
    strangers = any(_is_host(n) for n in inputs)
    takes_indices = any(ranges.takes_indices(name) for name in names)

    def drawn(*args: Any) -> list[Any]:
        stream = draws.stream_of(kernels.index_among(args))
        *made, stream.state = record(stream.state, *args)
        return made

    recorded = drawn if drawing else record
    is_plain = len(places) == len(given) and not any(back) and not whole_of

    def run(args: list[Any]) -> list[Any]:
        if takes_indices and ranges.is_on():  # operator by operator, whose indices are looked at
            by_operators: list[Any] = graph.forward(*args)
            return by_operators
        made = recorded(*[_here(a) for a in args]) if strangers else recorded(*args)
        if is_plain:
            return made
        out: list[Any] = list(given)
        for place, number in numbers.items():
            out[place] = _number(number, args)
        wholes = dict(zip(results, made, strict=True)) if whole_of else {}
        rest = iter(made[len(set(whole_of.values())) :])
        for place, host in zip(places, back, strict=True):
            n = given[place]
            x = _view_of_whole(n, wholes, args) if n in whole_of else next(rest)
            if host:
                kernels.host_calls["a copy of a compiled graph"] += 1
            out[place] = x.cpu() if host else x
        return out

    boxed: Any = run
    boxed._boxed_call = True
    if is_plain and not strangers:
        setattr(boxed, _RECORDED, _Direct(recorded, len(inputs), takes_indices))
    return boxed


def _constant(n: fx.Node) -> Node | None:
    """What `torch.tensor(number)` of a program has become in its graph: an attribute that nobody
    writes. None: it has several elements, or is a result."""
    held = getattr(n.graph.owning_module, str(n.target), None)
    if (
        not isinstance(held, Tensor)
        or held.numel() != 1
        or held.dtype not in DTYPES
        or any(user.op == "output" for user in n.users)
    ):
        return None
    with unset_fake_temporarily():  # torch compiles with tensors that have no values
        return g.full(tuple(held.shape), held.item(), DTYPES[held.dtype])


def _whole_of(results: Collection[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Of results that share memory with each other, what they are views of: what first had it."""
    sharing: dict[int, list[fx.Node]] = {}
    for n in results:
        sharing.setdefault(_memory(n), []).append(n)
    found: dict[fx.Node, fx.Node] = {}
    for memory, nodes in sharing.items():
        if len(nodes) > 1:
            known = [n for n in nodes[0].graph.nodes if isinstance(n.meta.get("val"), Tensor)]
            whole = next(n for n in known if _memory(n) == memory)
            if whole.op == "call_function":  # torch makes views of arguments by itself
                found |= dict.fromkeys(nodes, whole)
    return found


def _memory(n: fx.Node) -> int:
    return int(n.meta["val"].untyped_storage()._cdata)


def _view_of_whole(n: fx.Node, wholes: dict[fx.Node, Tensor], args: Sequence[Any]) -> Any:
    """What a graph gives at a node that only shows another part or form of what was computed."""
    if n in wholes:
        return wholes[n]

    def value(a: Any) -> Any:
        is_tensor = isinstance(a, fx.Node) and not isinstance(a.meta.get("val"), int | torch.SymInt)
        return _view_of_whole(a, wholes, args) if is_tensor else _number(a, args)

    return n.target(*[value(a) for a in n.args], **n.kwargs)


def _order(n: fx.Node) -> tuple[int, ...] | None:
    """In which order a result's axes lie in memory. None: in their own, or with gaps."""
    x = n.meta["val"]
    sizes = [d if isinstance(d, int) else d.node.hint for d in (*x.shape, *x.stride())]
    if None in sizes:
        return None
    shape, strides = sizes[: x.dim()], sizes[x.dim() :]
    order = sorted(range(x.dim()), key=lambda a: (-strides[a], a))
    step = 1
    for a in reversed(order):
        if shape[a] != 1 and strides[a] != step:
            return None
        step *= shape[a]
    return tuple(order)


def _here(a: Any) -> Any:
    if isinstance(a, Tensor) and a.device.type != NAME and a.dim():
        kernels.host_calls["a copy of a compiled graph"] += 1
        return a.to(NAME)
    return a


def _is_host(a: fx.Node) -> bool:
    value = a.meta.get("val")
    return isinstance(value, Tensor) and value.device.type != NAME


def _is_number(a: fx.Node) -> bool:
    return not isinstance(a.meta.get("val"), Tensor)


def _number(a: Any, given: Sequence[Any]) -> Any:
    """A size that a graph gives beside tensors, from the graph's arguments."""
    if isinstance(a, list | tuple):
        return [_number(x, given) for x in a]
    if not isinstance(a, fx.Node):
        return a
    if a.op == "placeholder":
        return given[[n for n in a.graph.nodes if n.op == "placeholder"].index(a)]
    values = [_number(x, given) for x in a.args]
    return values[0].shape[values[1]] if a.target is _SIZE else a.target(*values)


_SIZE = torch.ops.aten.sym_size.int


def _flat(args: Any) -> list[Any]:
    return list(args) if isinstance(args, list | tuple) else [args]


def _name(n: fx.Node) -> str:
    return _name_of(n.target)


def _name_of(op: Any) -> str:
    base = str(op._schema.name).removeprefix("aten::")
    return base if op._overloadname == "default" else f"{base}.{op._overloadname}"


def _is_lowered(name: str) -> bool:
    """Whether an operator is a part of graphs: not one whose row depends on strides."""
    has_row = name in ROWS and name not in algebra.KERNELS
    return has_row or name in GRAPH or name in draws.IN_GRAPHS


_IGNORED = ("layout", "device", "pin_memory", "memory_format", "non_blocking")


def _lower_of(
    graph: fx.GraphModule,
    results: Sequence[fx.Node],
    drawing: bool,
    constants: dict[fx.Node, Node],
) -> Callable[..., Any]:
    """The graph as a row: nodes for its arguments to nodes for these of its results. One that draws
    has the state of a stream as its first argument, and that behind its draws as its last result.
    """

    def value(a: Any, values: dict[fx.Node, Any]) -> Any:
        if isinstance(a, fx.Node):
            return values[a]
        if isinstance(a, list | tuple):
            return [value(x, values) for x in a]
        return DTYPES[a] if isinstance(a, torch.dtype) else a

    def lower(*args: Any) -> Any:
        rest = iter(args)
        state: list[Node] = [next(rest)] if drawing else []
        values: dict[fx.Node, Any] = {}

        def draw(n: int) -> Node:
            made: list[Node] = words(state[0], n)
            state[0] = made[1]
            return made[0]

        for n in graph.graph.nodes:
            if n.op == "placeholder":
                values[n] = next(rest)
            elif n.op == "output":
                return [*[values[r] for r in results], *state]
            elif n.op == "get_attr":
                values[n] = constants[n]
            elif n.target is _SIZE:
                values[n] = values[n.args[0]].shape[n.args[1]]
            elif not isinstance(n.target, torch._ops.OpOverload):  # of Python: on sizes, and [i]
                values[n] = n.target(*value(n.args, values))
            elif (name := _name(n)) in draws.IN_GRAPHS:
                values[n] = draws.IN_GRAPHS[name](draw, *value(n.args, values), dtype=_dtype_of(n))
            else:
                named = {k: value(v, values) for k, v in n.kwargs.items() if k not in _IGNORED}
                if n.target in _TYPED:
                    named["dtype"] = _dtype_of(n)
                else:
                    named = {k: v for k, v in named.items() if v is not None}
                row = GRAPH.get(_name(n)) or ROWS[_name(n)]
                made = row.lower(*[value(a, values) for a in n.args], **named)
                values[n] = made if isinstance(made, Node) else _placed(n, made)
        raise AssertionError("a graph has an output")

    return lower


def _dtype_of(n: fx.Node) -> DType:
    made = n.meta["val"]
    return DTYPES[(made if isinstance(made, Tensor) else made[0]).dtype]


def _placed(n: fx.Node, made: Any) -> list[Any]:
    """Results at their places, where a mask says which ones there are."""
    masks = [i for i, a in enumerate(_schema(n).arguments) if a.name == "output_mask"]
    if not masks:
        return list(made)
    rest = iter([m for m in made if m is not None])
    return [next(rest) if wanted else None for wanted in n.args[masks[0]]]


def _schema(n: fx.Node) -> Any:
    target: Any = n.target
    return target._schema


# Operators of graphs that eager tensors have other kernels for: views, and what makes tensors

GRAPH: dict[str, Row] = {}
"""By the operator's name."""


def _in_graphs(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            GRAPH[name] = Row(name, inlined(function))
        return function

    return decorate


@_in_graphs("view", "_unsafe_view", "reshape")
def _view(x: Node, shape: Sequence[int]) -> Node:
    return movement.reshape(x, list(shape))


@_in_graphs("full")
def _full(shape: Sequence[int], value: Any, *, dtype: DType) -> Node:
    return g.full(tuple(shape), value, dtype)


@_in_graphs("full_like")
def _full_like(x: Node, value: Any, *, dtype: DType) -> Node:
    return g.full(x.shape, value, dtype)


@_in_graphs("empty.memory_format", "zeros")
def _zeros(shape: Sequence[int], *, dtype: DType) -> Node:
    return g.full(tuple(shape), 0, dtype)


@_in_graphs("empty_permuted")
def _empty_permuted(shape: Sequence[int], order: Sequence[int], *, dtype: DType) -> Node:
    return g.full(tuple(shape), 0, dtype)


@_in_graphs("scalar_tensor")
def _scalar_tensor(value: Any, *, dtype: DType) -> Node:
    return g.const(value, dtype)


@_in_graphs("_to_copy")
def _to_copy(x: Node, *, dtype: DType) -> Node:
    return g.cast(x, dtype)


@_in_graphs("arange.start_step")
def _arange(start: Any, end: Any, step: Any = 1, *, dtype: DType) -> Node:
    return create.arange(start, end, step, dtype)


@_in_graphs("alias", "detach", "lift_fresh_copy")
def _alias(x: Node) -> Node:
    return x


@_in_graphs("copy")
def _copy(x: Node, y: Node, non_blocking: bool = False) -> Node:
    return g.broadcast(g.cast(y, x.dtype), x.shape)


@_in_graphs("slice.Tensor")
def _slice(
    x: Node, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Node:
    first, last, _ = slice(start, end).indices(x.shape[dim])
    return g.slice_axis(x, dim, first, max(first, last), step)


@_in_graphs("select.int")
def _select(x: Node, dim: int, at: int) -> Node:
    a = dim % len(x.shape)
    n = at % x.shape[a]
    return g.reshape(g.slice_axis(x, a, n, n + 1), (*x.shape[:a], *x.shape[a + 1 :]))


@_in_graphs("expand")
def _expand(x: Node, shape: Sequence[int], implicit: bool = False) -> Node:
    return movement.expand(x, list(shape))


@_in_graphs("permute")
def _permute(x: Node, dims: Sequence[int]) -> Node:
    return movement.permute(x, dims)


@_in_graphs("unsqueeze")
def _unsqueeze(x: Node, dim: int) -> Node:
    return movement.unsqueeze(x, dim)


@_in_graphs("squeeze", "squeeze.dim", "squeeze.dims")
def _squeeze(x: Node, dim: Any = None) -> Node:
    return movement.squeeze(x, dim)


@_in_graphs("split_with_sizes")
def _split(x: Node, sizes: Sequence[int], dim: int = 0) -> Any:
    return movement.split_with_sizes(x, list(sizes), dim)


_aten = torch.ops.aten
_TYPED = frozenset(
    {
        *(_aten.full.default, _aten.full_like.default, _aten.empty.memory_format),
        *(_aten.zeros.default, _aten.scalar_tensor.default, _aten._to_copy.default),
        *(_aten.arange.start_step, _aten.empty_permuted.default),
    }
)
"""Constructors, whose element type the graph's example tells."""


_backend = aot_autograd(
    fw_compiler=_compile_forward,
    bw_compiler=lambda graph, examples: _compile(graph, shown=0),
    inference_compiler=_compile_inference,
    # without what is a part of graphs: so they have the operators that eager tensors have, and
    # give the same numbers to the last bit
    decompositions={
        op: formula
        for op, formula in core_aten_decompositions().items()
        if _name_of(op) not in draws.IN_GRAPHS and _name_of(op) not in ROWS
    },
)
