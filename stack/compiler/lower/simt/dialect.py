"""What a C language has for groups of lanes, as data beside its dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType

from hal.core.facts import dataclass
from hal.tile.ops import TRANSCENDENTAL
from stack.compiler.text.c.cuda_c import CUDA_C_TEXT
from stack.compiler.text.c.dialect import Dialect
from stack.compiler.text.c.opencl import OPENCL


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """Copies from global to scratch memory of which a lane waits for those that it began: `copy` is
    a format of the `nbytes`, which divide both addresses, and of an element's `size`, with `to`,
    `from` and the `count` of elements that are not zero; `commit` ends a group of them, and `wait`
    is a format of the newest groups that need not be there. `functions` are what they call."""

    copy: str
    commit: str
    wait: str
    functions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Wide:
    """A matrix unit that four subgroups run together. `block` is the function (address, bytes from
    a block of operands to the next along the summed axis, and along the other one) that says where
    the unit reads; `begin` and `end` are the instructions before the first product and behind the
    last one, which awaits all. `of` names the operands' type in the functions of products."""

    block: str
    block_text: str
    begin: str
    end: str
    of: str

    def product(
        self, call: str, columns: int, apart: int, turned: tuple[bool, bool]
    ) -> tuple[str, str]:
        """The function (sums, left operand, right operand) for so many columns, and its definition:
        a lane's sums of the second of its two rows are `apart` from those of the first."""
        flags, count = "".join(str(int(x)) for x in turned), columns // 2
        name, places = f"hal_wide_{self.of}_{columns}_{flags}", (f"%{i}" for i in range(count))
        text = _WIDE.format(
            name=name,
            call=call.format(columns),
            places=", ".join(places),
            a=count,
            b=count + 1,
            turned=", ".join(flags),
            sums=_sums(columns, apart),
        )
        return name, text

    def around(self, columns: int, apart: int) -> tuple[tuple[str, str], ...]:
        """The functions (sums) before and behind the products: none of what is done with sums may
        go from one side of them to the other."""
        found = []
        for what, lines in (("begin", self.begin), ("end", self.end)):
            name = f"hal_wide_{what}_{columns}"
            text = _AROUND.format(name=name, lines=lines, sums=_sums(columns, apart))
            found.append((name, text))
        return tuple(found)


