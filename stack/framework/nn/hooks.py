"""What a module calls before and after its forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stack.framework.autograd import Function
from stack.framework.removable import RemovableHandle
from stack.framework.tensor import Tensor


class Hooks:
    """The hooks of one module, in the order in which they are called."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Callable[..., Any], bool]] = {}
        self._after: dict[int, tuple[Callable[..., Any], bool]] = {}
        self._backward: dict[int, tuple[Callable[..., Any], bool]] = {}

    @property
    def empty(self) -> bool:
        return not (self._before or self._after or self._backward)

    def add(
        self, when: str, hook: Callable[..., Any], prepend: bool, with_kwargs: bool
    ) -> RemovableHandle:
        """Call the hook "before" or "after" forward, or in "backward", after the others or before
        them."""
        every = {"before": self._before, "after": self._after, "backward": self._backward}
        hooks = every[when]
        handle = RemovableHandle(hooks)
        others = dict(hooks) if prepend else {}
        if prepend:
            hooks.clear()
        hooks[handle.id] = hook, with_kwargs
        hooks.update(others)
        return handle

    def around(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """module.forward(*args, **kwargs) between the hooks."""
        for hook, with_kwargs in list(self._before.values()):
            if with_kwargs:
                both = hook(module, args, kwargs)
                args, kwargs = (args, kwargs) if both is None else both
            else:
                found = hook(module, args)
                if found is not None:
                    args = found if isinstance(found, tuple) else (found,)
        passed = Passed(module, self._backward) if self._backward else None
        args = args if passed is None else passed.begin(args)
        result = module.forward(*args, **kwargs)
        result = result if passed is None else passed.end(result)
        for hook, with_kwargs in list(self._after.values()):
            found = hook(module, args, *[kwargs] * with_kwargs, result)
            result = result if found is None else found
        return result


class Passed:
    """One call of a module, through whose gradients its hooks look: those by its results come
    first, those by its arguments last."""

    def __init__(self, module: Any, hooks: dict[int, tuple[Callable[..., Any], bool]]) -> None:
        self._module, self._hooks = module, hooks
        self._outputs: tuple[Any, ...] = ()
        self._leads = False

    def begin(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The module's arguments, of which the tensors have gradients that go by here."""
        at = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad]
        self._leads = bool(at)
        seen = list(args)
        for i, t in zip(at, _Seen.apply(self._by_inputs, *(args[i] for i in at)), strict=True):
            seen[i] = t
        return tuple(seen)

    def end(self, result: Any) -> Any:
        """The module's result, of which the tensors have gradients that go by here."""
        several = isinstance(result, tuple | list)
        parts = list(result) if several else [result]
        at = [i for i, t in enumerate(parts) if isinstance(t, Tensor) and t.requires_grad]
        for i, t in zip(at, _Seen.apply(self._by_outputs, *(parts[i] for i in at)), strict=True):
            parts[i] = t
        return type(result)(parts) if several else parts[0]

    def _by_outputs(self, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        self._outputs = gradients
        if not self._leads:
            self._by_inputs((None,))
        return gradients

    def _by_inputs(self, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook, _ in list(self._hooks.values()):
            found = hook(self._module, gradients, self._outputs)
            if found is not None:
                gradients = found if isinstance(found, tuple) else (found,)
        return gradients


class _Seen(Function):
    """The tensors themselves, whose gradients become what `look` makes of them together."""

    @staticmethod
    def forward(ctx: Any, look: Callable[..., Any], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.look = look
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return None, *ctx.look(gradients)
