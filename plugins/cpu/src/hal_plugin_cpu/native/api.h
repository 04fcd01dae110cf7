/* The native runtime's interface. This text is both a C header and cffi's cdef, so it has no preprocessor lines.
 *
 * Calls that submit return the point's value (> 0) or a negative hc_error. A `fault` is 0 or a failure number
 * times 8 plus an hc_fault. Failure numbers are the Python side's own, > 0; one beyond HC_HANGS is a hang of the
 * operation named `number - HC_HANGS + HC_FIRST_NAME`. Calls that take a device check that
 * every handle is of that device and epoch and not freed. */

typedef struct hc_device hc_device;
typedef struct hc_buffer hc_buffer;
typedef struct hc_program hc_program;
typedef struct hc_launchable hc_launchable;
typedef struct hc_graph hc_graph;
typedef struct hc_timeline hc_timeline;
typedef struct hc_call hc_call;

enum hc_error { HC_STALE = -1, HC_LOST = -2, HC_INVALID = -3, HC_NO_MEMORY = -4, HC_FORKED = -5, HC_FAILED = -6 };
enum hc_fault { HC_FAULT_FAIL = 1, HC_FAULT_HANG = 2, HC_FAULT_LOSE = 3, HC_FAULT_RESET = 4, HC_FAULT_PARTIAL = 5,
                HC_FAULT_HANG_LOSE = 6, HC_FAULT_HANG_RESET = 7 };
enum hc_name { HC_FIRST_NAME = -4, HC_HANGS = 1 << 30 };
enum hc_stage { HC_ABSENT = 0, HC_WAITING = 1, HC_MOVING = 2, HC_GONE = 3 }; /* of a member in a call */
enum hc_state { HC_OK = 0, HC_STATE_LOST = 1, HC_STATE_RESET = 2, HC_STATE_CLOSED = 3 };

typedef struct { hc_timeline *timeline; int64_t value; } hc_point;
typedef struct { hc_buffer *buffer; uint64_t bits; } hc_arg; /* a buffer and an offset, or NULL and a scalar */
typedef struct { int64_t start_ns, end_ns; int32_t name, lane, command; } hc_span;
typedef struct { int32_t command, param, slot; } hc_patch;
typedef struct { int64_t live, peak, allocations, buffers; } hc_stats;
typedef struct {
    hc_launchable *launchable;    /* a launch, or NULL */
    uint32_t grid[3];
    hc_buffer *dst, *src;         /* a copy; a fill when src is NULL */
    int64_t dst_offset, src_offset, nbytes;
    uint64_t pattern;
    int32_t pattern_nbytes;
    int32_t after_count;          /* -1: after all earlier commands */
    const int32_t *after;
} hc_command;

/* device.c */
hc_device *hc_open(int threads, int index, int64_t capacity, int64_t progress_ns);
int hc_quiesce(hc_device *dev, int64_t slice_ns);
void hc_refuse(hc_device *dev);
void hc_shut(hc_device *dev, int64_t failure);
int hc_lose(hc_device *dev, int64_t failure, int reset_required);
int64_t hc_reset(hc_device *dev);
int hc_health(hc_device *dev, int64_t *failure);
int hc_hanging(hc_device *dev);
int hc_abandoned(hc_device *dev);
int hc_running(hc_device *dev);
int64_t hc_epoch(hc_device *dev);
void hc_mark_forked(hc_device *dev);
void hc_release_device(hc_device *dev);

/* op.c */
int hc_usable(hc_device *dev);

/* object.c */
int hc_free(hc_device *dev, void *object);
int hc_check(hc_device *dev, void *object);
void hc_unref(void *object);
int hc_in_use(void *object);

/* buffer.c */
int hc_alloc(hc_device *dev, int64_t nbytes, int zero, int shareable, int label, hc_buffer **out);
int hc_import_host(hc_device *dev, void *data, int64_t nbytes, hc_buffer **out);
int hc_import_fd(hc_device *dev, int fd, int64_t nbytes, hc_buffer **out);
void *hc_data(hc_buffer *buffer);
int hc_fd(hc_buffer *buffer);
void hc_count(hc_device *dev, hc_stats *out);
int64_t hc_capacity(hc_device *dev);
int64_t hc_held(hc_device *dev, int label);

