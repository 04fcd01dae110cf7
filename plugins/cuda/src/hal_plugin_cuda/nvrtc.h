/* What the plugin uses of the run-time compiler (nvrtc.h). */
typedef struct program *nvrtcProgram;
int nvrtcVersion(int *major, int *minor);
int nvrtcGetNumSupportedArchs(int *count);
int nvrtcGetSupportedArchs(int *archs);
int nvrtcCreateProgram(nvrtcProgram *, const char *text, const char *name, int, void *, void *);
int nvrtcCompileProgram(nvrtcProgram, int count, const char *const *options);
int nvrtcDestroyProgram(nvrtcProgram *);
int nvrtcGetCUBINSize(nvrtcProgram, size_t *);
int nvrtcGetCUBIN(nvrtcProgram, char *);
int nvrtcGetProgramLogSize(nvrtcProgram, size_t *);
int nvrtcGetProgramLog(nvrtcProgram, char *);
const char *nvrtcGetErrorString(int);
