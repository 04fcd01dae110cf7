"""The handle of an opened device: every hook of `DeviceSpec`, bound once, as an attribute."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from hal.core.description import DeviceInfo
from hal.core.description_checks import checked_info
from hal.core.errors import InvalidCall, PluginError, StaleHandle, Unsupported
from hal.core.relay import Hook, bound, check_complete, heard, relay
from hal.core.spec import MANDATORY_DEVICE, NOTICES, OPTIONAL, DeviceSpec, hooks

_BOUND = tuple(hook for hook in hooks(DeviceSpec) if hook != "close")

if TYPE_CHECKING:
    # For the type checker the bound attributes are the spec's methods, with their signatures.
    _Hooks = DeviceSpec
else:

    class _Hooks:
        """One slot per hook: a call is one attribute read away from the implementation."""

        __slots__ = _BOUND


class Device(_Hooks):
    """An open device. Its hooks are the implementation's own methods where no wrapper is on them.

    `info` is what `describe()` says, `name` its name. An optional hook whose feature is not in
    `info.features` raises `Unsupported`. Use it as a context manager, or call `close`. A device
    belongs to the process that opened it: in a forked child every hook raises `StaleHandle`, and it
    cannot be pickled. So it does when the interpreter ends, after all exit handlers that were
    registered since `import hal`: the threads of a plugin do not run any more then, and a wait
    would not end. `ended` is the sentence of that error, "" before.
    """

    __slots__ = ("__weakref__", "_close", "_relay", "ended", "info", "name")

    def __init__(self, implementation: object, name: str, wrappers: Sequence[Wrapper] = ()) -> None:
        """Bind an implementation; `wrappers` go around it, the first one outermost.

        Raises PluginError when the implementation is incomplete or describes another device.
        """
        # A wrapper gets the device as it is without wrappers: its facts, and hooks to call itself.
        around = [wrap(Device(implementation, name)) for wrap in wrappers]
        self.name, self.ended = name, ""
        self._relay = relay(DeviceSpec, implementation, name, around)
        check_complete(self._relay, DeviceSpec, name, MANDATORY_DEVICE)
        self.info: DeviceInfo = checked_info(name, bound(self._relay, name, "describe")())
        if self.info.name != self.name:
            raise PluginError(f"{self.name} describes itself as {self.info.name!r}")
        declared = {hook for hook, feature in OPTIONAL.items() if feature in self.info.features}
        check_complete(self._relay, DeviceSpec, self.name, declared)
        for hook in _BOUND:
            feature = OPTIONAL.get(hook)
            if hook in NOTICES:
                is_heard = heard(self._relay, hook)
                binding = bound(self._relay, self.name, hook) if is_heard else lambda *a, **k: None
            elif feature is None or feature in self.info.features:
                binding = bound(self._relay, self.name, hook)
            else:
                features = ", ".join(sorted(f.value for f in self.info.features)) or "none"
                text = f"{self.name} does not declare the feature {feature.value!r} of {hook}"
                binding = _raising(Unsupported, f"{text}; its features: {features}")
            setattr(self, hook, binding)
        self._close: Hook | None = bound(self._relay, name, "close")
        _OPEN.add(self)

    def close(self) -> None:
        """End the session; a second call does nothing. See `DeviceSpec.close`."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Device {self.name}{'' if self._close else ' closed'}>"

    def __reduce__(self) -> NoReturn:
        raise InvalidCall(
            f"{self.name} cannot be pickled or copied; open it in the process that uses it"
        )


Wrapper = Callable[[Device], object]
"""Makes, for one device, a pluggy plugin whose hooks are all marked `hookimpl(wrapper=True)`.

`waits` and `points` come to such a hook as a list of this call alone. What the hook adds before its
`yield` the device waits for too.
"""

_OPEN: weakref.WeakSet[Device] = weakref.WeakSet()


def _raising(error: type[Exception], text: str) -> Hook:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise error(text)

    return refuse


def _abandon_all(why: str) -> None:
    for device in list(_OPEN):
        # Let every hook refuse, and `close` do nothing.
        device.ended = f"{device.name} {why}"
        for hook in _BOUND:
            setattr(device, hook, _raising(StaleHandle, device.ended))
        device._close = None


_FORKED = "was opened by the parent of this process; open it again here"
_EXITED = (
    "has ended, as this process does; exit handlers can use a device if they are registered after "
    "`import hal`"
)
os.register_at_fork(after_in_child=lambda: _abandon_all(_FORKED))
atexit.register(_abandon_all, _EXITED)
