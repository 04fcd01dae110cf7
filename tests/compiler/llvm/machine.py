"""Runs LLVM IR text in this process, as a device that takes `llvm-ir/1` does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from hal.core.description import DeviceInfo, Limits, NumericProfile
from hal.core.dtypes import DType
from hal.core.values import LLVM_IR, KernelSource, ParamKind
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY
from stack.compiler.text.llvm import render


def info(vector_nbytes: int = 32, masked_nbytes: int = 4) -> DeviceInfo:
    """A device with SIMD registers of that many bytes, and masks for elements of so many."""
    big, registers = (1 << 31,) * 3, {"vector_nbytes": vector_nbytes, "registers": 16}
    limits = Limits(big, 64, 1 << 40, 4, 2, **registers, masked_nbytes=masked_nbytes)
    return DeviceInfo(
        name="test:0",
        plugin="test",
        description="SIMD cores",
        fingerprint="",
        contract=1,
        limits=limits,
        spaces=(),
        dtypes=dict.fromkeys(DType, 0.0),
        numeric=NumericProfile({}, True, True, {}),
        formats=(LLVM_IR,),
        features=frozenset(),
    )


@cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def host_features() -> Mapping[str, bool]:
    """The processor's features under LLVM's names."""
    _initialise()
    return dict(llvm.get_host_cpu_features())


def target_machine(*features: str) -> Any:
    """This host's, with further features as if it had them: for text, not to be run."""
    _initialise()
    triple = llvm.Target.from_triple(llvm.get_process_triple())
    flags = ",".join([llvm.get_host_cpu_features().flatten(), *(f"+{f}" for f in features)])
    return triple.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=flags, opt=3, reloc="pic", codemodel="jitdefault"
    )


def optimised(text: str, machine: Any) -> Any:
    """The module after the passes that the CPU plugin runs."""
    module = llvm.parse_assembly(text, llvm.create_context())
    module.verify()
    module.triple = llvm.get_process_triple()
    module.data_layout = str(machine.target_data)
    manager = llvm.create_new_module_pass_manager()
    manager.add_sroa_pass()
    manager.add_instruction_combine_pass()
    manager.add_simplify_cfg_pass()
    manager.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return module


def assembly(source: KernelSource, *features: str) -> str:
    """The machine code as text, for a host that also has these features."""
    machine = target_machine(*features)
    return str(machine.emit_assembly(optimised(source.text, machine)))


Entry = Callable[[Any, Any, int, int], None]
_alive: list[Any] = []


def entry(source: KernelSource) -> Entry:
    """The compiled entry point."""
    machine = target_machine()
    engine = llvm.create_mcjit_compiler(optimised(source.text, machine), machine)
    engine.finalize_object()
    _alive.append(engine)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    return kind(engine.get_function_address(source.entry))


def arguments(
    source: KernelSource, buffers: Mapping[str, np.ndarray], scalars: Mapping[str, Any]
) -> ctypes.Array[ctypes.c_uint64]:
    """The argument slots."""
    slots = (ctypes.c_uint64 * max(len(source.params), 1))()
    for i, p in enumerate(source.params):
        if p.kind is ParamKind.BUFFER:
            slots[i] = buffers[p.name].ctypes.data
        else:
            raw = np.asarray(scalars[p.name], NUMPY[p.dtype]).tobytes()
            slots[i] = int.from_bytes(raw, "little")
    return slots


def run(
    kernel: Kernel,
    grid: tuple[int, ...],
    buffers: Mapping[str, np.ndarray],
    scalars: Mapping[str, Any] | None = None,
    device: DeviceInfo | None = None,
) -> None:
    """Run a kernel over a grid in two calls, changing the buffers."""
    source = render(kernel, device or info())
    function = entry(source)
    sizes = (*grid, 1, 1, 1)[:3]
    grid_slots = (ctypes.c_int64 * 3)(*sizes)
    total = sizes[0] * sizes[1] * sizes[2]
    slots = arguments(source, buffers, scalars or {})
    function(slots, grid_slots, 0, total // 2)
    function(slots, grid_slots, total // 2, total)
