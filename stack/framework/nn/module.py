"""The base of layers: a tree of modules that hold parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast, overload

from hal.core.dtypes import DType
from hal.tile.node import Type
from stack.framework.cell import changed, rebind, tracing, under_way
from stack.framework.create import empty
from stack.framework.errors import CheckpointError, TensorError, where_called
from stack.framework.expr.operand import text
from stack.framework.flat import homes
from stack.framework.nn.hooks import Hooks
from stack.framework.removable import RemovableHandle
from stack.framework.tensor import Tensor, leave, share
from stack.framework.tensor import placement as destination


class Parameter(Tensor):
    """A tensor that a module learns. It has the memory of `data`, not its history. Programs may set
    attributes of their own on it."""

    __slots__ = ("__dict__",)

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        given = empty(0) if data is None else data
        if not isinstance(given, Tensor):
            raise TensorError(
                f"a parameter is a tensor of real numbers, not a {type(given).__name__}; hold "
                f"view_as_real of complex ones, and take view_as_complex of it in forward\n"
                f"  called at {where_called()}"
            )
        super().__init__(given.node, given.device)
        share(self, given)
        self.requires_grad_(requires_grad)


class UninitializedParameter(Parameter):
    """A parameter of a lazy layer before its first forward: of a device and an element type, but no
    shape. Raises TensorError for whatever needs its values."""

    __slots__ = ("kind",)

    def __init__(self, device: str | None = None, dtype: DType | None = None) -> None:
        made = empty(0, device=device)
        Tensor.__init__(self, made.node, made.device, owns=True, requires_grad=True)
        self.settled()
        self.kind = dtype or DType.F32
        del self.node

    @property
    def dtype(self) -> DType:
        return self.kind

    @property
    def value_type(self) -> Type:
        raise self._unknown()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "node":
                raise self._unknown()
            return super().__getattr__(name)

    def _unknown(self) -> TensorError:
        return TensorError(
            "a parameter of a lazy layer has neither shape nor values before the first forward: "
            "call the model on an input, then make its optimizer or load its state\n"
            f"  called at {where_called()}"
        )

    def __repr__(self) -> str:
        return "UninitializedParameter()"


class Buffer(Tensor):
    """A tensor that a module which it is set on holds and does not learn; `state_dict` has it when
    it is persistent. It has the memory of `data`, not its history."""

    __slots__ = ("persistent",)

    def __init__(self, data: Tensor, persistent: bool = True) -> None:
        super().__init__(data.node, data.device)
        share(self, data)
        self.persistent = persistent


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict` found on one side only."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """A layer. Subclasses set parameters, buffers and modules as attributes and define `forward`.

    `training` tells layers such as dropout what to do; change it with `train` and `eval`.
    """

    _persistence: dict[str, bool]
    _hooks: Hooks

    def __init__(self) -> None:
        vars(self).update(training=True, _persistence={}, _hooks=Hooks())

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What a copy or a pickle becomes: it evaluates as the original did."""
        vars(self).update(state)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._hooks.empty:
            return self.forward(*args, **kwargs)
        return self._hooks.around(self, args, kwargs)

    # attributes

    @property
    def training(self) -> bool:
        """Whether it trains, or else evaluates. What a trace reads is a condition of its plan."""
        if under_way and (trace := tracing()) is not None:
            trace.note(self, "is_training")
        return self.is_training

    @training.setter
    def training(self, value: bool) -> None:
        if (trace := tracing()) is not None:
            trace.note(self, "is_training")  # as it was before
        vars(self)["training"] = value
        changed()

    @property
    def is_training(self) -> bool:
        """`training`, as traces find it again."""
        found: bool | None = vars(self).get("training")
        if found is None:
            raise AttributeError("training")  # `__getattr__` says why
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        own = vars(self)
        if "_persistence" not in own and isinstance(value, Module | Tensor):
            raise AttributeError(
                f"{type(self).__name__}.{name} is set before super().__init__() was called\n"
                f"  at {where_called()}"
            )
        held = own.get(name)
        if isinstance(held, Parameter) and not isinstance(value, Parameter | None):
            raise TypeError(
                f"{type(self).__name__}.{name} is a parameter and takes a Parameter or None, not a "
                f"{type(value).__name__}; change its values under no_grad() by copy_(...)\n"
                f"  at {where_called()}"
            )
        if isinstance(value, Buffer):
            self._persistence[name] = value.persistent
        elif isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
            return
        own[name] = value

    def __getattr__(self, name: str) -> Any:
        if "_persistence" not in vars(self):
            raise AttributeError(
                f"{type(self).__name__} has no {name!r} yet: super().__init__() was not called"
            )
        from difflib import get_close_matches  # noqa: PLC0415  (for a message alone)

        near = get_close_matches(name, [n for n in dir(self) if not n.startswith("_")], 3)
        hint = f"; the nearest names are {', '.join(near)}" if near else ""
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name
        )

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._persistence.pop(name, None)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Hold a tensor that is not learned; `state_dict` has it when it is persistent."""
        self._check_name(name)
        setattr(self, name, tensor)
        self._persistence[name] = persistent

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Set a parameter; None is one that is not there."""
        self._check_name(name)
        if not isinstance(param, Parameter | None):
            raise TypeError(f"{name!r} is a parameter: it takes a Parameter, not a {type(param)}")
        setattr(self, name, param)

    def add_module(self, name: str, module: Module | None) -> None:
        """Set a module below this one."""
        self._check_name(name)
        if not isinstance(module, Module | None):
            raise TypeError(f"{name!r} is a module: it takes a Module, not a {type(module)}")
        setattr(self, name, module)

    register_module = add_module

    def _check_name(self, name: str) -> None:
        if not name or "." in name:
            raise KeyError(f"{name!r} names no attribute: names are not empty and have no dot")
        if hasattr(type(self), name):
            raise KeyError(f"{type(self).__name__} has an attribute {name!r} of another kind")

    def get_submodule(self, target: str) -> Module:
        """The module of that dotted name; this one for "". Raises AttributeError."""
        found: Any = self
        for name in target.split(".") if target else ():
            found = _held(getattr(found, name), Module, target)
        return cast("Module", found)

    def set_submodule(self, target: str, module: Module) -> None:
        """Put a module in the place of that dotted name. Raises AttributeError, ValueError."""
        parent, _, name = target.rpartition(".")
        if not name:
            raise ValueError("a module cannot take its own place; name one below it")
        setattr(self.get_submodule(parent), name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of that dotted name. Raises AttributeError."""
        parent, _, name = target.rpartition(".")
        found: Parameter = _held(getattr(self.get_submodule(parent), name), Parameter, target)
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer of that dotted name. Raises AttributeError."""
        parent, _, name = target.rpartition(".")
        module = self.get_submodule(parent)
        if name not in module._persistence:
            raise AttributeError(f"{target!r} is no buffer")
        found: Tensor = _held(getattr(module, name), Tensor, target)
        return found

    # the tree

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules right below, in the order in which they were set."""
        return ((k, v) for k, v in list(vars(self).items()) if isinstance(v, Module))

    def children(self) -> Iterator[Module]:
        return (m for _, m in self.named_children())

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once, with dotted names; none that is in memo."""
        seen = set() if memo is None else memo
        if self in seen:
            return
        if remove_duplicate:
            seen.add(self)
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(seen, _joined(prefix, name), remove_duplicate)

    def modules(self) -> Iterator[Module]:
        return (m for _, m in self.named_modules())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters in the tree (or of this module alone), each once, with dotted names."""
        seen: set[int] = set()
        for name, value in self._named_tensors(prefix, recurse):
            if isinstance(value, Parameter) and not (remove_duplicate and id(value) in seen):
                seen.add(id(value))
                yield name, value

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """All buffers in the tree (or of this module alone) with dotted names."""
        found = self._named_tensors(prefix, recurse)
        return ((n, t) for n, t in found if not isinstance(t, Parameter))

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        return (t for _, t in self.named_buffers(recurse=recurse))

    def _named_tensors(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        for path, module in self.named_modules(prefix=prefix) if recurse else [(prefix, self)]:
            for name, value in list(vars(module).items()):
                if isinstance(value, Parameter) or (
                    isinstance(value, Tensor) and name in module._persistence
                ):
                    yield _joined(path, name), value

    # state

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """The values of all parameters and persistent buffers by dotted name; a shared one under
        every name."""
        return {name: t.detach() for name, t in self._all_named(prefix)}

    def _all_named(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        for name, value in vars(self).items():
            path = f"{prefix}{name}"
            if isinstance(value, Module):
                yield from value._all_named(f"{path}.")
            elif isinstance(value, Parameter) or (
                isinstance(value, Tensor) and self._persistence.get(name, False)
            ):
                yield path, value

    def load_state_dict(
        self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Take the values of a `state_dict`, all or (on an error) none.

        Raises CheckpointError that lists missing and unexpected names and what differs in shape.
        Values are converted to each tensor's element type, or with `assign` the tensors to theirs.
        Without `strict`, names on one side only are left alone and returned.
        """
        if not isinstance(state_dict, Mapping):
            raise CheckpointError(
                f"load_state_dict takes a dict of tensors by name, not a "
                f"{type(state_dict).__name__}"
            )
        state, own = state_dict, dict(self._all_named())
        missing = [n for n in own if n not in state]
        unexpected = [n for n in state if n not in own]
        problems = [f"missing: {n}" for n in missing if strict]
        problems += [f"unexpected: {n}" for n in unexpected if strict]
        shared = [n for n in own if n in state]
        given: dict[str, Any] = {n: state[n] for n in shared}
        problems += [
            f"{n}: the model has {text(own[n].node)}, the state {_told(x)}"
            for n, x in given.items()
            if not isinstance(x, Tensor) or own[n].shape != x.shape
        ]
        if problems:
            raise CheckpointError(
                f"the state does not fit {type(self).__name__}:\n  " + "\n  ".join(problems)
            )
        kept = state if assign else own
        values = {n: state[n].to(kept[n].device).to(kept[n].dtype) for n in shared}
        for name, value in values.items():
            if assign:
                _convert(own[name], value.device, value.dtype)
            rebind(own[name], value.node)
        return IncompatibleKeys(missing, unexpected)

    # changes to the whole tree

    def train(self, mode: bool = True) -> Self:
        """Put this module and all below into training mode (or evaluation)."""
        for m in self.modules():
            m.training = mode
        return self

    def eval(self) -> Self:
        """Put this module and all below into evaluation mode."""
        return self.train(False)

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Call a function with every module, inner ones first."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    @overload
    def to(
        self,
        device: str | None = None,
        dtype: DType | None = None,
        non_blocking: bool = False,
    ) -> Self: ...
    @overload
    def to(self, dtype: DType, non_blocking: bool = False) -> Self: ...
    @overload
    def to(self, tensor: Tensor, non_blocking: bool = False) -> Self: ...

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move all parameters and buffers to a device, and convert the float ones to an element
        type, given as for `Tensor.to`."""
        device, dtype = destination(*args, **kwargs)
        if dtype is not None and not dtype.is_float:
            raise TypeError(f"a module is converted to float types only, not to {dtype.numpy}")
        for _, t in self._named_tensors():
            _convert(t, device or t.device, dtype if dtype and t.dtype.is_float else t.dtype)
        return self

    def cpu(self) -> Self:
        """On the host's processor, "cpu:0"."""
        return self.to("cpu:0")

    def type(self, dst_type: DType) -> Self:
        return self.to(dst_type)

    def float(self) -> Self:
        return self.to(DType.F32)

    def double(self) -> Self:
        return self.to(DType.F64)

    def half(self) -> Self:
        return self.to(DType.F16)

    def bfloat16(self) -> Self:
        return self.to(DType.BF16)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Learn the parameters from now on, or hold them fixed."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or make them 0."""
        for p in self.parameters():
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad.zero_()

    # hooks

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call hook(module, args) before each forward; what it returns, if it does, takes the
        arguments' place. With with_kwargs hook(module, args, kwargs), which returns both."""
        return self._hooks.add("before", hook, prepend, with_kwargs)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call hook(module, args, output) after each forward; what it returns, if it does, takes
        the output's place. With with_kwargs hook(module, args, kwargs, output)."""
        return self._hooks.add("after", hook, prepend, with_kwargs)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call hook(module, grad_input, grad_output) in each backward with the gradients by the
        arguments and the results; what it returns, if it does, takes grad_input's place."""
        return self._hooks.add("backward", hook, prepend, False)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: values are computed by compiled plans anyway, and `jit` captures a whole
        step."""

    def extra_repr(self) -> str:
        """What a subclass shows of its settings."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({n}): " + repr(c).replace("\n", "\n  ") for n, c in self.named_children()]
        inside = [self.extra_repr()] * bool(self.extra_repr()) + lines
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        return f"{type(self).__name__}(\n  " + "\n  ".join(inside) + "\n)"


def _held(found: Any, kind: type, target: str) -> Any:
    if isinstance(found, kind):
        return found
    raise AttributeError(f"{target!r} leads to a {type(found).__name__}, not a {kind.__name__}")


def _told(given: Any) -> str:
    """What a state has where a tensor belongs."""
    return text(given.node) if isinstance(given, Tensor) else f"a {type(given).__name__}"


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _convert(t: Tensor, device: str, dtype: DType) -> None:
    """Convert a tensor in place."""
    if (device, dtype) == (t.device, t.dtype):
        return
    if isinstance(t, UninitializedParameter):
        t.device, t.kind = device, dtype
        return
    if t.serial in homes:
        raise TensorError(
            "an optimizer holds these parameters; convert or move the model before the "
            "optimizer is made\n"
            f"  called at {where_called()}"
        )
    new = t.detach().to(device).to(dtype)
    leave(t)
    rebind(t, new.node)
    t.device, t.grad = new.device, None
