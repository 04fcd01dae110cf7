/* What Python calls. Times are nanoseconds, counts are elements, sizes are bytes. Functions that give an int give 0
 * when all went well, else one of the codes below; `he_failure_of` then tells the group's first failure. */

typedef struct he_group he_group;
typedef struct he_work he_work;

enum {
    HE_PENDING = -1, HE_OK, HE_ENDED, HE_SILENT, HE_LEFT, HE_DIFFERS, HE_LATE, HE_ABORTED, HE_NO_MEMORY, HE_FORKED,
    HE_UNREADABLE, HE_TAMPERED, HE_NONSENSE, HE_FLOODED, HE_LAST_CODE = HE_FLOODED
};
/* With the code of a failure: it is that of another group of the mesh, which has ended this one. */
enum { HE_ELSEWHERE = 64 };
/* What a rank said that none says: the `detail` of HE_NONSENSE. */
enum {
    HE_WRONG_CALL = 1, HE_WRONG_LENGTH, HE_WRONG_FAILURE, HE_WRONG_MEMORY, HE_WRONG_RING, HE_WRONG_WORD,
    HE_LAST_WRONG = HE_WRONG_WORD
};
enum { HE_HERE, HE_AWAY };
enum { HE_KEY_NBYTES = 32 };
enum { HE_ANYBODY = -1 };
enum {
    HE_ALL_REDUCE, HE_REDUCE, HE_BROADCAST, HE_ALL_GATHER, HE_REDUCE_SCATTER, HE_ALL_TO_ALL, HE_ALL_TO_ALL_V, HE_GATHER,
    HE_SCATTER, HE_BARRIER, HE_SEND, HE_RECV
};
enum { HE_SUM, HE_PROD, HE_MIN, HE_MAX, HE_AVG, HE_BAND, HE_BOR, HE_BXOR }; /* those of bits: of whole numbers and bools */
enum { HE_F64, HE_F32, HE_F16, HE_BF16, HE_I64, HE_I32, HE_I16, HE_I8, HE_U64, HE_U32, HE_U16, HE_U8, HE_BOOL,
       HE_F8E4M3FN, HE_F8E5M2 };

/* A rank's call as it tells the others. `root` is -1 where the kind has none; of a point-to-point call it is the
 * other rank. `digest` stands for what else must agree: counts of each pair, or the plan that is followed; of a
 * point-to-point call it is the tag. `name` stands for what the call is for, 0 for nothing that was said. */
typedef struct {
    int64_t sequence, count;
    uint64_t digest, name;
    int32_t kind, dtype, reduce, root;
} he_call;

/* `rank` caused it, `told_by` found it out first. `ours` and `theirs` are the calls of HE_DIFFERS; of HE_LATE `ours`
 * is the call that waited and `theirs` the last call of the late rank, which has ended if `detail` is 1. Where `ours` is of
 * HE_RECV, `rank` is the one that waited, for a message from anybody. Of HE_FLOODED `theirs` is the message. With HE_ELSEWHERE
 * `rank` is a rank that is in the other group, too, and `detail` the number in the job of the one that caused it. */
typedef struct {
    int32_t code, rank, told_by, detail;
    he_call ours, theirs;
} he_failure;

/* A group. `local` lists the ranks of this host in rising order, of which `segment` is the shared memory; `life`
 * has a connection to each rank (-1 for this one), `data` two for each rank of another host (-1 for the others). `keys`
 * are HE_KEY_NBYTES for each of these three connections of a rank, by rank, in that order; those of ranks of this host are not
 * looked at. All descriptors become the group's. The groups of a `mesh` in a process end together; `in_job` are the ranks'
 * numbers in their job; 0 and NULL for a group of its own. NULL without memory or threads: then they stay the caller's. */
he_group *he_group_new(int rank, int size, int nlocal, const int *local, int segment, const int *life, const int *data,
                       const unsigned char *keys, int64_t heartbeat_ns, uint64_t mesh, const int *in_job);
