"""The relay: one small pluggy manager that holds an implementation and the wrappers around it.

It answers two questions: is the implementation complete, and what is called for each hook. A hook
without a wrapper is the implementation's own function; pluggy stands between caller and device only
where a wrapper is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pluggy

from hal.core.errors import InvalidCall, PluginError
from hal.core.kinds import shown
from hal.core.spec import PROJECT, hooks

Hook = Callable[..., Any]
_POINTS = frozenset({"waits", "points"})


def relay(
    spec: type, implementation: object, name: str, wrappers: Sequence[object] = ()
) -> pluggy.PluginManager:
    """Register an implementation of `spec` under `name`, and wrappers around it, the first one
    outermost.

    Raises PluginError when the implementation has a hook or parameter that the spec lacks,
    InvalidCall when a wrapper has a hook that is not a wrapper.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(spec)
    _register(manager, implementation, name)
    for position in reversed(range(len(wrappers))):
        # pluggy runs the wrapper that was registered last first.
        _register(
            manager, wrappers[position], f"wrapper {position}: {type(wrappers[position]).__name__}"
        )
    for hook, caller in vars(manager.hook).items():
        for impl in caller.get_hookimpls():
            if impl.plugin_name != name and not (impl.wrapper or impl.hookwrapper):
                raise InvalidCall(
                    f"{impl.plugin_name}.{hook} is not a wrapper; mark it @hookimpl(wrapper=True)"
                )
    return manager


def check_complete(
    manager: pluggy.PluginManager, spec: type, name: str, needed: Collection[str]
) -> None:
    """Raise PluginError unless `name` implements every needed hook and gets every argument."""
    if missing := [
        hook for hook in hooks(spec) if hook in needed and _own(manager, name, hook) is None
    ]:
        raise PluginError(
            f"{name} lacks the hooks {', '.join(missing)} of {spec.__name__}; "
            f"mark each with @hal.hookimpl"
        )
    for hook in hooks(spec):
        impl = _own(manager, name, hook)
        if impl and (defaults := set(impl.kwargnames) & set(_parameters(manager, hook))):
            # pluggy passes only parameters without a default: the hook would never see it.
            raise PluginError(
                f"{name}.{hook} has a default for {', '.join(sorted(defaults))}; remove it"
            )


def bound(manager: pluggy.PluginManager, name: str, hook: str) -> Hook:
    """What to call for a hook: the implementation's function, or pluggy where a wrapper is."""
    parameters = _parameters(manager, hook)
    impl = _own(manager, name, hook)
    alone = len(manager.hook.__dict__[hook].get_hookimpls()) == 1
    if impl is not None and alone and impl.argnames == parameters:
        function: Hook = impl.function
        return function
    # pluggy takes keyword arguments only; callers of a device pass either. Points to wait for come
    # to the wrappers as a list of this call, to which they may add.
    call = manager.hook.__dict__[hook]
    expected = frozenset(parameters)
    points = tuple(expected & _POINTS)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        values = dict(zip(parameters, args, strict=False))
        count = len(args) + len(kwargs)
        if count != len(expected) or (kwargs and values.keys() | kwargs.keys() != expected):
            raise TypeError(f"{hook} takes {', '.join(parameters) or 'no arguments'}")
        values |= kwargs
        for name in points:
            if not isinstance(values[name], Sequence):
                raise InvalidCall(
                    f"{hook}: {name} must be a list of points, is {shown(values[name])}"
                )
            values[name] = list(values[name])
        return call(**values)

    wrapped.__name__ = wrapped.__qualname__ = hook
    return wrapped


def heard(manager: pluggy.PluginManager, hook: str) -> bool:
    """Whether anybody implements or wraps the hook."""
    return bool(manager.hook.__dict__[hook].get_hookimpls())


def _register(manager: pluggy.PluginManager, plugin: object, name: str) -> None:
    try:
        manager.register(plugin, name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"{name} does not fit the hook specification: {error}") from error


def _own(manager: pluggy.PluginManager, name: str, hook: str) -> pluggy.HookImpl | None:
    impls = manager.hook.__dict__[hook].get_hookimpls()
    return next((impl for impl in impls if impl.plugin_name == name), None)


def _parameters(manager: pluggy.PluginManager, hook: str) -> tuple[str, ...]:
    parameters: tuple[str, ...] = manager.hook.__dict__[hook].spec.argnames
    return parameters
