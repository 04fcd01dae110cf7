"""What a module calls before and after its forward."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

_numbers = count()


class RemovableHandle:
    """A hook's registration; as a context manager it ends with its block."""

    def __init__(self, hooks: dict[int, Any]) -> None:
        self.id = next(_numbers)
        self._hooks = hooks

    def remove(self) -> None:
        """Call the hook no more."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class Hooks:
    """The hooks of one module, in the order in which they are called."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Callable[..., Any], bool]] = {}
        self._after: dict[int, tuple[Callable[..., Any], bool]] = {}

    @property
    def empty(self) -> bool:
        return not (self._before or self._after)

    def add(
        self, when: str, hook: Callable[..., Any], prepend: bool, with_kwargs: bool
    ) -> RemovableHandle:
        """Call the hook "before" or "after" forward, after the others or before them."""
        hooks = {"before": self._before, "after": self._after}[when]
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
        result = module.forward(*args, **kwargs)
        for hook, with_kwargs in list(self._after.values()):
            found = hook(module, args, *[kwargs] * with_kwargs, result)
            result = result if found is None else found
        return result
