/* Messages from one rank to another, in a lane of their own: all that are begun move side by side, so that two ranks may
 * send to each other before they receive. One thread at a time moves them: that of a blocking call while it waits, else
 * one of the group. Those of a pair, a direction and a tag match in order. */
#include "message.h"
#include <sched.h>

#define IDLE_NS 500000000LL
#define BUDGET_NS 20000000LL /* how long a blocking call moves messages before its thread looks around */
#define LOOKS 4              /* between two looks at the clock */
#define PEEKS 16             /* at what may have come, between two looks at all else */
#define ALONE 6              /* this part of the time awake lets nobody else go first */

he_message_work *he_message_first(he_group *g, int queue) {
    pthread_mutex_lock(&g->lock);
    he_work *w = g->messages[queue].first;
    pthread_mutex_unlock(&g->lock);
    return (he_message_work *)w;
}

void he_message_finish(he_group *g, int queue, he_work *w, int code) {
    pthread_mutex_lock(&g->lock);
    he_queue *q = &g->messages[queue];
    he_work *before = NULL;
    for (he_work *at = q->first; at != w; at = at->next) before = at;
    *(before ? &before->next : &q->first) = w->next;
    if (q->last == w) q->last = before;
    g->nmessages--;
    int ending = g->ending;
    pthread_mutex_unlock(&g->lock);
    if (ending) he_part(g);
    he_work_finish(w, code);
    he_work_release(w);
}

/* What holds a message up that did not move; the group has failed then. `away` is from before the try: what the rank
 * sent before it left was there then. */
static int check(he_group *g, int queue, const he_message_work *m, int away) {
    he_call none = {.sequence = -1};
    int peer = queue / 2;
    if (away) return he_fail(g, HE_LEFT, peer, g->rank, &m->work.call, NULL, 0);
    if (he_now() - m->moved_ns < m->work.timeout_ns) return HE_OK;
    return he_fail(g, HE_LATE, peer, g->rank, &m->work.call, &none, 0);
}

static int send_some(he_group *g, int peer, he_message_work *m, int *moved) {
    const unsigned char *data = m->lent.nbytes ? (const unsigned char *)&m->lent.src : m->work.src;
    int code = he_send(g, HE_MESSAGES, peer, &m->transfer, data, moved);
    if (code || !m->lent.nbytes || !he_is_done(&m->transfer)) return code;
    return he_lend(g, peer, &m->work.call, &m->lent, m->work.src, moved);
}

static int send_first(he_group *g, int queue, he_message_work *m, int *moved) {
    int any = 0, code = send_some(g, queue / 2, m, &any);
    *moved |= any;
    if (code) return code;
    if (he_has_moved(&m->transfer, &m->lent)) he_message_finish(g, queue, &m->work, HE_OK);
    else if (any) m->moved_ns = he_now();
    return HE_OK;
}

static int turn(he_group *g, int queue, int *moved) {
    he_message_work *m = he_message_first(g, queue);
    int open = queue % 2 && queue / 2 != g->rank && he_message_first(g, he_from_anybody(g));
    if (!m && !open) return HE_OK;
    int away = he_is_away(g, HE_MESSAGES, queue / 2);
    int any = 0, code = queue % 2 ? he_inbox_turn(g, queue / 2, &any) : send_first(g, queue, m, &any);
    if (!code && !any && m) code = check(g, queue, m, away);
    *moved |= any;
    return code;
}

/* A receive from anybody ends in vain once nobody is left, or at its deadline: then nobody else is to blame. `away` is
 * from before the turns of the ranks. */
static int check_open(he_group *g, const unsigned char *away) {
    he_call none = {.sequence = -1};
    he_message_work *m = he_message_first(g, he_from_anybody(g));
    int gone = -1;
    if (!m) return HE_OK;
    he_call ours = m->work.call;
    ours.kind = HE_RECV;
    for (int r = 0; r < g->size; r++) {
        if (r == g->rank) continue;
        if (!away[r]) return he_now() - m->moved_ns < m->work.timeout_ns ? HE_OK : he_fail(g, HE_LATE, g->rank, g->rank, &ours, &none, 0);
        gone = r;
    }
    return he_fail(g, HE_LEFT, gone, g->rank, &ours, NULL, 0);
}

