/* What the plugin uses of the driver (cuda.h), with the versions of CUDA 12.0, and of libc. */
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct graph *CUgraph;
typedef struct node *CUgraphNode;
typedef struct executable *CUgraphExec;
typedef unsigned long long CUdeviceptr;
typedef struct {
    CUfunction func;
    unsigned int gx, gy, gz, bx, by, bz, shared_nbytes;
    void **params;
    void **extra;
    void *kernel;
    CUcontext context;
} CUDA_KERNEL_NODE_PARAMS;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct {
    int type, id;
} CUmemLocation;
typedef struct {
    int type, handles;
    CUmemLocation location;
    void *attributes;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} CUmemAllocationProp;
typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;
void *memmove(void *, const void *, size_t);
int cuInit(unsigned int);
int cuDriverGetVersion(int *);
int cuGetErrorName(int, const char **);
int cuGetErrorString(int, const char **);
int cuDeviceGetCount(int *);
int cuDeviceGet(int *, int);
int cuDeviceGetName(char *, int, int);
int cuDeviceTotalMem_v2(size_t *, int);
int cuDeviceGetAttribute(int *, int, int);
int cuCtxCreate_v2(CUcontext *, unsigned int, int);
int cuCtxDestroy_v2(CUcontext);
int cuDevicePrimaryCtxRetain(CUcontext *, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxPushCurrent_v2(CUcontext);
int cuCtxPopCurrent_v2(CUcontext *);
int cuMemAlloc_v2(CUdeviceptr *, size_t);
int cuMemFree_v2(CUdeviceptr);
int cuMemGetAllocationGranularity(size_t *, const CUmemAllocationProp *, int);
int cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                unsigned long long);
int cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
int cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
int cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
int cuMemUnmap(CUdeviceptr, size_t);
int cuMemAddressFree(CUdeviceptr, size_t);
int cuMemRelease(CUmemGenericAllocationHandle);
int cuMemExportToShareableHandle(void *, CUmemGenericAllocationHandle, int, unsigned long long);
int cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *, void *, int);
int cuMemHostAlloc(void **, size_t, unsigned int);
int cuMemFreeHost(void *);
int cuMemHostRegister_v2(void *, size_t, unsigned int);
int cuMemHostUnregister(void *);
int cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream);
int cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);
int cuMemsetD16Async(CUdeviceptr, unsigned short, size_t, CUstream);
int cuMemsetD32Async(CUdeviceptr, unsigned int, size_t, CUstream);
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
int cuFuncSetAttribute(CUfunction, int, int);
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
