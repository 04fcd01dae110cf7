"""What the plugin says of the driver and of NVRTC, against the vendor's own headers, which come
with wheels."""

from __future__ import annotations

import ctypes.util
import re
import subprocess
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cffi
import pytest
from hal_plugin_cuda import (
    context,
    describe,
    driver,
    find,
    lt,
    machine,
    nvrtc,
    programs,
    shared,
    wheels,
)

from hal.core.dtypes import DType
from hal.core.errors import Unsupported
from hal.hosted import ccl
from hal.hosted.machine import Invitation


def folder(package: str) -> Path | None:
    if find_spec("nvidia") is None or (found := find_spec(f"nvidia.{package}")) is None:
        return None
    return next(Path(p) / "include" for p in found.submodule_search_locations or ())


HEADERS = {
    "cuda.h": folder("cuda_runtime"),
    "nvrtc.h": folder("cuda_nvrtc"),
    "cublasLt.h": folder("cublas"),
    "nccl.h": folder("nccl"),
}
pytestmark = pytest.mark.skipif(
    HEADERS["cuda.h"] is None or HEADERS["nvrtc.h"] is None,
    reason="headers are not installed; `make cuda-text` installs them",
)
needs_lt = pytest.mark.skipif(
    HEADERS["cublasLt.h"] is None,
    reason="cuBLASLt is not installed; `pip install nvidia-cublas-cu12` (600 MB)",
)
needs_nccl = pytest.mark.skipif(
    HEADERS["nccl.h"] is None,
    reason="NCCL is not installed; `pip install nvidia-nccl-cu12` (300 MB)",
)
_INTEGERS = (
    r"\b(CUresult|CUdevice|CUdevice_attribute|CUfunction_attribute|nvrtcResult"
    r"|CUmemAllocationGranularity_flags|CUmemAllocationHandleType"
    r"|cublasStatus_t|cublasComputeType_t|cudaDataType_t|cudaDataType"
    r"|ncclResult_t|ncclDataType_t|ncclRedOp_t)\b"
)
FOLDERS = (*HEADERS.values(), Path(__file__).parent)
INCLUDES = [
    *("-D__CUDA_FP16_H__", "-D__CUDA_BF16_H__"),
    *(f"-I{path}" for path in FOLDERS if path is not None),
]
"""With `crt`, which comes with the compiler for the host alone, and without types of narrow floats,
which are classes of C++."""
_NAMED = r"(.*[ *])(?!int$|char$|short$|long$|size_t$|void$|CU)[A-Za-z_]\w*(\[\])?$"


