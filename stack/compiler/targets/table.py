"""The targets of the compiler, one row each."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from hal.core.description import DeviceInfo, SpaceKind
from hal.core.values import ATHREAD_C, CUDA_C, HAL_TILE, LLVM_IR, OPENCL_C, Grid
from hal.tile.build import Builder, binary, index, unary
from hal.tile.node import Node
from hal.tile.size import is_fixed
from stack.compiler.lower import mesh, scratchpad, simt
from stack.compiler.targets.target import Target
from stack.compiler.templates import (
    attention,
    few_rows,
    few_rows_across,
    group_attention,
    group_matmul_costs,
    matmul_costs,
)
from stack.compiler.templates.blocking import Blocks, choose_blocks
from stack.compiler.templates.family import ProductTemplate, Search, Templates
from stack.compiler.templates.few_rows_frame import MOST
from stack.compiler.templates.group_matmul import group_matmul
from stack.compiler.templates.matmul import matmul
from stack.compiler.templates.mesh_attention import emit_attention
from stack.compiler.templates.mesh_matmul import mesh_matmul
from stack.compiler.templates.product import Product
from stack.compiler.templates.schedule import Block, LoopSizes, LoopStyle
from stack.compiler.text import c, llvm, tile
from stack.compiler.units import units_of, units_of_groups


def _vector_lanes(info: DeviceInfo, nbytes: int) -> int:
    """As many elements as fit into a vector register."""
    return max(1, info.limits.vector_nbytes // nbytes)


def _has_dma(info: DeviceInfo) -> bool:
    space = info.space(SpaceKind.SCRATCHPAD)
    return space is not None and space.dma_only


def _by_vectors(b: Builder, p: Product, info: DeviceInfo, blocks: Blocks | None) -> Grid:
    """A product of few rows without packing, if no blocks were found for it. Where their number is
    data, both ways are written, over the same columns."""
    down = p.shape.b_contiguous == "k"
    unpacked = few_rows.few_rows if down else few_rows_across.few_rows_across
    if blocks is None and few_rows.suits(p, info):
        return unpacked(b, p, info)
    if is_fixed(p.shape.m):
        return matmul(b, p, info, blocks)
    blocks = blocks or choose_blocks(p.shape.hinted(), info)
    if not few_rows.may_suit(p, blocks, info):
        return matmul(b, p, info, blocks)
    few = binary("le", index(p.shape.m), MOST)
    with b.when(few):
        unpacked(b, p, info, blocks.np)
    with b.when(unary("not", few)):
        return matmul(b, p, info, blocks)


_PACKED = ProductTemplate(matmul, Search(Blocks, matmul_costs.rules_cost, matmul_costs.costs))


def _panels(n: Node, info: DeviceInfo) -> int:
    """As wide as register tiles are, where the operands are multiplied in the type of the sums."""
    total = n.dtype.computed_in
    plain = all(s.dtype is total for s in n.srcs)
    return 2 * _vector_lanes(info, total.nbytes) if plain else 0


_FOR_UNITS = replace(
    _PACKED,
    emit=_by_vectors,
    units=units_of,
    packed=lambda m, k: not few_rows.are_few(m, k),
    across=few_rows_across.across,
    uneven_rows=True,
    panels=_panels,
)
_BY_GROUPS = ProductTemplate(
    group_matmul,
    Search(Block, group_matmul_costs.rules_cost, group_matmul_costs.costs),
    units_of_groups,
)
_BY_TRANSFERS = LoopStyle(
    _vector_lanes, LoopSizes(rows_on_grid=1 << 20, chunk=1 << 10), transfers=True
)
"""The lowering makes one transfer for many instances of a core: they may be small, and all cores
have some."""

SIMT = Target(
    "groups of lanes",
    lambda info: info.limits.lanes > 1,
    # A device wants many groups at once.
    Templates(
        _BY_GROUPS,
        LoopStyle(
            lambda info, nbytes: info.limits.lanes, LoopSizes(rows_on_grid=1 << 16, chunk=1 << 11)
        ),
        group_attention.emit_attention,
        group_attention.suits,
        sizes=True,
    ),
    {CUDA_C: simt.render_cuda, OPENCL_C: simt.render_opencl, HAL_TILE: tile.render},
)
MESH = Target(
    "cores that pass tiles along a mesh",
    lambda info: prod(info.limits.mesh) > 1,
    Templates(ProductTemplate(mesh_matmul), _BY_TRANSFERS, emit_attention),
    {ATHREAD_C: mesh.render_athread, HAL_TILE: tile.render},
)
SCRATCHPAD = Target(
    "cores with scratchpads",
    _has_dma,
    Templates(_PACKED, _BY_TRANSFERS),
    {ATHREAD_C: scratchpad.render_athread, HAL_TILE: tile.render},
)
SIMD = Target(
    "cores with vector registers",
    lambda info: True,
    Templates(
        _FOR_UNITS,
        LoopStyle(_vector_lanes, LoopSizes(), squares=True, shares=True),
        attention.emit_attention,
        gradients=True,
        sizes=True,
    ),
    {LLVM_IR: llvm.render, OPENCL_C: c.render_opencl, HAL_TILE: tile.render},
)

TARGETS = (SIMT, MESH, SCRATCHPAD, SIMD)
"""The first that matches is a device's."""


def choose(info: DeviceInfo) -> Target:
    """The target that a device is."""
    return next(target for target in TARGETS if target.matches(info))