static void fail_all(he_group *g, int code) {
    for (int queue = 0; queue <= he_from_anybody(g); queue++)
        for (he_message_work *m; (m = he_message_first(g, queue));) he_message_finish(g, queue, &m->work, code);
}

/* Which queues have messages; gives whether some are from anybody, which every rank's queue may get then. */
static int look_at_queues(he_group *g, unsigned char *has) {
    pthread_mutex_lock(&g->lock);
    for (int queue = 0; queue <= he_from_anybody(g); queue++) has[queue] = g->messages[queue].first != NULL;
    pthread_mutex_unlock(&g->lock);
    return has[he_from_anybody(g)];
}

static int turn_all(he_group *g, int *moved) {
    unsigned char away[g->size], has[he_from_anybody(g) + 1];
    int code = he_look(g), open = look_at_queues(g, has);
    *moved = 0;
    for (int r = 0; open && r < g->size; r++) away[r] = r != g->rank && he_is_away(g, HE_MESSAGES, r);
    for (int queue = 0; queue < he_from_anybody(g) && !code; queue++)
        if (has[queue] || (open && queue % 2)) code = turn(g, queue, moved);
    if (open && !code && !*moved) code = check_open(g, away);
    if (code) fail_all(g, code);
    return code;
}

static void pause_for(he_group *g) {
    unsigned char sends[g->size], receives[g->size];
    he_interest interest = {sends, receives};
    int moved;
    uint32_t bell = he_bell(g, HE_MESSAGES);
    if (!turn_all(g, &moved) && !moved) {
        int open = he_message_first(g, he_from_anybody(g)) != NULL;
        for (int r = 0; r < g->size; r++) {
            sends[r] = he_message_first(g, 2 * r) != NULL;
            receives[r] = he_message_first(g, 2 * r + 1) != NULL || (open && r != g->rank);
        }
        he_lane_sleep(g, HE_MESSAGES, bell, &interest);
    }
    __atomic_store_n(&g->ends[g->here].asleep[HE_MESSAGES], 0, __ATOMIC_RELEASE);
}

static int has_messages(he_group *g) {
    pthread_mutex_lock(&g->lock);
    int n = g->nmessages;
    pthread_mutex_unlock(&g->lock);
    return n > 0;
}

static int is_done(const he_work *w) { return __atomic_load_n(&w->done, __ATOMIC_ACQUIRE); }

/* A moment in which what a rank of this host sends may come, where that is what this one waits for. */
static void look_into(he_group *g, const he_work *w) {
    int peer = w && w->call.root == g->rank ? atomic_load_explicit(&((const he_message_work *)w)->peer, memory_order_relaxed) : HE_ANYBODY;
    for (int k = 0; peer != HE_ANYBODY && !g->peers[peer].remote && k < PEEKS && !he_ring_has(g, HE_MESSAGES, peer); k++) he_relax();
}

/* Until a message is done, or all are (NULL), at most for `budget_ns`: awake as long as messages move, and a moment
 * longer, at first alone, then letting others of this core go first, of whom the awaited rank may be one. */
static void move(he_group *g, const he_work *w, int64_t budget_ns) {
    int64_t began_ns = w ? ((const he_message_work *)w)->moved_ns : he_now(), idle_ns = began_ns, spin_ns = he_spin_ns(g);
    int moved, idle = 0;
    while (!turn_all(g, &moved) && (w ? !is_done(w) : has_messages(g))) {
        idle = moved ? 0 : idle + 1;
        look_into(g, w);
        he_relax();
        if (idle % LOOKS != 1) continue;
        int64_t now_ns = he_now();
        if (now_ns - began_ns > budget_ns) return;
        if (idle == 1) idle_ns = now_ns;
        else if (now_ns - idle_ns > spin_ns) pause_for(g);
        else if (now_ns - idle_ns > spin_ns / ALONE) sched_yield();
    }
}

