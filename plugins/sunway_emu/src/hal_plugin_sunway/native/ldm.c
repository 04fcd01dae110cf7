/* The scratchpads: what the program placed there, and ldm_malloc behind it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emu.h"

enum { ALIGN = 64, LARGEST = 1 << 20 };

void ldm_open(void) {
    for (int i = 0; i < CPES; i++) {
        cpes[i].ldm = mmap(NULL, LARGEST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (cpes[i].ldm == MAP_FAILED) abort();
    }
}

static long aligned(long n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }
static long capacity(void) { return (long)(chip.ldm_nbytes - chip.cache_nbytes); }

/* Place a program's variables: the image of the initialised ones, then `nbytes` in all. */
void ldm_begin(const char *image, long image_nbytes, long nbytes, bool zero) {
    for (int i = 0; i < CPES; i++) {
        struct cpe *c = &cpes[i];
        c->ldm_static = aligned(nbytes);
        if (image_nbytes) memcpy(c->ldm, image, (size_t)image_nbytes);
        if (zero) memset(c->ldm + image_nbytes, 0, (size_t)(nbytes - image_nbytes));
    }
}

void ldm_end(void) {
    for (int i = 0; i < CPES; i++)
        while (cpes[i].blocks) {
            struct block *b = cpes[i].blocks;
            cpes[i].blocks = b->next;
            free(b);
        }
}

long ldm_used(const struct cpe *c) {
    long end = c->ldm_static;
    for (const struct block *b = c->blocks; b; b = b->next)
        if (b->offset + b->nbytes > end) end = b->offset + b->nbytes;
    return end;
}

static void overflow(struct cpe *c, long nbytes) {
    char map[4096];
    size_t n = 0;
    for (const struct block *b = c->blocks; b && n + 100 < sizeof map; b = b->next)
        n += (size_t)snprintf(map + n, sizeof map - n, "\n  %7ld bytes at %6ld: ldm_malloc in line %d",
                              b->nbytes, b->offset, b->line);
    map[n] = 0;
    fail(c, "ldm", "ldm_malloc(%ld) does not fit into the LDM of %ld bytes, which holds\n"
         "  %7ld bytes at      0: variables%s", nbytes, capacity(), c->ldm_static, map);
}

/* First fit: the blocks are kept in the order of their offsets. */
void *emu_ldm_malloc(int line, long nbytes) {
    struct cpe *c = running;
    c->line = line;
    if (nbytes < 0 || nbytes > capacity()) return overflow(c, nbytes), NULL;
    long at = c->ldm_static, size = aligned(nbytes);
    struct block **link = &c->blocks;
    while (*link && (*link)->offset - at < size) {
        at = (*link)->offset + (*link)->nbytes;
        link = &(*link)->next;
    }
    if (at + size > capacity()) return overflow(c, nbytes), NULL;
    struct block *b = malloc(sizeof *b);
    if (!b) abort();
    *b = (struct block){at, size, line, *link};
    *link = b;
    return c->ldm + at;
}

void emu_ldm_free(int line, void *p) {
    struct cpe *c = running;
    c->line = line;
    for (struct block **link = &c->blocks; *link; link = &(*link)->next) {
        struct block *b = *link;
        if (c->ldm + b->offset != p) continue;
        *link = b->next;
        free(b);
        return;
    }
    fail(c, "launch-fault", "ldm_free of %p, which no ldm_malloc of this CPE gave or which is free already", p);
}