def text_of(header: str) -> str:
    """The header as C sees it, with every version of every function."""
    path = Path(str(HEADERS[header])) / header
    command = ["gcc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", *INCLUDES, "-x", "c", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def signatures(text: str) -> dict[str, str]:
    """The parameters' types of functions: enumerations as the integers that they are."""
    text = re.sub(_INTEGERS, "int", " ".join(text.split()))
    text = text.replace("CUhostFn fn", "void (*)(void *)").replace("CUdeviceptr_v2", "CUdeviceptr")
    text = text.replace("CUDA_KERNEL_NODE_PARAMS_v2", "CUDA_KERNEL_NODE_PARAMS")
    text = re.sub(r"\b(CUgraphNode|nvrtcProgram|cublasLt\w+_t) ?\*(?: const)? ?\w+", r"\1 *", text)
    text = re.sub(r"\bcudaStream_t\b", "void *", text).replace("const ncclComm_t", "ncclComm_t")
    found = {}
    for name, given in re.findall(
        r"\b((?:cu|nvrtc|cublasLt|nccl)[A-Z]\w*) ?\(((?:[^()]|\([^()]*\))*)\) ?;", text
    ):
        types = (re.sub(_NAMED, r"\1\2", one.strip()) for one in given.split(","))
        found[name] = ",".join(re.sub(r"\s|\[\]", "", one) for one in types)
    return found


@pytest.mark.parametrize(
    ("header", "ours"),
    [
        ("cuda.h", driver.HEADER),
        ("nvrtc.h", nvrtc.HEADER),
        pytest.param("cublasLt.h", lt.HEADER, marks=needs_lt),
        pytest.param("nccl.h", ccl.HEADER, marks=needs_nccl),
    ],
    ids=["cuda", "nvrtc", "lt", "nccl"],
)
def test_functions_are_declared_as_the_vendor_does(header: str, ours: Path) -> None:
    theirs, found = signatures(text_of(header)), signatures(ours.read_text())
    assert len(found) > 10
    pointers = {"nvrtcCreateProgram"}  # two lists of names, of which none is given
    for name in found.keys() - pointers:
        assert found[name] == theirs.get(name), name


def test_structures_lie_as_the_vendor_s_do(tmp_path: Path) -> None:
    ffi = cffi.FFI()
    ffi.cdef(driver.HEADER.read_text())
    kind = "CUDA_KERNEL_NODE_PARAMS"
    fields = {
        "func": "func", "gx": "gridDimX", "gz": "gridDimZ", "bx": "blockDimX", "bz": "blockDimZ",
        "shared_nbytes": "sharedMemBytes", "params": "kernelParams", "extra": "extra",
        "kernel": "kern", "context": "ctx",
    }  # fmt: skip
    rows = [f'_Static_assert(sizeof({kind}_v2) == {ffi.sizeof(kind)}, "size");']
    rows += [
        f'_Static_assert(offsetof({kind}_v2, {theirs}) == {ffi.offsetof(kind, ours)}, "{ours}");'
        for ours, theirs in fields.items()
    ]
    for ours, theirs in (
        ("CUmemAllocationProp", {
            "type": "type", "handles": "requestedHandleTypes", "location": "location",
            "attributes": "win32HandleMetaData", "flags": "allocFlags",
        }),
        ("CUmemAccessDesc", {"location": "location", "flags": "flags"}),
    ):  # fmt: skip
        rows.append(f'_Static_assert(sizeof({ours}) == {ffi.sizeof(ours)}, "size");')
        rows += [
            f'_Static_assert(offsetof({ours}, {b}) == {ffi.offsetof(ours, a)}, "{a}");'
            for a, b in theirs.items()
        ]
    check(tmp_path, rows)


def test_numbers_are_the_vendor_s(tmp_path: Path) -> None:
    device, error = "CU_DEVICE_ATTRIBUTE_", "CUDA_ERROR_"
    known = {
        f"{device}MAX_THREADS_PER_BLOCK": describe._THREADS,
        f"{device}PCI_DOMAIN_ID": machine._PLACE[0],
        f"{device}PCI_BUS_ID": machine._PLACE[1],
        f"{device}PCI_DEVICE_ID": machine._PLACE[2],
        f"{device}MAX_GRID_DIM_X": describe._GRID[0],
        f"{device}MAX_GRID_DIM_Z": describe._GRID[2],
        f"{device}MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": describe._SHARED,
        f"{device}VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": describe._MAPPING,
        f"{device}HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": describe._DESCRIPTORS,
        "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": programs._GIVEN_SHARED,
        "CU_MEM_ALLOCATION_TYPE_PINNED": shared._PINNED,
        "CU_MEM_LOCATION_TYPE_DEVICE": shared._ON_DEVICE,
        "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR": shared._DESCRIPTOR,
        "CU_MEM_ACCESS_FLAGS_PROT_READWRITE": shared._READ_WRITE,
        "CU_MEM_ALLOC_GRANULARITY_MINIMUM": shared._LEAST,
        f"{device}CLOCK_RATE": describe._CLOCK,
        f"{device}MULTIPROCESSOR_COUNT": describe._UNITS,
        f"{device}ECC_ENABLED": describe._ECC,
        f"{device}MEMORY_CLOCK_RATE": describe._MEMORY_CLOCK,
        f"{device}GLOBAL_MEMORY_BUS_WIDTH": describe._BUS_BITS,
        f"{device}L2_CACHE_SIZE": describe._L2,
        f"{device}COMPUTE_CAPABILITY_MAJOR": describe._MAJOR,
        f"{device}COMPUTE_CAPABILITY_MINOR": describe._MINOR,
        f"{device}CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM": describe._HOST_POINTERS,
        "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": programs._THREADS_OF_BLOCK,
        "CU_STREAM_NON_BLOCKING": context._NON_BLOCKING,
        "CU_MEMHOSTALLOC_PORTABLE": context._PORTABLE,
        "(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)": context._MAPPED,
        f"{error}NO_DEVICE": find._NO_DEVICE,
        f"{error}OUT_OF_MEMORY": driver.OUT_OF_MEMORY,
        f"{error}NOT_READY": driver.NOT_READY,
        f"{error}CONTEXT_IS_DESTROYED": driver.CONTEXT_GONE,
        f"{error}ILLEGAL_ADDRESS": driver.ADDRESSES[0],
    }
    check(tmp_path, [f'_Static_assert({name} == {n}, "{name}");' for name, n in known.items()])


@needs_lt
def test_what_is_said_of_the_vendor_s_products_is_so(tmp_path: Path) -> None:
    ffi = cffi.FFI()
    ffi.cdef(lt.HEADER.read_text())
    kind = "cublasLtMatmulHeuristicResult_t"
    numbers = {
        "CUDA_R_32F": lt._TYPES[DType.F32],
        "CUDA_R_16F": lt._TYPES[DType.F16],
        "CUDA_R_16BF": lt._TYPES[DType.BF16],
        "CUBLAS_COMPUTE_32F": lt._SUMS_F32,
        f"sizeof({kind})": ffi.sizeof(kind),
        f"offsetof({kind}, algo)": ffi.offsetof(kind, "algo"),
        f"offsetof({kind}, state)": ffi.offsetof(kind, "state"),
    }
    assert lt._TYPES[DType.F32] == lt._SCALES_F32
    rows = [f'_Static_assert({name} == {n}, "{name}");' for name, n in numbers.items()]
    check(tmp_path, ["#include <cublasLt.h>", *rows])


@needs_lt
def test_the_library_says_why_it_makes_no_product_here() -> None:
    """Its functions are called as they are declared; without a GPU it makes no handle."""
    operators = lt.operators(12)
    assert [o.conditions["k"] for o in operators] == [4, 8, 8]
    ffi, native = lt._library(12)
    layout = ffi.new("cublasLtMatrixLayout_t *")
    assert not native.cublasLtMatrixLayoutCreate(layout, lt._TYPES[DType.BF16], 8, 16, 8)
    assert not native.cublasLtMatrixLayoutDestroy(layout[0])
    if ctypes.util.find_library("cuda") is None:
        with pytest.raises(Unsupported, match="matmul: cuBLASLt: the library was not initialized"):
            lt.Product(None, operators[0], {"m": 1, "n": 4, "k": 4}, 12)  # type: ignore[arg-type]


@needs_nccl
def test_what_is_said_of_the_vendor_s_groups_is_so(tmp_path: Path) -> None:
    ffi, kind = cffi.FFI(), "ncclConfig_t"
    ffi.cdef(ccl.HEADER.read_text())
    types = {"I": "Int", "U": "Uint", "F": "Float", "B": "Bfloat"}
    numbers = {f"nccl{types[d.name[0]]}{d.bits}": n for d, n in ccl._TYPES.items()}
    numbers |= {f"nccl{how.name.title()}": n for how, n in ccl._REDUCTIONS.items()}
    numbers |= {
        "NCCL_API_MAGIC": ccl._MAGIC,
        "NCCL_VERSION(2, 14, 0)": ccl._SINCE,
        "ncclInProgress": ccl._IN_PROGRESS,
        "sizeof(ncclUniqueId)": ffi.sizeof("ncclUniqueId"),
    }
    for field in ("size", "magic", "version", "blocking"):
        numbers[f"offsetof({kind}, {field})"] = ffi.offsetof(kind, field)
    rows = [f'_Static_assert({name} == {n}, "{name}");' for name, n in numbers.items()]
    rows.append(f'_Static_assert(sizeof({kind}) >= {ffi.sizeof(kind)}, "size");')
    check(tmp_path, ["#include <nccl.h>", *rows])


@needs_nccl
@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="a driver is installed")
def test_the_library_says_why_it_joins_nobody_here() -> None:
    """Its functions are called as they are declared; without a driver it makes no communicator."""
    path, nobody, home = str(wheels.nccl()), SimpleNamespace(name="cuda:0"), nullcontext()
    seats: Any = {0: ccl.Seat(nobody, home, None, None)}  # type: ignore[arg-type]
    words = ccl.invitation(path)
    assert len(words) == 128
    with pytest.raises(Unsupported, match=r"libnccl.* joins no 2: .*ncclCommInitRankConfig: .+"):
        ccl.CclGroup(path, seats, Invitation(2, words, 5.0), 1.0, lambda rank: None)


def test_every_error_that_ends_a_context_is_known() -> None:
    """The header says at each what must end: the context, or the process."""
    text = (Path(str(HEADERS["cuda.h"])) / "cuda.h").read_text()
    rows = re.findall(r"/\*\*((?:(?!\*/).)*)\*/\s*(CUDA_ERROR_\w+)\s*=\s*(\d+)", text, re.DOTALL)
    ends = r"inconsistent state|must be destroyed|must be terminated"
    fatal = {int(n) for said, _, n in rows if re.search(ends, " ".join(said.split()))}
    assert fatal > {700, 719}
    assert fatal <= set(driver.STICKY), fatal - set(driver.STICKY)


def check(tmp_path: Path, rows: list[str]) -> None:
    """Have C check assertions over the vendor's header."""
    file = tmp_path / "check.c"
    heads = ("#define __CUDA_API_VERSION_INTERNAL", "#include <cuda.h>", "#include <stddef.h>")
    file.write_text("\n".join((*heads, *rows)))
    command = ["gcc", "-fsyntax-only", *INCLUDES, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert not done.returncode, done.stderr