/* launch.c */
hc_program *hc_program_new(hc_device *dev, void *entry, int name);
int hc_bind(hc_device *dev, hc_program *program, int nargs, hc_arg *args, hc_launchable **out);
int64_t hc_launch(hc_device *dev, hc_launchable *launchable, uint32_t x, uint32_t y, uint32_t z,
                  hc_timeline *timeline, int nwaits, hc_point *waits, int64_t fault);
int64_t hc_copy(hc_device *dev, hc_buffer *dst, int64_t dst_offset, void *dst_host,
                hc_buffer *src, int64_t src_offset, const void *src_host, int64_t nbytes,
                hc_timeline *timeline, int nwaits, hc_point *waits, int64_t fault);
int64_t hc_fill(hc_device *dev, hc_buffer *dst, int64_t offset, int64_t nbytes, uint64_t pattern,
                int pattern_nbytes, hc_timeline *timeline, int nwaits, hc_point *waits, int64_t fault);

/* record.c and graph.c */
int hc_record(hc_device *dev, int ncommands, hc_command *commands, int npatches, hc_patch *patches, int nslots,
              hc_graph **out);
int64_t hc_replay(hc_device *dev, hc_graph *graph, int nslots, hc_arg *slots, hc_timeline *timeline,
                  int nwaits, hc_point *waits, int64_t fault);

/* timeline.c */
int hc_timeline_room(hc_device *dev, int most);
hc_timeline *hc_timeline_new(hc_device *dev, int host_driven);
int hc_signal(hc_device *dev, hc_timeline *timeline, int64_t value, int64_t failure);
int64_t hc_value(hc_timeline *timeline);
int hc_failed(hc_timeline *timeline);
int hc_wait(hc_device *dev, int npoints, hc_point *points, int wait_all, int first, int64_t slice_ns,
            int64_t *failure);

/* hostcall.c */
int64_t hc_host_call(hc_device *dev, hc_timeline *timeline, int nwaits, hc_point *waits, int64_t fault);
int64_t hc_host_next(hc_timeline *timeline);
void hc_host_done(hc_timeline *timeline, int64_t failure);

/* spans.c */
int hc_spans(hc_device *dev, hc_timeline *timeline, int64_t value, hc_span *out, int max);

/* collective.c */
hc_call *hc_call_new(int size, int kind, int dtype, int reduce, int root, int64_t count, const int64_t *counts);
void hc_call_release(hc_call *call);
int64_t hc_collective(hc_device *dev, hc_call *call, int rank, hc_buffer *dst, int64_t dst_offset,
                      hc_buffer *src, int64_t src_offset, hc_timeline *timeline, int nwaits, hc_point *waits,
                      int64_t fault);
void hc_call_fail(hc_device *dev, hc_call *call, int rank, int64_t failure);
int64_t hc_call_arrived_ns(hc_call *call, int rank);
int hc_call_stage(hc_call *call, int rank);
int hc_call_done(hc_call *call, int rank);

/* machine.c */
double hc_fma_rate(int bits);
enum { HC_DOT_BF16, HC_DOT_I8, HC_DOT_I8_256, HC_TILE_BF16, HC_TILE_F16, HC_TILE_I8, HC_SCALE };
int hc_has_unit(int unit);
double hc_dot_rate(int unit);
void *hc_symbol(const char *name);

/* link.c */
typedef struct { void *memory; int64_t nbytes; void *entry; } hc_code;
int hc_link(const char *object, int64_t nbytes, const char *entry, hc_code *out);
void hc_unlink(hc_code *code);

/* vet.c */
enum hc_vet { HC_VET_RISKY = 0, HC_VET_STRANGE = 1, HC_VET_KNOWN = 2 };
int hc_vet(const char *text, int64_t nbytes);
