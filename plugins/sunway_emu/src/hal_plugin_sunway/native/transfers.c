/* Transfers under way: their reply words, and whether the program leaves their LDM alone meanwhile. */
#include <stdlib.h>
#include <string.h>

#include "emu.h"

enum { GUARD = 0xA5 };

struct transfer *transfer_new(struct cpe *c) {
    struct transfer *t = calloc(1, sizeof *t);
    if (!t) abort();
    t->cpe = c;
    t->line = c->line;
    return t;
}

void transfer_track(struct transfer *t) {
    t->next = t->cpe->transfers;
    t->cpe->transfers = t;
}

static const char *name_of(const struct transfer *t) {
    if (t->rma) return t->op == EMU_GET ? "RMA get" : "RMA put";
    return t->op == EMU_GET ? "DMA get" : "DMA put";
}

/* A wait for this reply word (NULL: for all) has covered the complete transfers that count it. */
void transfers_covered(struct cpe *c, volatile int *reply) {
    struct transfer **link = &c->transfers;
    while (*link) {
        struct transfer *t = *link;
        if (t->complete && (!reply || t->reply == reply)) {
            *link = t->next;
            free(t);
        } else {
            link = &t->next;
        }
    }
}

void transfers_check_exit(struct cpe *c) {
    const struct transfer *t = c->transfers;
    if (!t) return;
    c->line = t->line;
    fail(c, "launch-fault", "the %s of %ld bytes in this line is never waited for: the program ends with no "
         "athread_%s_wait_value for its reply word", name_of(t), t->len, t->rma ? "rma" : "dma");
}

void transfers_forget(struct cpe *c) {
    while (c->transfers) {
        struct transfer *t = c->transfers;
        c->transfers = t->next;
        free(t);
    }
}

/* Whether an access to LDM meets a transfer that nobody has waited for; reading what a put reads is
 * no conflict. */
bool overlap_check(struct cpe *c, const char *from, long len, bool writes, const char *what) {
    for (const struct transfer *t = c->transfers; t; t = t->next) {
        bool conflict = writes || t->op == EMU_GET;
        if (conflict && from < t->ldm + t->len && t->ldm < from + len) {
            fail(c, "launch-fault", "race: this %s touches LDM that the %s of line %d still uses; wait for its "
                 "reply word first", what, name_of(t), t->line);
            return false;
        }
    }
    return true;
}

/* Four sums at a time, since each addition waits for the one before. */
static uint64_t sum_of(const char *p, long len) {
    uint64_t sums[4] = {0}, words[4], word;
    long i = 0;
    for (; i + 32 <= len; i += 32) {
        memcpy(words, p + i, 32);
        for (int k = 0; k < 4; k++) sums[k] += words[k];
    }
    uint64_t sum = sums[0] + sums[1] + sums[2] + sums[3];
    for (; i + 8 <= len; i += 8) {
        memcpy(&word, p + i, 8);
        sum += word;
    }
    for (; i < len; i++) sum += (uint64_t)(unsigned char)p[i] << (i % 8 * 8);
    return sum;
}

/* Until a get is complete its place holds a pattern; the bytes of a put must stay as they are. */
void guard(struct transfer *t) {
    t->guarded = true;
    if (t->op == EMU_GET) memset(t->ldm, GUARD, (size_t)t->len);
    t->sum = sum_of(t->ldm, t->len);
}

bool guard_holds(const struct transfer *t) { return !t->guarded || sum_of(t->ldm, t->len) == t->sum; }

/* Count a reply word up, and wake its CPE if that waits for it. */
void replied(struct cpe *owner, volatile int *reply, double when) {
    if (!reply) return;
    ++*reply;
    if (owner->state == WAITING && owner->wait == FOR_REPLY && owner->word == reply &&
        *reply >= owner->value)
        cpe_wake(owner, when);
}