def _sums(columns: int, apart: int) -> str:
    """A lane's sums in the unit's order, as operands that are read and written."""
    places = (
        row * apart + 2 * j + i for j in range(columns // 8) for row in (0, 1) for i in (0, 1)
    )
    return ", ".join(f'"+f"(d[{i}])' for i in places)


_WIDE = """\
static __device__ inline void {name}(float *d, ulong a, ulong b) {{
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, 1, 0; "
        "{call} {{{places}}}, %{a}, %{b}, p, 1, 1, {turned}; }}"
        : {sums} : "l"(a), "l"(b) : "memory");
}}
"""
_AROUND = """\
static __device__ inline void {name}(float *d) {{
    asm volatile("{lines}" : {sums} :: "memory");
}}
"""


@dataclass(frozen=True, slots=True)
class SimtDialect:
    """`c` is the language for instances that are groups. `kernel` is a format of the lanes and of
    the groups that a unit has room for at least, and stands before an entry point; `lane` is the
    lane's number as an int. `barrier` orders accesses to scratch memory, `global_barrier` those to
    global memory too. `unrolled` stands before a loop that is to be written out, so that what it
    indexes can lie in registers."""

    c: Dialect
    kernel: str
    lane: str
    barrier: str
    global_barrier: str
    unrolled: str
    declared_nbytes: int | None = None
    """The most scratch memory that a text may declare; None: all that there is. Where a kernel has
    more, its size is an option of the source, and `given` declares it."""
    given: str = ""
    """Format of the scratch memory that a launch gives, by its name."""
    subgroup: int = 1
    """Neighbouring lanes that read each other's registers: a power of two."""
    together_nbytes: int = 1
    """Bytes of neighbours that a lane best moves at once."""
    vectors: Mapping[int, str] = field(default_factory=dict)
    """Types by whose vectors memory is moved, by their bytes, at addresses that these divide."""
    units: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """For the `call` of a matrix unit, the function (two rows of sums, left operand, right operand)
    and its definition."""
    blocks: tuple[tuple[str, str], ...] = ()
    """The function that reads four blocks of eight by eight operands of a unit from scratch memory
    (where they go, and the address of a line of one, which every lane says), and its definition;
    then that which turns each of them."""
    wide: Mapping[str, Wide] = field(default_factory=dict)
    """By the `call` of a matrix unit, a format of the columns: those of several subgroups."""
    wide_staged: tuple[str, str] = ("", "")
    """The function by which a lane makes known to them what it has copied, and its definition."""
    asynchronous: Asynchronous | None = None
    """None: operands of a unit are loaded into registers, and stored from there."""
    shuffle: str = ""
    """Format of a type, a value and a number of bits: the value of the lane whose number differs in
    these, within a subgroup."""


OPENCL_GROUPS = SimtDialect(
    c=replace(
        OPENCL,
        program="(long)get_group_id({})",
        grid="(long)get_num_groups({})",
        # The driver's others are as near, and made for the device.
        has=frozenset(TRANSCENDENTAL) - {"rsqrt"},
    ),
    kernel="__kernel __attribute__((reqd_work_group_size({}, 1, 1))) void",
    lane="(int)get_local_id(0)",
    barrier="barrier(CLK_LOCAL_MEM_FENCE);",
    global_barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    unrolled='_Pragma("unroll") ',
)
"""OpenCL C 1.2: an instance is a work-group, a lane a work-item, scratch memory is local memory."""

_MMA = """\
static __device__ inline void {name}(float *low, float *high, const uint *a, const uint *b) {{
    asm volatile("{call} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
        : "+f"(low[0]), "+f"(low[1]), "+f"(high[0]), "+f"(high[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}
"""
"""Of m16n8k16 on 16-bit floats: a lane has two neighbours in each of its two rows of sums."""


def _mma(kind: str) -> tuple[str, tuple[str, str]]:
    call, name = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32", f"hal_mma_{kind}"
    return call, (name, _MMA.format(call=call, name=name))


_MATRICES = """\
static __device__ inline void {name}(uint *to, const void *line) {{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4{turned}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "r"((uint)__cvta_generic_to_shared(line)) : "memory");
}}
"""
"""Of four matrices: eight lanes each say where their rows are, which are 16 bytes."""


def _matrices(name: str, turned: str) -> tuple[str, str]:
    return name, _MATRICES.format(name=name, turned=turned)


_ASYNCHRONOUS = """\
static __device__ inline void hal_async_{name} {{
    asm volatile("cp.async.{what}" :: {given} : "memory");
}}
"""


def _asynchronous(name: str, what: str, given: str) -> tuple[str, str]:
    text = _ASYNCHRONOUS.format(name=name, what=what, given=given)
    return f"hal_async_{name.partition('(')[0]}", text


_PLACES = '"r"((uint)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from))'
_COPIES = Asynchronous(
    "hal_async_copy{nbytes}(to, from, count * {size});",
    "hal_async_commit()",
    "hal_async_wait{}()",
    (
        *(
            _asynchronous(
                f"copy{n}(void *to, const void *from, int given)",
                f"{'cg' if n == 16 else 'ca'}.shared.global [%0], [%1], {n}, %2;",
                f'{_PLACES}, "r"(given)',
            )
            for n in (4, 8, 16)
        ),
        _asynchronous("commit()", "commit_group;", ""),
        *(_asynchronous(f"wait{n}()", f"wait_group {n};", "") for n in range(3)),
    ),
)
"""`cp.async`: bytes that are not given become zeros."""

_BLOCK = """\
static __device__ inline ulong hal_wide_block(const void *at, uint along, uint other) {
    ulong place = (uint)__cvta_generic_to_shared(at) >> 4 & 0x3fff;
    return place | (ulong)(along >> 4) << 16 | (ulong)(other >> 4) << 32;
}
"""
"""A matrix descriptor without swizzling: the leading offset is that along the summed axis."""


_STAGED = """\
static __device__ inline void hal_wide_staged() {
    asm volatile("fence.proxy.async;" ::: "memory");
}
"""
_WIDE_BEGIN = "wgmma.fence.sync.aligned;"
_WIDE_END = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"


def _wgmma(kind: str) -> tuple[str, Wide]:
    call = f"wgmma.mma_async.sync.aligned.m64n{{}}k16.f32.{kind}.{kind}"
    return call, Wide("hal_wide_block", _BLOCK, _WIDE_BEGIN, _WIDE_END, kind)


CUDA_GROUPS = SimtDialect(
    c=CUDA_C_TEXT,
    kernel="#ifndef GROUPS\n#define GROUPS {1}\n#endif\n"
    'extern "C" __global__ __launch_bounds__({0}, GROUPS) void',
    lane="(int)threadIdx.x",
    barrier="__syncthreads();",
    global_barrier="__syncthreads();",
    unrolled='_Pragma("unroll") ',
    declared_nbytes=48 << 10,
    given="extern __shared__ uchar {}[] __attribute__((aligned(64)));",
    subgroup=32,
    together_nbytes=16,
    vectors=MappingProxyType({4: "uint", 8: "uint2", 16: "uint4"}),
    units=MappingProxyType(dict(map(_mma, ("bf16", "f16")))),
    blocks=(_matrices("hal_matrices", ""), _matrices("hal_matrices_turned", ".trans")),
    wide=MappingProxyType(dict(map(_wgmma, ("bf16", "f16")))),
    wide_staged=("hal_wide_staged", _STAGED),
    asynchronous=_COPIES,
    shuffle="({})__shfl_xor_sync(0xffffffffU, {}, {})",
)
"""`CUDA_C`: an instance is a block, a lane a thread. A barrier orders accesses to all memory."""
