"""What an emulated core group says about itself: the model's figures, not the host's."""

from __future__ import annotations

from hal.core.description import (
    DeviceInfo,
    Feature,
    Limits,
    Link,
    MemorySpace,
    NumericProfile,
    SpaceKind,
)
from hal.core.dtypes import DType
from hal.core.values import ATHREAD_C
from hal_plugin_sunway import toolchain
from hal_plugin_sunway.chip import Chip
from hal_plugin_sunway.choice import CORE_GROUPS, DESCRIPTION, PLUGIN, Choice
from hal_plugin_sunway.traffic import link_nbytes_s

FEATURES = frozenset(Feature) - {
    Feature.IMPORT_HOST,
    Feature.IPC,
    Feature.GROUP_IPC,
    Feature.OPERATORS,
}
_GRID = ((1 << 31) - 1, 65535, 65535)
_MOST_ARGS = 128
_QUEUES = 256
_LDM_GRANULARITY = 64
_SHOWN = ("free", "disputed", "calibrated")

_ULP = {
    **dict.fromkeys(("add", "mul", "div", "sqrt", "fma"), 0.5),
    **dict.fromkeys(("log", "pow"), 1.0),
    "exp": 1.6,
    "sin": 1.5,
    "cos": 1.5,
    "tanh": 2.5,
    "erf": 2.5,
}
"""The chip's functions are not published. These bounds hold for those of the host's C library, and
for polynomials of the usual length in their place."""


def describe(chip: Chip, choice: Choice, memory_nbytes: int) -> DeviceInfo:
    """The description of an opened core group with so much memory."""
    accumulate = {dtype: dtype.computed_in for dtype in DType}
    # What a user should know of the model: its mode, and every figure that nobody published.
    shown = (f for f in chip.figures.values() if f.tag in _SHOWN)
    figures = {f"chip: {f.name}": f"{f.value:g} ({f.tag}: {f.source})" for f in shown}
    emulated = "rates, links, reports and the spans' device_ns are emulated; spans are the host's"
    line, rate = chip.count("line_nbytes"), chip["memory_nbytes_s"]
    latency = chip.seconds(chip["path_cycles"] + chip["read_cycles"])
    ldm = ldm_nbytes(chip)
    # The ring, the shorter way round
    index = choice.index
    groups = range(CORE_GROUPS)
    hops = {
        peer: min((peer - index) % CORE_GROUPS, (index - peer) % CORE_GROUPS) for peer in groups
    }
    rates = {count: link_nbytes_s(chip, count) for count in set(hops.values()) - {0}}
    # peak rates of a core group; those of whole numbers are not published
    each = chip["cpe_hz"] * chip["cpes"]
    names = {DType.F64: "fp64", DType.F32: "fp32", DType.F16: "fp16", DType.BF16: "fp16"}
    return DeviceInfo(
        name=f"{PLUGIN}:{choice.index}",
        plugin=PLUGIN,
        description=DESCRIPTION,
        fingerprint=f"SW26010-Pro emulator | {toolchain.target()}",
        contract=1,
        limits=_limits(chip, choice, memory_nbytes),
        spaces=(
            MemorySpace(
                "memory",
                SpaceKind.GLOBAL,
                memory_nbytes,
                line,
                host_visible=True,
                bandwidth=rate,
                latency=latency,
            ),
            MemorySpace("ldm", SpaceKind.SCRATCHPAD, ldm, _LDM_GRANULARITY, dma_only=True),
        ),
        dtypes={d: chip[f"{names[d]}_flop_cycle"] * each if d in names else 0.0 for d in DType},
        numeric=NumericProfile(_ULP, denormals=True, fma=False, accumulate=accumulate),
        formats=(ATHREAD_C,),
        features=FEATURES,
        links=tuple(
            Link(f"{PLUGIN}:{peer}", "ring", rates[n], chip.seconds(n * chip["hop_cycles"]))
            for peer, n in hops.items()
            if n
        ),
        facts={"time": emulated, "memory mode": choice.memory_mode, **figures},
    )


def ldm_nbytes(chip: Chip) -> int:
    """The scratchpad that a program has: what the data cache leaves of it."""
    return chip.count("ldm_nbytes") - chip.count("cache_nbytes")


def _limits(chip: Chip, choice: Choice, memory_nbytes: int) -> Limits:
    cache = chip.count("cache_nbytes")
    return Limits(
        grid=_GRID,
        args=_MOST_ARGS,
        alloc_nbytes=memory_nbytes,
        queues=_QUEUES,
        instances=chip.count("cpes"),
        vector_nbytes=chip.count("vector_nbytes"),
        registers=chip.count("vector_registers"),
        caches=(cache,) if cache else (),
        mesh=(chip.count("side"), chip.count("side")),
        progress_s=choice.progress_s,
    )
