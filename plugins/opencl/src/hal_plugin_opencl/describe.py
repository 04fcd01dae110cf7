"""What an OpenCL device says about itself, in the contract's words."""

from __future__ import annotations

import pyopencl as cl

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
from hal.core.errors import InvalidCall
from hal.core.values import OPENCL_C
from hal_plugin_opencl.choice import PLUGIN, Choice
from hal_plugin_opencl.find import summary

_NEVER = {Feature.GROUP_IPC, Feature.OPERATORS}
_IN_HOST_MEMORY = {Feature.MAP, Feature.IMPORT_HOST, Feature.IPC}
_GRID = ((1 << 31) - 1, 65535, 65535)
"""OpenCL bounds a launch by the address width alone; these are what GPU drivers have in common."""
_QUEUES = 256
_ARGUMENT_NBYTES = 16
"""The most that a parameter takes: a buffer's address and an offset."""

_LANES = 256
"""Work-items of a group: what every GPU driver lets be, and enough to hide latency."""

_ULP = {
    "exp": 3.0,
    "log": 3.0,
    "sin": 4.0,
    "cos": 4.0,
    "tanh": 5.0,
    "erf": 16.0,
    "pow": 16.0,
    "div": 2.5,
    "sqrt": 3.0,
}
"""What the OpenCL specification asks of a full-profile device in single precision."""


def describe(device: cl.Device, choice: Choice) -> DeviceInfo:
    """The description of an opened device."""
    place = choice.place
    capacity = choice.memory_nbytes or device.global_mem_size // place.shared
    dtypes = [d for d in DType if d is not DType.F64 or has_double(device)]
    lacking = set() if computes_in_host_memory(device) else _IN_HOST_MEMORY
    names = (f"{PLUGIN}:{i}" for i in range(place.count) if i != place.index)
    # OpenCL tells the size of one cache without its level, so the nearest ones stay unsaid
    most = device.max_work_group_size
    lanes = choice.lanes or (1 if _is_cpu(device) else min(_LANES, most))
    if lanes > most:
        raise InvalidCall(f"{choice.name} runs at most {most} lanes, not {lanes}")
    limits = Limits(
        grid=_GRID,
        args=device.max_parameter_size // _ARGUMENT_NBYTES,
        alloc_nbytes=min(capacity, device.max_mem_alloc_size),
        queues=_QUEUES,
        instances=device.max_compute_units,
        progress_s=choice.progress_s,
        vector_nbytes=device.native_vector_width_float * 4 if lanes == 1 else 0,
        lanes=lanes,
    )
    granularity, seen = device.mem_base_addr_align // 8, computes_in_host_memory(device)
    own = (SpaceKind.GLOBAL, capacity, granularity)
    local = (SpaceKind.SCRATCHPAD, device.local_mem_size, device.min_data_type_align_size)
    ulp = _ULP | dict.fromkeys(("add", "mul", "fma"), 0.5)
    if rounds_correctly(device):
        ulp |= dict.fromkeys(("div", "sqrt"), 0.5)
    platform = device.platform
    said = (platform.version, device.vendor, device.name, device.version, device.driver_version)
    # What is measured with instances of one kind, or on a part, says nothing of another.
    measured = (f"{device.max_compute_units} units", f"{limits.lanes} lanes")
    return DeviceInfo(
        name=choice.name,
        plugin=PLUGIN,
        description=summary(device),
        fingerprint=" ".join(" | ".join((*said, *measured)).split()),
        contract=1,
        limits=limits,
        spaces=(MemorySpace("global", *own, host_visible=seen), MemorySpace("local", *local)),
        dtypes=dict.fromkeys(dtypes, 0.0),
        numeric=NumericProfile(
            ulp=ulp,
            denormals=bool(device.single_fp_config & cl.device_fp_config.DENORM),
            fma=bool(device.single_fp_config & cl.device_fp_config.FMA),
            accumulate={dtype: dtype.computed_in for dtype in dtypes},
        ),
        formats=(OPENCL_C,),
        features=frozenset(Feature) - _NEVER - lacking,
        links=tuple(Link(name, "host", 0, 0) for name in names),
        facts={
            "platform": f"{device.platform.name}, {device.platform.version}".strip(),
            "version": device.version.strip(),
            "driver": device.driver_version.strip(),
            "extensions": " ".join(sorted(device.extensions.split())),
        },
    )


def computes_in_host_memory(device: cl.Device) -> bool:
    """Whether a memory object over memory of the host is that memory, and not a copy of it."""
    return bool(_is_cpu(device) and device.host_unified_memory)


def has_double(device: cl.Device) -> bool:
    """Whether programs may use f64."""
    return bool(device.double_fp_config)


def rounds_correctly(device: cl.Device) -> bool:
    """Whether a build option gives correctly rounded float32 divisions and square roots."""
    return bool(device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT)


def _is_cpu(device: cl.Device) -> bool:
    return bool(device.type & cl.device_type.CPU)