static void *serve(void *argument) {
    he_group *g = argument;
    pthread_mutex_lock(&g->lock);
    while (!g->ending || g->nmessages) {
        if (!g->nmessages || g->moving) {
            he_cond_wait(&g->posted, &g->lock, IDLE_NS);
            continue;
        }
        g->moving = 1;
        pthread_mutex_unlock(&g->lock);
        move(g, NULL, INT64_MAX);
        pthread_mutex_lock(&g->lock);
        g->moving = 0;
    }
    pthread_mutex_unlock(&g->lock);
    he_group_release(g);
    return NULL;
}

/* Under the lock: whether the group's thread runs, which moves what nobody else does. */
static int served(he_group *g) { return g->messaging || (g->messaging = he_thread_start(g, serve)); }

/* Under the lock. The call's number is the pair's own. */
static void number(he_group *g, int queue, he_message_work *m) {
    m->work.call.sequence = g->messages[queue].number++;
    int64_t nbytes = m->lent.nbytes ? (int64_t)sizeof m->lent.src : he_elements_nbytes(&m->work.call);
    m->transfer = he_transfer_of(&m->work.call, m->work.call.sequence, nbytes);
    m->posted = g->nposted++;
    g->nmessages++;
}

/* Under the lock. Behind the others, or in front of them where it has begun before they came. */
static void enqueue(he_group *g, int queue, he_message_work *m, int first) {
    he_queue *q = &g->messages[queue];
    if (first) m->work.next = q->first;
    *(first || !q->first ? &q->first : &q->last->next) = &m->work;
    if (!m->work.next) q->last = &m->work;
}

static void post(he_group *g, int queue, he_message_work *m) {
    number(g, queue, m);
    enqueue(g, queue, m, 0);
}

static int queue_of(const he_group *g, int kind, int peer) {
    return peer == HE_ANYBODY ? he_from_anybody(g) : 2 * peer + (kind == HE_RECV);
}

/* A large message to a rank of this host out of memory that it maps, or can read, is lent. */
static he_lent lent_of(he_group *g, int kind, int64_t nbytes, const void *buffer, int peer) {
    int may = kind == HE_SEND && nbytes >= HE_LENT_NBYTES && !g->peers[peer].remote;
    he_place src = may ? he_place_of(g, buffer) : (he_place){0, 0};
    int reaches = may && !src.id && nbytes >= HE_ATTACH_NBYTES && __atomic_load_n(&he_loan_of(g, g->rank, peer)->reaches, __ATOMIC_ACQUIRE);
    if (reaches) src = (he_place){HE_IN_PROCESS, (int64_t)(uintptr_t)buffer};
    return (he_lent){.nbytes = src.id ? nbytes : 0, .src = src};
}

static he_message_work message_of(he_group *g, int kind, int dtype, int64_t count, void *buffer, int peer, int64_t tag,
                                  int64_t timeout_ns) {
    int to = kind == HE_SEND ? peer : g->rank;
    return (he_message_work){
        .lent = lent_of(g, kind, count * he_nbytes_of(dtype), buffer, peer),
        .work = {
            .group = g, .dst = buffer, .src = buffer, .timeout_ns = timeout_ns, .refs = 2, /* the caller's and the queue's */
            .call = {.count = count, .digest = (uint64_t)tag, .kind = HE_SEND, .dtype = dtype, .root = to},
        },
        .peer = peer,
    };
}

static he_message_work *kept(const he_message_work *m) {
    he_message_work *copy = malloc(sizeof *copy);
    if (!copy) return NULL;
    *copy = *m;
    copy->moved_ns = he_now();
    atomic_fetch_add(&m->work.group->refs, 1);
    return copy;
}

