"""The blocks that a matmul on groups of lanes may have, and a model of what each costs."""

from __future__ import annotations

from collections.abc import Mapping

from hal.core.description import DeviceInfo
from stack.compiler.templates.blocking import MatmulShape
from stack.compiler.templates.group_matmul import (
    choose_block,
    estimated_time,
    fitting_blocks,
)
from stack.compiler.templates.schedule import Block, Schedule

DEPTHS = (4, 8, 16, 32)
BARRIER = 0.5
"""The share of a block's time that the barriers of a step take, where a step is one deep."""


def costs(shape: MatmulShape, info: DeviceInfo) -> Mapping[Schedule, float]:
    """Every candidate with its cost; the rules' choice comes first."""
    found = [choose_block(shape, info)]
    for depth in DEPTHS:
        if depth < 2 * max(1, shape.k):
            found += fitting_blocks(shape, info, depth)
    return {block: cost(shape, info, block) for block in found}


def cost(shape: MatmulShape, info: DeviceInfo, block: Block) -> float:
    """The time of the whole grid in multiply-adds of a lane, as the rules estimate it, and that of
    waiting at barriers."""
    time, _ = estimated_time(shape, info, block)
    return time * shape.k * (1 + BARRIER / block.depth) / info.limits.lanes


def rules_cost(shape: MatmulShape, info: DeviceInfo) -> float:
    """What the rules' own choice costs."""
    return cost(shape, info, choose_block(shape, info))
