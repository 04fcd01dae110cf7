/* What `ccl.py` uses of NCCL's interface (nccl.h), as it is since 2.14: a library takes of a
   configuration what its size and version say. */
typedef struct comm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef struct {
    size_t size;
    unsigned int magic, version;
    int blocking;
} ncclConfig_t;
int ncclGetUniqueId(ncclUniqueId *);
int ncclCommInitRankConfig(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
int ncclCommAbort(ncclComm_t);
int ncclCommGetAsyncError(ncclComm_t, int *);
const char *ncclGetErrorString(int);
const char *ncclGetLastError(ncclComm_t);
int ncclGroupStart();
int ncclGroupEnd();
int ncclAllReduce(const void *, void *, size_t, int, int, ncclComm_t, void *);
int ncclReduce(const void *, void *, size_t, int, int, int, ncclComm_t, void *);
int ncclReduceScatter(const void *, void *, size_t, int, int, ncclComm_t, void *);
int ncclBroadcast(const void *, void *, size_t, int, int, ncclComm_t, void *);
int ncclAllGather(const void *, void *, size_t, int, ncclComm_t, void *);
int ncclSend(const void *, size_t, int, int, ncclComm_t, void *);
int ncclRecv(void *, size_t, int, int, ncclComm_t, void *);
