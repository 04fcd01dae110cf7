/* Authentication of what goes between hosts: AEAD_CHACHA20_POLY1305 of RFC 8439 with nothing to encrypt, so that all
 * bytes are its "additional data". A key authenticates each number of a direction once. */
#ifndef HAL_ENGINE_MAC_H
#define HAL_ENGINE_MAC_H

#include <stdint.h>

enum { HE_NONCE_NBYTES = 12, HE_TAG_NBYTES = 16 };

typedef struct {
    const void *at;
    int64_t nbytes;
} he_piece;

/* The tag of the pieces, one after the other. `nonce` is never used twice with a key. */
void he_mac(const unsigned char *key, const unsigned char *nonce, const he_piece *pieces, int n, unsigned char *tag);
/* Whether two tags are equal, in a time that does not tell where they differ. */
int he_same_tag(const unsigned char *a, const unsigned char *b);
/* How many blocks of a long message go at a time: 8 or 4 where the processor can, else 1. Any that it can gives the same
 * tags. */
extern int he_mac_width;
/* The first 32 bytes of block `counter` of ChaCha20's key stream, and the authenticator of RFC 8439, section 2.5. */
void he_chacha20(const unsigned char *key, uint32_t counter, const unsigned char *nonce, unsigned char *out);
void he_poly1305(const unsigned char *key, const he_piece *pieces, int n, unsigned char *tag);

#endif
