/* A connection to a rank of another host. What goes over it is cut into records: a head with its length and number, up
 * to HE_RECORD_NBYTES of whole frames, and a tag of both by the connection's key (mac.h). A record that was changed,
 * left out, repeated or moved, also to another connection or direction, is found out before any of it is looked at. */
#ifndef HAL_ENGINE_SEAL_H
#define HAL_ENGINE_SEAL_H

#include "mac.h"

enum { HE_RECORD_HEAD_NBYTES = 16, HE_RECORD_NBYTES = 32 << 10 };

/* `sent` and `came` count records. */
typedef struct {
    unsigned char key[HE_KEY_NBYTES];
    uint32_t here, there; /* this rank and the other one */
    uint64_t sent, came;
    unsigned char head[HE_RECORD_HEAD_NBYTES], tag[HE_TAG_NBYTES]; /* of the record on its way */
    int64_t carries, moved; /* what it carries, 0 without one; its bytes that are sent, head and tag included */
    unsigned char *bytes;   /* what has come, [start, end), of which the first `open` are proved */
    int64_t room, start, end, open;
    int ended;              /* nothing more comes */
} he_seal;

/* `most`: the bytes that a record of this connection carries at most. */
void he_seal_init(he_seal *s, const unsigned char *key, int here, int there, int64_t most);
/* Goes on to send the record that carries these pieces, at most three and the same ones until it is sent. 1 once it is,
 * 0 where there is no room, -1 where nobody is there any more. */
int he_seal_put(he_seal *s, int fd, const he_piece *pieces, int n);
/* How many proved bytes lie at `at`; -HE_TAMPERED or -HE_NO_MEMORY. */
int64_t he_seal_peek(he_seal *s, int fd, unsigned char **at);
void he_seal_take(he_seal *s, int64_t n);
void he_seal_close(he_seal *s);

#endif
