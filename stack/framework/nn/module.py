"""The base of layers: a tree of modules that hold parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from hal.core.dtypes import DType
from stack.framework import mode
from stack.framework.cell import rebind
from stack.framework.errors import CheckpointError, TensorError, where_called
from stack.framework.expr.operand import text
from stack.framework.flat import homes
from stack.framework.tensor import Tensor


class Parameter(Tensor):
    """A tensor that a module learns. It takes the values of `data`, not its history."""

    __slots__ = ()

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        super().__init__(data.node, data.device)
        rebind(self, data.node)
        self.requires_grad_(requires_grad)


class Module:
    """A layer. Subclasses set parameters, buffers and modules as attributes and define `forward`.

    `training` tells layers such as dropout what to do; change it with `train` and `eval`.
    """

    def __init__(self) -> None:
        self.training = True
        self._buffers: dict[str, bool] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def register_buffer(self, name: str, tensor: Tensor, persistent: bool = True) -> None:
        """Hold a tensor that is not learned; `state_dict` has it when it is persistent."""
        self._buffers[name] = persistent
        setattr(self, name, tensor)

    # the tree

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules right below, in the order in which they were set."""
        return ((k, v) for k, v in vars(self).items() if isinstance(v, Module))

    def children(self) -> Iterator[Module]:
        return (m for _, m in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once, with dotted names."""
        seen: set[Module] = set()
        return self._walk(prefix, seen)

    def _walk(self, prefix: str, seen: set[Module]) -> Iterator[tuple[str, Module]]:
        if self in seen:
            return
        seen.add(self)
        yield prefix, self
        for name, child in self.named_children():
            yield from child._walk(f"{prefix}.{name}" if prefix else name, seen)

    def modules(self) -> Iterator[Module]:
        return (m for _, m in self.named_modules())

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """All parameters in the tree, each once, with dotted names."""
        seen: set[int] = set()
        for name, value in self._named_tensors():
            if isinstance(value, Parameter) and id(value) not in seen:
                seen.add(id(value))
                yield name, value

    def parameters(self) -> Iterator[Parameter]:
        return (p for _, p in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """All buffers in the tree with dotted names."""
        return ((n, t) for n, t in self._named_tensors() if not isinstance(t, Parameter))

    def buffers(self) -> Iterator[Tensor]:
        return (t for _, t in self.named_buffers())

    def _named_tensors(self, persistent: bool = False) -> Iterator[tuple[str, Tensor]]:
        for path, module in self.named_modules():
            for name, value in vars(module).items():
                is_buffer = name in module._buffers and (module._buffers[name] or not persistent)
                if isinstance(value, Parameter) or (is_buffer and isinstance(value, Tensor)):
                    yield f"{path}.{name}" if path else name, value

    # state

    def state_dict(self) -> dict[str, Tensor]:
        """The values of all parameters and persistent buffers by dotted name; a shared one under
        every name."""
        return {name: t.detach() for name, t in self._all_named()}

    def _all_named(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        for name, value in vars(self).items():
            path = f"{prefix}{name}"
            if isinstance(value, Module):
                yield from value._all_named(f"{path}.")
            elif isinstance(value, Parameter) or (
                isinstance(value, Tensor) and self._buffers.get(name, False)
            ):
                yield path, value

    def load_state_dict(self, state: Mapping[str, Tensor], strict: bool = True) -> None:
        """Take the values of a `state_dict`, all or (on an error) none.

        Raises CheckpointError that lists missing and unexpected names and what differs in shape.
        Values are converted to each tensor's element type. Without `strict`, names on one side only
        are left alone.
        """
        own = dict(self._all_named())
        problems = [f"missing: {n}" for n in own if n not in state and strict]
        problems += [f"unexpected: {n}" for n in state if n not in own and strict]
        shared = [n for n in own if n in state]
        problems += [
            f"{n}: the model has {text(own[n].node)}, the state {text(state[n].node)}"
            for n in shared
            if own[n].shape != state[n].shape
        ]
        if problems:
            raise CheckpointError(
                f"the state does not fit {type(self).__name__}:\n  " + "\n  ".join(problems)
            )
        for name in shared:
            value = state[name].to(own[name].device).to(own[name].dtype)
            rebind(own[name], value.node)

    # changes to the whole tree

    def train(self, mode_: bool = True) -> Self:
        """Put this module and all below into training mode (or evaluation)."""
        for m in self.modules():
            m.training = mode_
            (mode.evaluating.discard if mode_ else mode.evaluating.add)(m)
        return self

    def eval(self) -> Self:
        """Put this module and all below into evaluation mode."""
        return self.train(False)

    def apply(self, function: Callable[[Module], object]) -> Self:
        """Call a function with every module, inner ones first."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    def to(self, target: DType | str) -> Self:
        """Convert float parameters and buffers to an element type, or move all to a device."""
        for _, t in self._named_tensors():
            _convert(t, target)
        return self

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

    def extra_repr(self) -> str:
        """What a subclass shows of its settings."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({n}): " + repr(c).replace("\n", "\n  ") for n, c in self.named_children()]
        inside = [self.extra_repr()] * bool(self.extra_repr()) + lines
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        return f"{type(self).__name__}(\n  " + "\n  ".join(inside) + "\n)"


def _convert(t: Tensor, target: DType | str) -> None:
    """Convert a tensor in place."""
    if isinstance(target, DType) and not (t.dtype.is_float and target.is_float):
        return
    if t.serial in homes and target not in (t.dtype, t.device):
        raise TensorError(
            "an optimizer holds these parameters; convert or move the model before the "
            "optimizer is made\n"
            f"  called at {where_called()}"
        )
    new = t.detach().to(target)
    rebind(t, new.node)
    t.device, t.grad = new.device, None
