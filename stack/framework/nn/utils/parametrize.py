"""Parameters that are functions of others: `module.weight` is computed from what is learned at each
use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from stack.framework.modes import no_grad
from stack.framework.nn.containers import ModuleDict, ModuleList
from stack.framework.nn.module import Module, Parameter
from stack.framework.tensor import Tensor

_cache: list[dict[tuple[int, str], Tensor]] = []
"""Within `cached`: what was computed, by module and name."""


@contextmanager
def cached() -> Iterator[None]:
    """Within the block each parametrized tensor is computed once."""
    _cache.append({})
    try:
        yield
    finally:
        _cache.pop()


class ParametrizationList(ModuleList):
    """The functions of one tensor, in the order in which they are applied, and what the first one
    is of: `original`, or `original0`, `original1`, ... where it takes several."""

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        super().__init__(modules)
        self.unsafe = unsafe
        given: Any = original
        with no_grad():
            for module in reversed(modules):
                if hasattr(module, "right_inverse"):
                    with suppress(NotImplementedError):  # it begins with another value
                        given = module.right_inverse(given)
        self._names = ["original"]
        if isinstance(given, Sequence) and not isinstance(given, Tensor):
            self._names = [f"original{i}" for i in range(len(given))]
        parts = given if len(self._names) > 1 or self._names == ["original0"] else [given]
        for name, value in zip(self._names, parts, strict=True):
            kept = value.detach().clone() if value is not original else value
            if isinstance(original, Parameter):
                learned = Parameter(kept, original.requires_grad and kept.dtype.is_float)
                self.register_parameter(name, learned)
            else:
                self.register_buffer(name, kept)
        made = self()
        if not unsafe and (made.shape, made.dtype) != (original.shape, original.dtype):
            raise ValueError(
                f"a parametrization gives {made.dtype}{list(made.shape)} for a tensor of "
                f"{original.dtype}{list(original.shape)}; unsafe=True allows it"
            )

    def right_inverse(self, value: Tensor) -> None:
        """Set what is learned so that the functions give this value."""
        given: Any = value
        with no_grad():
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(
                        f"{type(module).__name__} has no right_inverse, so a value cannot be set"
                    )
                given = module.right_inverse(given)
            parts = given if self._names != ["original"] else [given]
            for name, part in zip(self._names, parts, strict=True):
                getattr(self, name).copy_(part)

    def forward(self) -> Tensor:
        first, *rest = self
        value: Tensor = first(*(getattr(self, name) for name in self._names))
        for module in rest:
            value = module(value)
        return value


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether the module has parametrized tensors, or this one is one."""
    found = vars(module).get("parametrizations")
    if not isinstance(found, ModuleDict):
        return False
    return len(found) > 0 if tensor_name is None else tensor_name in found


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Let a parameter or buffer be a function of what is learned in its place, or of what earlier
    parametrizations give. The module's `state_dict` has
    `parametrizations.NAME.original`, as PyTorch's. A parametrization may have a `right_inverse`, by
    which it begins with the tensor's value, and values can be set.

    Raises ValueError where shape or element type would change, unless it is `unsafe`; and where the
    module has no such tensor.
    """
    if is_parametrized(module, tensor_name):
        found: Any = vars(module)["parametrizations"][tensor_name]
        value = getattr(module, tensor_name)
        with no_grad():
            made = parametrization(value)
            if not unsafe and (made.shape, made.dtype) != (value.shape, value.dtype):
                raise ValueError("a parametrization changes shape or type; unsafe=True allows it")
            if hasattr(parametrization, "right_inverse"):
                found.append(parametrization)
                found.right_inverse(value)
                return module
        found.append(parametrization)
        return module
    named = {**dict(module.named_parameters("", False)), **dict(module.named_buffers("", False))}
    if tensor_name not in named:
        raise ValueError(f"{type(module).__name__} has no parameter or buffer {tensor_name!r}")
    original = named[tensor_name]
    made_list = ParametrizationList([parametrization], original, unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        _give_class(module)
    vars(module)["parametrizations"][tensor_name] = made_list
    setattr(type(module), tensor_name, property(_getter(tensor_name), _setter(tensor_name)))
    return module


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Make the tensor a parameter (or buffer) of its own again: with its value, or with that of
    what was learned. Raises ValueError where it is not parametrized, or where several tensors were
    learned and their own values are wanted."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"{type(module).__name__}.{tensor_name} is not parametrized")
    held: Any = vars(module)["parametrizations"]
    found = held[tensor_name]
    original = getattr(found, found._names[0])
    if not leave_parametrized and found._names != ["original"]:
        raise ValueError(
            f"{tensor_name!r} is learned as {found._names}: it has no value of its own"
        )
    value = getattr(module, tensor_name).detach().clone() if leave_parametrized else original
    delattr(type(module), tensor_name)
    del held[tensor_name]
    if isinstance(original, Parameter):
        learned = original.requires_grad
        module.register_parameter(tensor_name, Parameter(value.detach(), learned))
    else:
        module.register_buffer(tensor_name, value)
    if not len(held):
        delattr(module, "parametrizations")
        object.__setattr__(module, "__class__", type(module).__bases__[0])
    return module


def _give_class(module: Module) -> None:
    """A class of the module's own, which can have properties."""
    own = type(module)

    def refused(self: Module) -> Any:
        raise RuntimeError(
            "a module with parametrizations is saved by its state_dict; pickle knows no class of "
            "one module"
        )

    made = type(f"Parametrized{own.__name__}", (own,), {"__getstate__": refused})
    object.__setattr__(module, "__class__", made)
    module.parametrizations = ModuleDict()


def _getter(name: str) -> Any:
    def get(self: Module) -> Tensor:
        found: Any = vars(self)["parametrizations"][name]
        if not _cache:
            value: Tensor = found()
            return value
        key = id(self), name
        if key not in _cache[-1]:
            _cache[-1][key] = found()
        return _cache[-1][key]

    return get


def _setter(name: str) -> Any:
    def put(self: Module, value: Tensor) -> None:
        found: Any = vars(self)["parametrizations"][name]
        found.right_inverse(value)

    return put
