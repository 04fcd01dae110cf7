"""The contract's hooks of collectives for any device, by the stack's groups."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hal.core.description import DeviceInfo, Feature
from hal.core.device import Device
from hal.core.errors import Failure, InvalidCall, PluginError, StaleHandle
from hal.core.relay import Hook
from hal.core.spec import OPTIONAL, DeviceSpec, hookimpl, hooks
from hal.core.values import (
    AllocOptions,
    Buffer,
    Collective,
    CollectiveKind,
    Group,
    GroupSpec,
    Handle,
    Point,
    Region,
    Timeline,
    Waits,
)
from hal.core.wrappers.checks import shrunk
from stack.comm import group as ranks
from stack.comm.choose.override import ENGINE, Override
from stack.comm.device.group import DeviceGroup
from stack.comm.store import Store

FEATURES = frozenset({Feature.COLLECTIVES, Feature.GROUP_IPC})
_RULES = tuple(Override(kind, ENGINE) for kind in CollectiveKind)


class StackGroups:
    """Implements `DeviceSpec` for a device as it is, with groups that the stack makes: their
    members may be of any plugins and in any process that reaches the store.

    `store` is where members meet, and `address` where this process reaches it. Both end with the
    device.
    """

    def __init__(self, device: Device, store: Store, address: str) -> None:
        """`device` has no wrappers. Raises PluginError for a hook that lacks a parameter."""
        self._device = device
        self._store = store
        self._address = address
        self._members: list[Group] = []
        self._nothing: Buffer | None = None
        for hook in hooks(DeviceSpec):
            if not hasattr(self, hook) and OPTIONAL.get(hook) not in FEATURES:
                # A hook of a device that takes every parameter of the contract
                found: Hook = getattr(device, hook)
                feature = OPTIONAL.get(hook)
                declared = feature is None or feature in device.info.features
                if declared and hook != "without" and not hasattr(found, "hal_impl"):
                    why = "the device has wrappers, or its hook lacks a parameter of the contract"
                    raise PluginError(f"{device.name}.{hook} cannot be passed on: {why}")
                setattr(self, hook, found)

    @hookimpl
    def describe(self) -> DeviceInfo:
        info = self._device.info
        return replace(info, features=info.features | FEATURES)

    @hookimpl
    def close(self) -> None:
        for group in list(self._members):
            self._leave(group, wait=True)
        self._device.close()
        self._store.close()

    @hookimpl
    def free(self, handle: Handle) -> None:
        if isinstance(handle, Group):
            self._leave(handle, wait=False)
        else:
            self._device.free(handle)

    @hookimpl
    def reset(self) -> int:
        """The members of groups go with the epoch."""
        for group in list(self._members):
            self._leave(group, wait=False)
        self._nothing = None
        return self._device.reset()

    @hookimpl
    def create_group(self, spec: GroupSpec) -> Group:
        health = self._device.health()
        joined = ranks.Group.join(
            self._store, self._address, spec.key, spec.rank, len(spec.peers), spec.timeout_s
        )
        try:
            _check_peers(spec, joined)
            made = DeviceGroup(joined, self._device, _RULES)
        except BaseException:
            joined.close()
            raise
        found = Group(self._device.name, health.epoch, (made, spec), spec.rank, len(spec.peers))
        self._members.append(found)
        return found

    @hookimpl
    def collective(
        self,
        group: Group,
        call: Collective,
        dst: Region,
        src: Region,
        timeline: Timeline,
        waits: Waits,
    ) -> Point:
        """Between two operations of the timeline that do nothing but keep its order."""
        made = self._member(group, "collective")
        made.check(call, dst, src)  # before anything is submitted
        before = self._mark(timeline, waits)
        return self._mark(timeline, (made.start(call, dst, src, (before,)),))

    @hookimpl
    def abort(self, group: Group, cause: Failure) -> None:
        self._member(group, "abort").abort(cause)

    @hookimpl
    def async_error(self, group: Group) -> Failure | None:
        return self._member(group, "async_error").failure

    @hookimpl
    def shrink(self, group: Group, ranks: Sequence[int]) -> Group:
        self._member(group, "shrink")
        spec: GroupSpec = group.native[1]
        return self.create_group(shrunk(f"{self._device.name}.shrink", spec, ranks))

    def _mark(self, timeline: Timeline, waits: Waits) -> Point:
        if self._nothing is None:
            self._nothing = self._device.alloc(0, AllocOptions())
        return self._device.fill(self._nothing.region(), b"\0", timeline, waits)

    def _member(self, group: Group, hook: str) -> DeviceGroup:
        if group not in self._members:
            text = "the group was freed, or its epoch or device has ended; create another one"
            raise StaleHandle(f"{self._device.name}.{hook}: {text}")
        made: DeviceGroup = group.native[0]
        return made

    def _leave(self, group: Group, wait: bool) -> None:
        made = self._member(group, "free")
        self._members.remove(group)
        if wait:
            made.close()
            made.group.close()
        else:
            made.leave(made.group.close)


def _check_peers(spec: GroupSpec, group: ranks.Group) -> None:
    """All members name the same peers; else all of them raise InvalidCall."""
    digest = zlib.crc32(repr(spec.peers).encode())
    told = group.all_gather(np.array([digest])).ravel()
    if differing := np.flatnonzero(told != told[0]).tolist():
        text = f"ranks {differing} name other peers than rank 0; here they are {spec.peers}"
        raise InvalidCall(f"group {spec.key!r}: {text}")