int64_t he_segment_nbytes(int nlocal, int size);
void he_group_leave(he_group *group);
void he_group_release(he_group *group);
void he_abort(he_group *group);
int he_failure_of(he_group *group, he_failure *out);
int he_state_of(he_group *group, int rank);
int64_t he_calls_of(he_group *group);
/* How the last call ran: with the post that told of it, in memory that all map, out of the others' memory, in slices,
 * in steps; by a chunk program; HE_NO_WAY before the first one. */
enum { HE_NO_WAY, HE_BY_POST, HE_BY_MAPPING, HE_BY_READING, HE_BY_SLICES, HE_BY_STEPS, HE_BY_PROGRAM };
int he_way_of(he_group *group);
/* How long a rank looks for another one before it sleeps: not long where the ranks that share its cores are more than these. */
int64_t he_spin_ns(he_group *group);

/* Memory that every rank of this host maps; NULL without memory. It is asked what there is before anything is taken,
 * and again before every part of it, as the other ranks of the host take theirs meanwhile. */
void *he_share(he_group *group, int64_t nbytes);
/* The bytes that this process may still take, by the machine and by its control groups; of folders that stand for /proc
 * and /sys/fs/cgroup. */
int64_t he_memory_left(void);
int64_t he_memory_left_in(const char *proc, const char *cgroups);
void he_unshare(he_group *group, void *memory);

/* A rank's steps of a chunk program, as `stack.comm.plan.flat` writes them. `digest` is equal on all ranks that follow
 * one program with equal lengths. `scratch_count` are the elements of its scratch place. */
typedef struct {
    uint64_t digest;
    const int64_t *steps, *after;
    int64_t nsteps, nafter, scratch_count;
} he_route;

/* Blocks until the call is done on this rank, or gives HE_PENDING when not all ranks have come to it for a while: then
 * the group's thread goes on with it, and `he_left` gives the calling thread its work. No progress for `timeout_ns` is a
 * failure. The call's `sequence` is the group's to give. `counts` are size * size numbers of HE_ALL_TO_ALL_V (row i is
 * what rank i sends), or size numbers of an uneven HE_ALL_GATHER, HE_GATHER, HE_SCATTER or HE_REDUCE_SCATTER, or NULL;
 * the call's `digest` stands for them. With a `route` its steps are followed, and its digest is the call's. */
int he_collective(he_group *group, const he_call *call, const he_route *route, void *dst, const void *src,
                  const int64_t *counts, int64_t timeout_ns);
he_work *he_left(void);
/* The same, begun and left to the group's thread. Buffers, counts and the route's steps stay alive until it is done.
 * NULL without memory or threads, and in the child of a fork. */
he_work *he_collective_start(he_group *group, const he_call *call, const he_route *route, void *dst, const void *src,
                             const int64_t *counts, int64_t timeout_ns);
/* HE_PENDING when it is not done after `wait_ns`. */
int he_work_wait(he_work *work, int64_t wait_ns);
int he_work_test(he_work *work);
void he_work_release(he_work *work);

/* In a message's tag: the rank has come to a meeting of all, whose name the other bits are, and neither sends nor wants
 * another message before they have come. */
#define HE_MEETING 0x4000000000000000

/* A message to `peer` (HE_SEND) or from it (HE_RECV), which may be HE_ANYBODY; those of one tag match in order. The buffer
 * stays alive until it is done. NULL as above. */
he_work *he_message_start(he_group *group, int kind, int dtype, int64_t count, void *buffer, int peer, int64_t tag,
                          int64_t timeout_ns);
/* The same until it is done; HE_PENDING as of a collective. */
int he_message_pass(he_group *group, int kind, int dtype, int64_t count, void *buffer, int peer, int64_t tag, int64_t timeout_ns);
/* The rank that a message comes from or goes to; HE_ANYBODY before there is one. */
int he_message_peer(he_work *work);

/* As memcpy, past the cache: for what is large and not read again soon. */
void he_stream(unsigned char *dst, const unsigned char *src, int64_t n);
