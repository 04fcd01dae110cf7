"""A tile kernel as C text: a group of lanes for each program instance."""

from __future__ import annotations

from functools import partial

from hal.core.description import DeviceInfo, SpaceKind
from hal.core.values import KernelSource
from hal.tile.kernel import Kernel
from hal.tile.node import Node
from hal.tile.walk import accesses, statements
from stack.compiler.lower.simt.contraction import reduce, scan
from stack.compiler.lower.simt.dialect import CUDA_GROUPS, OPENCL_GROUPS, SimtDialect
from stack.compiler.lower.simt.fence import Fence
from stack.compiler.lower.simt.group import GroupText
from stack.compiler.lower.simt.mapping import Mapping, group_size, map_kernel
from stack.compiler.lower.simt.pipeline import STAGES
from stack.compiler.lower.simt.product import dot
from stack.compiler.lower.simt.statements import block
from stack.compiler.lower.simt.wide import fitting
from stack.compiler.text.c.render import arguments, headed, parameter
from stack.compiler.text.c.scope import Scope
from stack.compiler.text.c.writer import CWriter
from stack.compiler.text.primitive import computed_in
from stack.compiler.units import unit_of_group_dot


def render_opencl(kernel: Kernel, info: DeviceInfo) -> KernelSource:
    """The kernel as OpenCL C, program format opencl-c/1 with the option `lanes`."""
    return _render(kernel, OPENCL_GROUPS, info)


def render_cuda(kernel: Kernel, info: DeviceInfo) -> KernelSource:
    """The kernel in program format `CUDA_C`, with the option `lanes`, and with `scratch` where it
    has more of it than a text declares."""
    return _render(kernel, CUDA_GROUPS, info)


def _render(kernel: Kernel, groups: SimtDialect, info: DeviceInfo) -> KernelSource:
    def is_kept(n: Node) -> bool:
        unit = unit_of_group_dot(n, info)
        return unit is not None and unit.call in groups.units

    lanes, kernel = group_size(kernel, info), computed_in(kernel, is_kept)
    wide = partial(fitting, lanes=lanes, info=info, groups=groups)
    mapping = map_kernel(kernel, lanes, groups.together_nbytes, wide)
    space = info.space(SpaceKind.SCRATCHPAD)
    for stages in STAGES if groups.asynchronous else STAGES[-1:]:
        group = _written(kernel, groups, mapping, info, stages)
        if space is None or group.scratch_nbytes <= space.nbytes:
            break
    out, dialect = group.out, groups.c
    name = f"{kernel.name}_kernel"
    given = ", ".join(a for p in kernel.params for a in arguments(dialect, p))
    scratch, given_nbytes = group.scratch()
    head = [f"    {line}" for line in (*scratch, *group.head)]
    least = max(1, _LANES // lanes)
    body = "\n".join(
        [
            f"{groups.kernel.format(lanes, least)} {name}({given})\n{{",
            *head,
            out.text(),
            "}\n",
        ]
    )
    text = headed(dialect, out.functions.text(), body)
    options = {"lanes": lanes} | ({"scratch": given_nbytes} if given_nbytes else {})
    found = tuple((option, str(n)) for option, n in options.items())
    return KernelSource(dialect.format, text, name, kernel.params, found)


def _written(
    kernel: Kernel, groups: SimtDialect, mapping: Mapping, info: DeviceInfo, stages: int
) -> GroupText:
    """The kernel's body, whose loops copy operands into so many stages."""
    out = CWriter(groups.c)
    written = {m for s in statements(kernel.body) for m, _, writes in accesses(s) if writes}
    group = GroupText(out, groups, mapping, Fence(out, groups, written), info, stages)
    rules = {"reduce": reduce, "scan": scan, "dot": dot}
    scope = Scope(out, {op: partial(rule, group) for op, rule in rules.items()})
    for p in kernel.params:
        parameter(scope, p)
    block(group, scope, kernel.body)
    return group


_LANES = 512
"""For so many lanes at least a unit should have room, by groups: it hides latency, and leaves each
lane half of the registers that it can have at most. Who compiles a text that spills so gives it
more."""
