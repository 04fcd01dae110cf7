"""Checks of recorded commands and of the slots that they leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hal.core.errors import InvalidCall
from hal.core.kinds import shown
from hal.core.values import (
    Argument,
    Buffer,
    Command,
    CopyCommand,
    FillCommand,
    Grid,
    Launchable,
    LaunchCommand,
    Param,
    Slot,
)
from hal.core.wrappers.checks import (
    check_after,
    check_copy,
    check_count,
    check_grid,
    check_list,
    check_pattern,
    check_region,
)
from hal.core.wrappers.handles import Handles

SlotParams = tuple[tuple[int, Param], ...]
"""The slots that a launchable or graph leaves open: slot index and the parameter that it fills."""


def slot_params(where: str, params: Sequence[Param], args: Sequence[Argument]) -> SlotParams:
    """The slots among a program's arguments. Raises InvalidCall for an index that is
    no count."""
    slots = tuple(
        (arg.index, param) for param, arg in zip(params, args, strict=True) if isinstance(arg, Slot)
    )
    for index, _ in slots:
        check_count(where, "a slot", index)
    return slots


def check_commands(
    where: str,
    commands: Sequence[Command],
    handles: Handles,
    slots: Mapping[int, SlotParams],
    grid: Grid,
) -> SlotParams:
    """Check each command as the call that it stands for; gives the graph's slots."""
    check_list(where, "commands", commands)
    for index, command in enumerate(commands):
        at = f"{where}, command {index}"
        if not isinstance(command, Command):
            raise InvalidCall(f"{at} must be a launch, copy or fill, is {shown(command)}")
        check_after(at, command.after, index)
        match command:
            case LaunchCommand():
                handles.check(at, command.launchable, Launchable)
                check_grid(at, command.grid, grid)
            case CopyCommand():
                check_region(at, command.dst)
                check_region(at, command.src)
                handles.check(at, command.dst.buffer, Buffer)
                handles.check(at, command.src.buffer, Buffer)
                check_copy(at, command.dst, command.src)
            case FillCommand():
                check_region(at, command.dst)
                handles.check(at, command.dst.buffer, Buffer)
                check_pattern(at, command.dst, command.pattern)
    launches = (c.launchable for c in commands if isinstance(c, LaunchCommand))
    return tuple(slot for launchable in launches for slot in slots.get(id(launchable), ()))
