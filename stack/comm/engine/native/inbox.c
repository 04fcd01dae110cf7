/* What comes from a rank: each message goes to the first receive of its tag, or is kept until there is one. Nothing is
 * read while nobody receives from the rank, so a rank that receives in order keeps nothing. */
#include "message.h"

#define KEPT_NBYTES (1LL << 30) /* of a group: what came before it was wanted */
#define LOOKS 40                  /* for a message that may come at once */
#define ASKED_NBYTES (16LL << 20) /* after so much more it is asked again what the machine has left */

typedef struct he_kept {
    struct he_kept *next;
    he_transfer transfer;
    he_lent lent;
    unsigned char data[];
} he_kept;

static void into(void *context, int64_t at, int64_t n, const unsigned char *bytes) { he_near((unsigned char *)context + at, bytes, n); }

/* What of a message can be moved now into `dst`: its bytes; or its place, and then out of there. */
static int receive(he_group *g, int peer, he_transfer *t, he_lent *lent, unsigned char *dst, int *moved) {
    void *first = lent->nbytes ? (void *)&lent->src : dst;
    int code = he_receive(g, HE_MESSAGES, peer, t, 1, into, first, moved);
    if (code || !lent->nbytes || !he_is_done(t)) return code;
    return he_borrow(g, peer, &t->frame, lent, dst, moved);
}

static he_lent lent_of(const he_frame *came) { return (he_lent){.nbytes = he_is_lent(came) ? he_elements_nbytes(&came->call) : 0}; }

/* The receive is for the message with this head; whether their calls are the same is seen once it is taken. */
static void expect(he_message_work *m, const he_frame *came) {
    he_call call = m->work.call;
    call.sequence = came->call.sequence; /* of one tag they match in order */
    m->lent = lent_of(came);
    m->transfer = he_transfer_of(&call, came->number, m->lent.nbytes ? came->nbytes : he_elements_nbytes(&call));
}

/* How many messages had been begun. */
static int64_t posted_so_far(he_group *g) {
    pthread_mutex_lock(&g->lock);
    int64_t number = g->nposted;
    pthread_mutex_unlock(&g->lock);
    return number;
}

static int64_t order_of(const he_work *w) { return ((const he_message_work *)w)->posted; }

/* Under the lock. Puts a receive from anybody among those from the peer, in the order in which they were begun. */
static void adopt(he_group *g, int peer, he_queue *q, he_work *before, he_work *w) {
    he_queue *open = &g->messages[he_from_anybody(g)];
    he_work *place = NULL, *next = q->first;
    while (next && order_of(next) < order_of(w)) next = (place = next)->next;
    *(before ? &before->next : &open->first) = w->next;
    if (open->last == w) open->last = before;
    w->next = next;
    *(place ? &place->next : &q->first) = w;
    if (!next) q->last = w;
    w->call.sequence = q->number++;
    ((he_message_work *)w)->moved_ns = he_now();
    atomic_store(&((he_message_work *)w)->peer, peer);
}

/* The receive that a message of this tag is for: the first one among the first `posted`, from the peer or from anybody;
 * NULL without. One that comes while the messages are gone through is not seen: it might get a later message than the
 * one that was kept for it. */
static he_message_work *wanted(he_group *g, int peer, he_queue *q, int64_t posted, uint64_t tag) {
    pthread_mutex_lock(&g->lock);
    he_work *w = q->first, *before = NULL, *open = g->messages[he_from_anybody(g)].first;
    while (w && w->call.digest != tag) w = w->next;
    while (open && open->call.digest != tag) open = (before = open)->next;
    if (open && (!w || order_of(open) < order_of(w))) w = open;
    if (w && order_of(w) >= posted) w = NULL;
    if (w && w == open) adopt(g, peer, q, before, w);
    pthread_mutex_unlock(&g->lock);
    return (he_message_work *)w;
}

/* The head of the next message, if it is there: `*code` is not 0 where it is none. */
static int next_head(he_group *g, int peer, const he_queue *q, he_frame *came, int *code) {
    unsigned char *at;
    int64_t there;
    if ((*code = he_channel_peek(g, HE_MESSAGES, peer, &at, &there)) || there < HE_FRAME_NBYTES) return 0;
    int wrong = he_frame_read(g, HE_MESSAGES, peer, at, came);
    if (!wrong && came->number != q->came) wrong = HE_WRONG_CALL; /* a rank numbers what it sends to another */
    if (wrong) *code = he_nonsense(g, peer, wrong);
    return !wrong;
}

/* Tells a rank of this host that sends large private memory whether the next one can be read there, and its own written. */
static void try_reaching(he_group *g, int peer, const he_frame *came) {
    if (g->peers[peer].remote || g->peers[peer].lender || he_is_lent(came) || came->nbytes < HE_ATTACH_NBYTES) return;
    __atomic_store_n(&he_loan_of(g, peer, g->rank)->reaches, (uint32_t)he_attach_one(g, peer), __ATOMIC_RELEASE);
}

/* Keeps a message that no receive waits for yet. A rank that sends more of them than there is room for has flooded this
 * one: without them, what is wanted of it would not be reached. */
