/* What the plugin uses of cuBLASLt (cublasLt.h). */
typedef struct handle *cublasLtHandle_t;
typedef struct product *cublasLtMatmulDesc_t;
typedef struct layout *cublasLtMatrixLayout_t;
typedef struct preference *cublasLtMatmulPreference_t;
typedef struct {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspace_nbytes;
    int state;
    float waves;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;
const char *cublasLtGetStatusString(int);
int cublasLtCreate(cublasLtHandle_t *);
int cublasLtDestroy(cublasLtHandle_t);
int cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *, int, int);
int cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t);
int cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *, int, uint64_t, uint64_t, int64_t);
int cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t);
int cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *);
int cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t);
int cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                   cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                   cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                   cublasLtMatmulHeuristicResult_t[], int *);
int cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                   cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t, const void *,
                   const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,
                   const cublasLtMatmulAlgo_t *, void *, size_t, void *);
