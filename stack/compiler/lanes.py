"""How many elements a program instance computes in step."""

from __future__ import annotations

from hal.core.description import DeviceInfo, SpaceKind


def in_groups(info: DeviceInfo) -> bool:
    """Whether a group of lanes runs an instance, so that tiles are shared out among them, and not
    one core with vector registers."""
    return info.limits.lanes > 1


def by_transfers(info: DeviceInfo) -> bool:
    """Whether cores compute on scratchpads that DMA fills, for which neighbouring instances are
    merged."""
    space = info.space(SpaceKind.SCRATCHPAD)
    return space is not None and space.dma_only and not in_groups(info)


def lanes_for(info: DeviceInfo, nbytes: int) -> int:
    """Elements of so many bytes that are computed in step: one by each lane of a group, or as many
    as fit into a vector register."""
    if in_groups(info):
        return info.limits.lanes
    return max(1, info.limits.vector_nbytes // nbytes)