static int keep(he_group *g, int peer, he_queue *q, const he_frame *came) {
    int64_t nbytes = he_elements_nbytes(&came->call), left = KEPT_NBYTES - g->kept_nbytes - (int64_t)sizeof(he_kept);
    if (nbytes > left) return he_fail(g, HE_FLOODED, peer, g->rank, NULL, &came->call, 0);
    int64_t before = g->kept_nbytes, after = before + (int64_t)sizeof(he_kept) + nbytes;
    int asks = before / ASKED_NBYTES != after / ASKED_NBYTES;
    he_kept *kept = !asks || nbytes <= he_memory_left() ? malloc(after - before) : NULL;
    if (!kept) return he_fail(g, HE_FLOODED, peer, g->rank, NULL, &came->call, 0);
    *kept = (he_kept){.transfer = he_transfer_of(&came->call, came->number, came->nbytes), .lent = lent_of(came)};
    g->kept_nbytes = after;
    q->keeping = kept;
    return HE_OK;
}

static void forget(he_group *g, he_kept *kept) {
    g->kept_nbytes -= he_elements_nbytes(&kept->transfer.frame.call) + (int64_t)sizeof *kept;
    free(kept);
}

/* Whether a message that no receive is for shows that one of the two ranks has come to a meeting and the other one has not:
 * what the first receive waits for is not sent before they have met, and nobody meets who sends something else. */
static int misses(he_group *g, int peer, int64_t posted, const he_call *came) {
    pthread_mutex_lock(&g->lock);
    he_work *w = g->messages[2 * peer + 1].first;
    int met = w && order_of(w) < posted && ((w->call.digest | came->digest) & HE_MEETING);
    he_call ours = met ? w->call : *came;
    pthread_mutex_unlock(&g->lock);
    return met ? he_differs(g, peer, &ours, came) : HE_OK;
}

/* Which receive the next message is for, once its head is there. */
static int begin(he_group *g, int peer, he_queue *q, int64_t posted) {
    he_frame came;
    int code;
    if (!he_message_first(g, 2 * peer + 1) && !he_message_first(g, he_from_anybody(g))) return HE_OK;
    if (!next_head(g, peer, q, &came, &code)) return code;
    q->came++;
    try_reaching(g, peer, &came);
    he_message_work *m = wanted(g, peer, q, posted, came.call.digest);
    if (!m && (code = misses(g, peer, posted, &came.call))) return code;
    if (!m) return keep(g, peer, q, &came);
    expect(m, &came);
    q->coming = m;
    return HE_OK;
}

static int receive_wanted(he_group *g, int peer, he_queue *q, int *moved) {
    he_message_work *m = q->coming;
    int any = 0, code = receive(g, peer, &m->transfer, &m->lent, m->work.dst, &any), is_over = he_has_moved(&m->transfer, &m->lent);
    *moved |= any;
    if (any && !is_over) m->moved_ns = he_now();
    if (code || !is_over) return code;
    q->coming = NULL;
    he_message_finish(g, 2 * peer + 1, &m->work, HE_OK);
    return HE_OK;
}

static int receive_kept(he_group *g, int peer, he_queue *q, int *moved) {
    he_kept *kept = q->keeping;
    int code = receive(g, peer, &kept->transfer, &kept->lent, kept->data, moved);
    if (code || !he_has_moved(&kept->transfer, &kept->lent)) return code;
    he_kept **at = &q->kept;
    while (*at) at = &(*at)->next;
    *at = kept;
    q->keeping = NULL;
    return HE_OK;
}

static int differs(he_group *g, int peer, const he_message_work *m, const he_frame *came) {
    he_call ours = m->work.call;
    ours.sequence = came->call.sequence; /* of one tag they match in order */
    return he_differs(g, peer, &ours, &came->call);
}

/* Gives what was kept to receives that have come since. */
static int hand_over(he_group *g, int peer, he_queue *q, int64_t posted, int *moved) {
    for (he_kept **at = &q->kept; *at;) {
        he_kept *kept = *at;
        he_message_work *m = wanted(g, peer, q, posted, kept->transfer.frame.call.digest);
        int code = m ? HE_OK : misses(g, peer, posted, &kept->transfer.frame.call);
        if (code) return code;
        if (!m) {
            at = &kept->next;
            continue;
        }
        code = differs(g, peer, m, &kept->transfer.frame);
        if (code) return code;
        he_near(m->work.dst, kept->data, he_elements_nbytes(&kept->transfer.frame.call));
        *at = kept->next;
        forget(g, kept);
        *moved = 1;
        he_message_finish(g, 2 * peer + 1, &m->work, HE_OK);
    }
    return HE_OK;
}

int he_inbox_alone(he_group *g, int peer, he_message_work *m) {
    he_queue *q = &g->messages[2 * peer + 1];
    he_frame came;
    int code = HE_OK, moved = 0;
    if (q->kept || q->keeping) return HE_OK;
    for (int k = 0; k < LOOKS && !next_head(g, peer, q, &came, &code) && !code; k++) he_relax();
    if (code || !next_head(g, peer, q, &came, &code) || came.call.digest != m->work.call.digest) return code;
    q->came++;
    try_reaching(g, peer, &came);
    expect(m, &came);
    return receive(g, peer, &m->transfer, &m->lent, m->work.dst, &moved);
}

int he_inbox_turn(he_group *g, int peer, int *moved) {
    he_queue *q = &g->messages[2 * peer + 1];
    int64_t posted = posted_so_far(g);
    int code = hand_over(g, peer, q, posted, moved);
    if (!code && !q->coming && !q->keeping) code = begin(g, peer, q, posted);
    if (!code && q->coming) return receive_wanted(g, peer, q, moved);
    return !code && q->keeping ? receive_kept(g, peer, q, moved) : code;
}

void he_inbox_free(he_queue *q) {
    free(q->keeping);
    while (q->kept) {
        he_kept *next = q->kept->next;
        free(q->kept);
        q->kept = next;
    }
}
