#include "frame.h"
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { MOST_PIECES = 3, BUFFERED_RECORDS = 4, AROUND_NBYTES = HE_RECORD_HEAD_NBYTES + HE_TAG_NBYTES };

void he_seal_init(he_seal *s, const unsigned char *key, int here, int there, int64_t most) {
    *s = (he_seal){.here = (uint32_t)here, .there = (uint32_t)there, .room = BUFFERED_RECORDS * (most + AROUND_NBYTES)};
    memcpy(s->key, key, HE_KEY_NBYTES);
}

void he_seal_close(he_seal *s) {
    free(s->bytes);
    explicit_bzero(s, sizeof *s);
}

/* The tag of a record, which is bound to its sender and its number. */
static void tag_of(const he_seal *s, uint32_t sender, uint64_t number, const unsigned char *head, const he_piece *pieces, int n, unsigned char *tag) {
    unsigned char nonce[HE_NONCE_NBYTES];
    he_piece all[1 + MOST_PIECES] = {{head, HE_RECORD_HEAD_NBYTES}};
    memcpy(nonce, &sender, sizeof sender);
    memcpy(nonce + sizeof sender, &number, sizeof number);
    memcpy(all + 1, pieces, n * sizeof *pieces);
    he_mac(s->key, nonce, all, 1 + n, tag);
}

static void begin(he_seal *s, const he_piece *pieces, int n) {
    for (int i = 0; i < n; i++) s->carries += pieces[i].nbytes;
    he_record_write(s->carries, s->sent, s->head);
    tag_of(s, s->here, s->sent, s->head, pieces, n, s->tag);
    s->moved = 0;
}

/* What of the record is not sent yet. */
static int parts_left(const he_seal *s, const he_piece *pieces, int n, struct iovec *parts) {
    he_piece all[2 + MOST_PIECES] = {{s->head, HE_RECORD_HEAD_NBYTES}};
    int64_t gone = s->moved;
    int count = 0;
    memcpy(all + 1, pieces, n * sizeof *pieces);
    all[1 + n] = (he_piece){s->tag, HE_TAG_NBYTES};
    for (int i = 0; i < 2 + n; gone -= all[i++].nbytes) {
        int64_t skipped = gone > 0 ? gone : 0;
        if (skipped < all[i].nbytes) parts[count++] = (struct iovec){(char *)all[i].at + skipped, all[i].nbytes - skipped};
    }
    return count;
}

int he_seal_put(he_seal *s, int fd, const he_piece *pieces, int n) {
    struct iovec parts[2 + MOST_PIECES];
    if (!s->carries) begin(s, pieces, n);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = parts_left(s, pieces, n, parts)};
    ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == ENOBUFS || errno == EINTR ? 0 : -1;
    s->moved += sent;
    if (s->moved < s->carries + AROUND_NBYTES) return 0;
    s->carries = 0;
    s->sent++;
    return 1;
}

/* Reads on until `nbytes` are there, if they are. */
static int has(he_seal *s, int fd, int64_t nbytes) {
    if (s->end - s->start >= nbytes) return 1;
    if (s->start + nbytes > s->room || s->start == s->end) {
        memmove(s->bytes, s->bytes + s->start, s->end - s->start);
        s->end -= s->start;
        s->start = 0;
    }
    ssize_t n = recv(fd, s->bytes + s->end, s->room - s->end, MSG_DONTWAIT);
    if (n > 0) s->end += n;
    else s->ended = n == 0 || (errno != EAGAIN && errno != EINTR);
    return s->end - s->start >= nbytes;
}

int64_t he_seal_peek(he_seal *s, int fd, unsigned char **at) {
    if (!s->bytes && !(s->bytes = malloc(s->room))) return -HE_NO_MEMORY;
    if (!s->open) {
        if (!has(s, fd, HE_RECORD_HEAD_NBYTES)) return 0;
        int64_t carried = he_record_read(s->bytes + s->start, s->came, s->room / BUFFERED_RECORDS - AROUND_NBYTES);
        if (carried < 0) return -HE_TAMPERED;
        if (!has(s, fd, carried + AROUND_NBYTES)) return 0;
        unsigned char *head = s->bytes + s->start, *body = head + HE_RECORD_HEAD_NBYTES, tag[HE_TAG_NBYTES];
        tag_of(s, s->there, s->came, head, &(he_piece){body, carried}, 1, tag);
        if (!he_same_tag(tag, body + carried)) return -HE_TAMPERED;
        s->start += HE_RECORD_HEAD_NBYTES;
        s->open = carried;
        s->came++;
    }
    *at = s->bytes + s->start;
    return s->open;
}

void he_seal_take(he_seal *s, int64_t n) {
    s->start += n;
    s->open -= n;
    if (!s->open && n) s->start += HE_TAG_NBYTES;
}