he_work *he_message_start(he_group *g, int kind, int dtype, int64_t count, void *buffer, int peer, int64_t tag,
                          int64_t timeout_ns) {
    he_message_work one = message_of(g, kind, dtype, count, buffer, peer, tag, timeout_ns);
    he_message_work *m = atomic_load(&g->forked) ? NULL : kept(&one);
    if (!m) return NULL;
    pthread_mutex_lock(&g->lock);
    int started = served(g);
    if (started) post(g, queue_of(g, kind, peer), m);
    if (started && !g->moving) pthread_cond_signal(&g->posted);
    pthread_mutex_unlock(&g->lock);
    if (started) {
        he_ring_bell(g, HE_MESSAGES, g->rank);
        return &m->work;
    }
    he_group_release(g);
    free(m);
    return NULL;
}

/* Somebody else is to move what is left. Without a thread for it the group fails. */
static void hand_on(he_group *g) {
    pthread_mutex_lock(&g->lock);
    if (g->nmessages && !served(g)) {
        pthread_mutex_unlock(&g->lock);
        fail_all(g, he_fail(g, HE_NO_MEMORY, g->rank, g->rank, NULL, NULL, 0));
        pthread_mutex_lock(&g->lock);
    }
    g->moving = 0;
    if (g->nmessages) pthread_cond_signal(&g->posted);
    pthread_mutex_unlock(&g->lock);
}

/* Begins a message while there is no other one. Whether it is done, or has failed. */
static int begin_alone(he_group *g, int queue, he_message_work *m, int *code) {
    int moved = 0;
    if ((*code = he_look(g))) return 1;
    if (queue % 2) *code = he_inbox_alone(g, queue / 2, m);
    else *code = send_some(g, queue / 2, m, &moved);
    if (*code) he_shut(g);
    return *code || he_has_moved(&m->transfer, &m->lent);
}

/* A message to or from a rank of this host, where there is no other one, mostly needs no place in a queue. 0 where it does,
 * or others are there. */
static int pass_alone(he_group *g, int queue, he_message_work *m, int *code, he_message_work **left) {
    if (queue == he_from_anybody(g) || g->peers[queue / 2].remote) return 0;
    pthread_mutex_lock(&g->lock);
    int alone = !g->moving && !g->nmessages;
    if (alone) number(g, queue, m);
    if (alone) g->moving = 1;
    pthread_mutex_unlock(&g->lock);
    if (!alone) return 0;
    int ended = begin_alone(g, queue, m, code);
    if (!ended && !(*left = kept(m))) ended = *code = he_fail(g, HE_NO_MEMORY, g->rank, g->rank, NULL, NULL, 0);
    pthread_mutex_lock(&g->lock);
    if (!ended) {
        enqueue(g, queue, *left, 1);
        if (queue % 2 && m->transfer.moved) g->messages[queue].coming = *left;
    }
    g->nmessages -= ended;
    int ending = g->ending;
    pthread_mutex_unlock(&g->lock);
    if (ended && ending) he_part(g);
    return 1;
}

int he_message_pass(he_group *g, int kind, int dtype, int64_t count, void *buffer, int peer, int64_t tag, int64_t timeout_ns) {
    if (atomic_load(&g->forked)) return HE_FORKED;
    he_message_work one = message_of(g, kind, dtype, count, buffer, peer, tag, timeout_ns), *m = NULL;
    int queue = queue_of(g, kind, peer), code = HE_OK, moves = pass_alone(g, queue, &one, &code, &m);
    if (moves && !m) {
        hand_on(g);
        return code;
    }
    if (!moves) {
        if (!(m = kept(&one))) return he_fail(g, HE_NO_MEMORY, g->rank, g->rank, NULL, NULL, 0);
        pthread_mutex_lock(&g->lock);
        moves = !g->moving;
        g->moving = 1;
        post(g, queue, m);
        pthread_mutex_unlock(&g->lock);
    }
    if (moves) {
        move(g, &m->work, BUDGET_NS);
        hand_on(g);
    } else {
        he_ring_bell(g, HE_MESSAGES, g->rank);
    }
    if (!is_done(&m->work)) return he_work_leave(&m->work);
    code = m->work.status;
    he_work_release(&m->work);
    return code;
}

int he_message_peer(he_work *w) { return atomic_load(&((he_message_work *)w)->peer); }
