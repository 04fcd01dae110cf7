"""The driver's own interface, opened at run time: libcuda comes with the driver, and nothing of a
toolkit is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import cffi

from hal.core.errors import HalError

LIBRARY = "libcuda.so.1"

_DECLARATIONS = """
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct graph *CUgraph;
typedef struct node *CUgraphNode;
typedef struct executable *CUgraphExec;
typedef unsigned long long CUdeviceptr;
typedef struct { char bytes[64]; } CUipcMemHandle;
typedef struct { char bytes[16]; } CUuuid;
typedef struct {
    CUfunction func;
    unsigned int gx, gy, gz, bx, by, bz, shared_nbytes;
    void **params;
    void **extra;
    void *kernel;
    CUcontext context;
} CUDA_KERNEL_NODE_PARAMS;
int cuInit(unsigned int);
int cuDriverGetVersion(int *);
int cuGetErrorName(int, const char **);
int cuGetErrorString(int, const char **);
int cuDeviceGetCount(int *);
int cuDeviceGet(int *, int);
int cuDeviceGetName(char *, int, int);
int cuDeviceGetUuid(CUuuid *, int);
int cuDeviceTotalMem_v2(size_t *, int);
int cuDeviceGetAttribute(int *, int, int);
int cuDeviceCanAccessPeer(int *, int, int);
int cuCtxCreate_v2(CUcontext *, unsigned int, int);
int cuCtxDestroy_v2(CUcontext);
int cuCtxPushCurrent_v2(CUcontext);
int cuCtxPopCurrent_v2(CUcontext *);
int cuMemAlloc_v2(CUdeviceptr *, size_t);
int cuMemFree_v2(CUdeviceptr);
int cuMemHostAlloc(void **, size_t, unsigned int);
int cuMemFreeHost(void *);
int cuMemHostRegister_v2(void *, size_t, unsigned int);
int cuMemHostUnregister(void *);
int cuMemHostGetDevicePointer_v2(CUdeviceptr *, void *, unsigned int);
int cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream);
int cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);
int cuMemsetD16Async(CUdeviceptr, unsigned short, size_t, CUstream);
int cuMemsetD32Async(CUdeviceptr, unsigned int, size_t, CUstream);
int cuIpcGetMemHandle(CUipcMemHandle *, CUdeviceptr);
int cuIpcOpenMemHandle_v2(CUdeviceptr *, CUipcMemHandle, unsigned int);
int cuIpcCloseMemHandle(CUdeviceptr);
int cuStreamCreate(CUstream *, unsigned int);
int cuStreamDestroy_v2(CUstream);
int cuStreamWaitEvent(CUstream, CUevent, unsigned int);
int cuLaunchHostFunc(CUstream, void (*)(void *), void *);
int cuEventCreate(CUevent *, unsigned int);
int cuEventDestroy_v2(CUevent);
int cuEventRecord(CUevent, CUstream);
int cuEventQuery(CUevent);
int cuEventElapsedTime(float *, CUevent, CUevent);
int cuModuleLoadData(CUmodule *, const void *);
int cuModuleUnload(CUmodule);
int cuModuleGetFunction(CUfunction *, CUmodule, const char *);
int cuFuncGetAttribute(int *, int, CUfunction);
int cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                   unsigned int, unsigned int, CUstream, void **, void **);
int cuGraphCreate(CUgraph *, unsigned int);
int cuGraphDestroy(CUgraph);
int cuGraphAddKernelNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                            const CUDA_KERNEL_NODE_PARAMS *);
int cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
int cuGraphExecKernelNodeSetParams_v2(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *);
int cuGraphLaunch(CUgraphExec, CUstream);
int cuGraphExecDestroy(CUgraphExec);
"""

OUT_OF_MEMORY, NOT_READY, CONTEXT_GONE = 2, 600, 709
"""Numbers of the driver: no memory is left; an event has not come yet; the context has ended."""

STICKY = (214, 700, 702, CONTEXT_GONE, 710, 714, 715, 716, 717, 718, 719, 720, 721)
"""Errors after which every call of the context fails: memory errors that cannot be corrected, wrong
addresses, traps, failed assertions."""


class DriverError(HalError):
    """A call that the driver refused, by its number."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


class Driver:
    """The functions of the driver. Raises OSError where there is none."""

    def __init__(self) -> None:
        self.ffi = cffi.FFI()
        self.ffi.cdef(_DECLARATIONS)
        self.library: Any = self.ffi.dlopen(LIBRARY)

    def call(self, name: str, *args: Any) -> None:
        """Call a function. Raises DriverError with its name and the driver's words."""
        number = getattr(self.library, name)(*args)
        if number:
            raise DriverError(number, f"{name}: {self.words(number)}")

    def made(self, type: str, name: str, *args: Any) -> Any:
        """What a function puts where its first argument points."""
        place = self.ffi.new(f"{type} *")
        self.call(name, place, *args)
        return place[0]

    def words(self, number: int) -> str:
        """What a number of the driver means."""
        said = []
        for function in (self.library.cuGetErrorName, self.library.cuGetErrorString):
            text = self.ffi.new("const char **")
            if function(number, text) or text[0] == self.ffi.NULL:
                return f"error {number} of the driver"
            said.append(self.ffi.string(text[0]).decode())
        return f"{said[0]} ({number}): {said[1]}"

    def attribute(self, number: int, device: int) -> int:
        """A fact about a device (`CUdevice_attribute`)."""
        found: int = self.made("int", "cuDeviceGetAttribute", number, device)
        return found

    def callback(self, function: Callable[[Any], None]) -> Any:
        """A function that the driver may call from a thread of its own."""
        return self.ffi.callback("void(void *)", function)


@cache
def driver() -> Driver:
    """The driver of this process, started. Raises OSError where there is none, DriverError when it
    does not start."""
    found = Driver()
    found.call("cuInit", 0)
    return found
